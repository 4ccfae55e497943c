"""Configurations: defaults, files, overrides, and what is said about mistakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.data import Augment
from messagenet.data.classes import numbered_classes
from messagenet.errors import InputError
from messagenet.models import SegmentationNet
from messagenet.settings import flat
from messagenet.training import TrainConfig, apply_overrides, load_config, save_config
from messagenet.training.build import build_network
from messagenet.training.config import (
    DataConfig,
    OptimiserConfig,
    RunConfig,
    attribute_texts,
    config_text,
    parse_config,
    preset_names,
)

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("voc-*.yaml")), ids=lambda path: path.stem)
def test_published_recipes_can_be_built(path: Path) -> None:
    config = load_config(path)
    assert config.data.val_split is None  # nothing is chosen by the images that will be scored
    with torch.device("meta"):
        net = build_network(
            replace(config.model, pretrained=None, pretrained_head=False), numbered_classes(7)
        ).net
    shipped = SegmentationNet.from_pretrained()
    ours, theirs = (
        {name: values.shape for name, values in each.state_dict().items() if not name.startswith("head.")}
        for each in (net, shipped)
    )
    assert ours == theirs


def test_images_to_score_are_not_trained_on() -> None:
    with pytest.raises(InputError, match=r"set data\.val_split=null"):
        apply_overrides(load_config("tiny"), ["data.train_split=train+val"])
    apply_overrides(load_config("tiny"), ["data.train_split=train+train"])


def test_a_file_may_start_from_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("preset: fast\nrun: {epochs: 3}\nmodel: {neck: {filters: 1}}\n")
    expected = apply_overrides(load_config("fast"), ["run.epochs=3", "model.neck={filters: 1}"])
    assert load_config(path) == expected
    path.write_text("preset: fats\n")
    with pytest.raises(InputError, match=r'mine.yaml: there is no preset "fats": did you mean "fast"'):
        load_config(path)


def test_default_file_lists_exactly_the_defaults() -> None:
    assert load_config("default") == TrainConfig()
    default = Path(load_config.__code__.co_filename).parent / "presets" / "default.yaml"
    assert default.read_text(encoding="utf-8").endswith(config_text(TrainConfig()))


def test_every_setting_has_a_comment() -> None:
    for section, value in vars(TrainConfig()).items():
        assert attribute_texts(TrainConfig)[section]
        assert set(attribute_texts(type(value))) == set(vars(value))


@pytest.mark.parametrize("name", preset_names())
def test_presets_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    assert load_config(save_config(config, tmp_path / "config.yaml")) == config


@given(
    lr=st.floats(0, 1e3),
    steps=st.none() | st.integers(1, 10**6),
    scales=st.lists(st.floats(0.1, 3), min_size=1, max_size=4),
    spec=st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=20),
)
@settings(max_examples=25, deadline=None)
def test_any_values_survive_a_round_trip(
    lr: float, steps: int | None, scales: list[float], spec: str
) -> None:
    config = TrainConfig(
        data=DataConfig(spec=spec, keep=(spec, 3)),
        augment=Augment(scales=tuple(scales), crop=64),
        optimiser=OptimiserConfig(lr=lr),
        run=RunConfig(steps=steps),
    )
    assert parse_config(config_text(config)) == config


def test_presets_are_what_they_are_called() -> None:
    paper, fast, tiny = (load_config(name) for name in ("paper-vgg16", "fast", "tiny"))
    assert (paper.model.backbone, paper.model.hidden, paper.model.iterations) == ("vgg16", 512, 1)
    assert paper.model.relations == ("surrounding:0.4", "above:0.4", "below:0.4")
    assert paper.model.backbone_options["scales"] == [1.2, 0.8, 0.4]
    assert (paper.optimiser.name, paper.optimiser.momentum, paper.schedule.power) == ("sgd", 0.9, 0.9)
    assert paper.augment == Augment.paper()
    assert (fast.model.backbone, fast.model.pretrained) == ("efficientnet_lite0", "package")
    assert (tiny.model.backbone, tiny.data.spec) == ("tiny", "synthetic")


def test_overrides_are_read_as_yaml() -> None:
    config = apply_overrides(
        TrainConfig(),
        [
            "run.epochs=3",
            "model.relations=[surrounding:0.4, near=above:3cells:box]",
            "optimiser.lr=1e-4",
            "augment.crop=[64, 96]",
            "data.keep=[cat, 3]",
            "run.steps=null",
            "model.backbone_options={width: 16}",
            "run.epochs=4",
        ],
    )
    assert config.run.epochs == 4
    assert config.model.relations == ("surrounding:0.4", "near=above:3cells:box")
    assert config.optimiser.lr == 1e-4
    assert config.augment.crop == (64, 96)
    assert config.data.keep == ("cat", 3)
    assert config.model.backbone_options == {"width": 16}


def test_epochs_replace_the_steps_of_a_preset() -> None:
    tiny = load_config("tiny")
    assert tiny.run.steps is not None
    assert apply_overrides(tiny, ["run.epochs=2"]).run.steps is None
    both = apply_overrides(tiny, ["run.epochs=2", "run.steps=7"]).run
    assert (both.epochs, both.steps) == (2, 7)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.epoch=3", 'no setting "run.epoch": did you mean "run.epochs"?'),
        ("lr=0.1", 'no setting "lr": did you mean "optimiser.lr"?'),
        ("optimizer.lr=0.1", 'no setting "optimizer": did you mean "optimiser"?'),
        ("run.epochs=three", "run.epochs is 'three'; give a whole number"),
        ("run.epochs=2.5", "run.epochs is 2.5; give a whole number"),
        ("run.epochs=true", "run.epochs is True; give a whole number"),
        ("run.epochs=0", "run: epochs is 0; give at least 1"),
        ("run.steps=x", "run.steps is 'x'; give a whole number or null"),
        ("run.ema=1.5", "run: ema is 1.5; give a decay from 0"),
        ("run.freeze_backbone=1", "run.freeze_backbone is 1; give true or false"),
        ("optimiser.lr=[1]", "optimiser.lr is [1]; give a number"),
        ("optimiser.name=adam", "optimiser.name is 'adam'; did you mean \"adamw\"?"),
        ("augment.scales=[1, x]", "augment.scales is [1, 'x']; give a list, each a number"),
        ("augment.crop=[1, 2, 3]", "augment.crop is [1, 2, 3]; give a list of 2"),
        ("model.relations=[abve:0.4]", 'has the shape "abve": did you mean "above"?'),
        ("model=3", "model is 3; give settings as name: value"),
        ("run.cache_features=true", "cache_features needs a backbone that does not change"),
        ("run.epochs", '"run.epochs" sets nothing; write section.name=value'),
        ("data.balance=1.1", "data: balance is 1.1; give at most 1"),
        ("data.balance=-1", "data: balance is -1.0; give at least 0"),
        ("model.kernels={bilateral_colour: wide}", "model.kernels is {'bilateral_colour': 'wide'}; give"),
        ("data.keep=[", "the value is not YAML"),
    ],
)
def test_mistakes_are_named(override: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        apply_overrides(TrainConfig(), [override])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bounds_themselves_are_allowed() -> None:
    config = apply_overrides(TrainConfig(), ["data.balance=1", "model.kernels={bilateral_colour: 3.0e+1}"])
    assert (config.data.balance, config.model.kernels) == (1.0, {"bilateral_colour": 30.0})
    assert apply_overrides(TrainConfig(), ["data.balance=0"]).data.balance == 0


def test_mistakes_in_files_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    with pytest.raises(InputError, match="cannot read the configuration"):
        load_config(path)
    path.write_text("run:\n  epochs: [")
    with pytest.raises(InputError, match=r"my\.yaml, line 2: not valid YAML"):
        load_config(path)
    path.write_text("run:\n  epoch: 2\n")
    with pytest.raises(InputError, match=r"my\.yaml: there is no setting \"run\.epoch\""):
        load_config(path)
    path.write_text("")
    assert load_config(path) == TrainConfig()
    with pytest.raises(InputError, match='no preset "fats": did you mean "fast"'):
        load_config("fats")


def test_flat_names_every_setting() -> None:
    names = flat(TrainConfig())
    assert names["augment.mirror"] is False
    assert names["model.relations"] == ["surrounding:0.4", "above:0.4", "below:0.4"]


def test_the_same_seed_builds_the_same_network() -> None:
    from messagenet.data import SCENE_CLASSES

    config = load_config("tiny").model
    first, same, other = (build_network(config, SCENE_CLASSES, seed).net.state_dict() for seed in (0, 0, 1))
    assert all(first[name].equal(same[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)
