"""Training: the settings of a run, the loop, and what it writes."""

from messagenet.training.build import DataSets
from messagenet.training.config import TrainConfig, load_config, override, save_config
from messagenet.training.inference_machine import train_machine_dagger, train_machine_forward
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
    "train_machine_dagger",
    "train_machine_forward",
    "tune",
]
