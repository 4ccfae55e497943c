"""Training: configuration, the loop, checkpoints and the schedule."""

from messagenet.training.config import TrainConfig
from messagenet.training.config_files import load_config, save_config
from messagenet.training.loop import train
from messagenet.training.overrides import apply_overrides
from messagenet.training.progress import Bar, Progress, Silent, TrainResult
from messagenet.training.relations import parse_relation, relation_text

__all__ = [
    "Bar",
    "Progress",
    "Silent",
    "TrainConfig",
    "TrainResult",
    "apply_overrides",
    "load_config",
    "parse_relation",
    "relation_text",
    "save_config",
    "train",
]
