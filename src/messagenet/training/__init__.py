"""Training: the settings of a run, the loop, and what it writes."""

from messagenet.training import inference_machine  # noqa: F401 (registers its methods)
from messagenet.training.build import DataSets
from messagenet.training.config import TrainConfig, load_config, override, preset_names, save_config
from messagenet.training.loop import train
from messagenet.training.progress import Bar, RunInfo, TrainCallback, TrainResult, read_log
from messagenet.training.validate import tune

__all__ = [
    "Bar",
    "DataSets",
    "RunInfo",
    "TrainCallback",
    "TrainConfig",
    "TrainResult",
    "load_config",
    "override",
    "preset_names",
    "read_log",
    "save_config",
    "train",
    "tune",
]
