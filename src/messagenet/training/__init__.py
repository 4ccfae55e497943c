"""Training: the settings of a run, the loop, and what it writes."""

from messagenet.training import inference_machine  # noqa: F401 (registers its methods)
from messagenet.training.build import DataSets
from messagenet.training.config import TrainConfig, load_config, override, save_config
from messagenet.training.loop import run_training
from messagenet.training.progress import Bar, TrainCallback, TrainResult, read_log
from messagenet.training.validate import tune

__all__ = [
    "Bar",
    "DataSets",
    "TrainCallback",
    "TrainConfig",
    "TrainResult",
    "load_config",
    "override",
    "read_log",
    "run_training",
    "save_config",
    "tune",
]
