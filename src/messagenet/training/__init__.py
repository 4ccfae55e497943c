"""Training: every setting of a run, the loop, and what it writes down.

config = apply_overrides(load_config("tiny"), ["run.epochs=3"])
result = train(config, "runs/mine", progress=Bar())
net = MessageNet.from_pretrained(result.folder / "best")
"""

from messagenet.graph.relations import parse_relation, relation_text
from messagenet.training.build import DataSets
from messagenet.training.config import TrainConfig, apply_overrides, load_config, preset_names, save_config
from messagenet.training.loop import train
from messagenet.training.progress import Bar, Progress, RunInfo, Silent, TrainResult, read_log

__all__ = [
    "Bar",
    "DataSets",
    "Progress",
    "RunInfo",
    "Silent",
    "TrainConfig",
    "TrainResult",
    "apply_overrides",
    "load_config",
    "parse_relation",
    "preset_names",
    "read_log",
    "relation_text",
    "save_config",
    "train",
]
