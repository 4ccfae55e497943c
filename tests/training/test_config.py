"""Configurations: defaults, files, settings, and what is said about mistakes."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet import cli
from messagenet.data import SCENE_CLASSES, Augment
from messagenet.data.classes import numbered_classes
from messagenet.errors import InputError
from messagenet.models import SegmentationModel
from messagenet.settings import _REGISTRY, component, component_group, find, flat, kinds, options, register
from messagenet.training import TrainConfig, load_config, override, save_config
from messagenet.training.build import build_model
from messagenet.training.config import DataConfig, RunConfig, choose_config, config_text, parse_config, preset_names
from messagenet.training.systems import apply_system

CACHED = ("run.freeze_backbone=true", "run.cache_features=true", "run.cache_variants=2")
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("voc-*.yaml")), ids=lambda path: path.stem)
def test_published_recipes_can_be_built(path: Path) -> None:
    config = load_config(path)
    assert config.data.val_split is None  # nothing is chosen by the images that will be scored
    random = override(config, {"model.pretrained": None, "model.pretrained_head": False})
    with torch.device("meta"):
        model = build_model(random, numbered_classes(21)).model
    bundled = SegmentationModel.from_pretrained()
    ours, theirs = (
        {name: values.shape for name, values in each.state_dict().items() if not name.startswith("head.")}
        for each in (model, bundled)
    )
    assert ours == theirs


def test_images_to_score_are_not_trained_on() -> None:
    with pytest.raises(InputError, match=r"set data\.val_split=null"):
        override(load_config("tiny"), ["data.train_split=train+val"])
    override(load_config("tiny"), ["data.train_split=train+train"])


def test_a_file_may_start_from_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("preset: fast\nrun: {epochs: 3}\nmodel: {neck: {filters: 1}}\n")
    expected = override(load_config("fast"), ["run.epochs=3", "model.neck={filters: 1}"])
    assert load_config(path) == expected
    path.write_text("preset: fats\n")
    with pytest.raises(InputError, match=r'mine.yaml: there is no preset "fats": did you mean "fast"'):
        load_config(path)


def test_defaults_and_help_are_written_in_no_preset() -> None:
    assert load_config("default") == parse_config("preset: default") == TrainConfig()
    files = list(resources.files("messagenet.training").joinpath("presets").iterdir())
    assert {"default", *(file.name.removesuffix(".yaml") for file in files)} == set(preset_names())
    for file in files:
        text = " ".join(file.read_text(encoding="utf-8").replace("#", "").split())
        assert [name for name, option in options(find("head", "message")).items() if option.help in text] == []


def test_an_option_of_a_head_is_written_in_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if it were added to the class that is registered."""
    heads = dict(_REGISTRY["head"])
    monkeypatch.setitem(_REGISTRY, "head", heads)
    known: Any = heads.pop("message")

    @register("head", "message")
    class Tempered(known):  # type: ignore[misc]
        """The message head.

        Args:
            temperature: What logits are divided by.
        """

        def __init__(self, in_channels: int, num_classes: int, *, temperature: float = 1.0, **more: Any) -> None:
            super().__init__(in_channels, num_classes, **more)
            self.temperature = temperature

    monkeypatch.setattr("sys.argv", ["messagenet", "settings", "default"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "    # What logits are divided by.\n    temperature: 1.0\n" in capsys.readouterr().out
    config = override(load_config("tiny"), ["model.head.temperature=3"])
    assert parse_config(config_text(config)).model.head["temperature"] == 3.0
    folder = build_model(config, SCENE_CLASSES).model.save(tmp_path)
    assert json.loads((folder / "config.json").read_text())["model"]["head"]["temperature"] == 3.0
    assert SegmentationModel.from_pretrained(folder).head.temperature == 3.0


def test_every_setting_has_a_comment() -> None:
    for section, option in options(TrainConfig).items():
        assert option.help, section
        group = component_group(option.type)
        makes = [find(group, kind) for kind in kinds(group)] if group else [type(option.default)]
        for make in makes:
            assert [name for name, each in options(make).items() if not each.help] == []


@pytest.mark.parametrize("group", ["backbone", "neck", "head", "loss", "optimiser"])
def test_every_option_of_a_component_has_a_comment_and_survives_a_round_trip(group: str) -> None:
    config = override(TrainConfig(), {"model.head": "crf"}) if group == "loss" else TrainConfig()
    for kind in kinds(group):
        assert [name for name, each in options(find(group, kind)).items() if not each.help] == []
        if kind == "member_cross_entropy":
            config = override(config, {"model.head": "ensemble"})
        elif group == "loss":
            config = override(config, {"model.head": "crf", "loss": "cross_entropy"})
        path = group if group in ("loss", "optimiser") else f"model.{group}"
        changed = override(config, {path: kind})
        assert parse_config(config_text(changed)) == changed


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
def test_any_values_survive_a_round_trip(lr: float, steps: int | None, scales: list[float], spec: str) -> None:
    config = TrainConfig(
        data=DataConfig(spec=spec, keep=(spec, 3)),
        augment=Augment(scales=tuple(scales), crop=64),
        optimiser=component("optimiser", {"kind": "sgd", "lr": lr}),
        run=RunConfig(steps=steps),
    )
    assert parse_config(config_text(config)) == config


def test_presets_are_what_they_are_called() -> None:
    paper, fast, tiny = (load_config(name) for name in ("paper-vgg16", "fast", "tiny"))
    head = paper.model.head
    assert (paper.model.backbone["kind"], head["kind"]) == ("vgg16", "message")
    assert (head["hidden"], head["iterations"]) == (512, 1)
    assert head["relations"] == ["surrounding:0.4", "above:0.4", "below:0.4"]
    assert paper.model.backbone["scales"] == [1.2, 0.8, 0.4]
    assert (paper.optimiser["kind"], paper.optimiser["momentum"], paper.schedule.power) == ("sgd", 0.9, 0.9)
    assert paper.augment == Augment(scales=(0.8, 0.9, 1.0, 1.1, 1.2), mirror=True)
    assert (fast.model.backbone["kind"], fast.model.pretrained) == ("efficientnet_lite0", "package")
    assert (tiny.model.backbone["kind"], tiny.data.spec) == ("tiny", "synthetic")


def test_settings_are_read_as_yaml() -> None:
    config = override(
        TrainConfig(),
        [
            "run.epochs=3",
            "model.head.relations=[surrounding:0.4, near=above:3cells:box]",
            "optimiser.lr=1e-4",
            "augment.crop=[64, 96]",
            "data.keep=[cat, 3]",
            "run.steps=null",
            "model.backbone={kind: tiny, width: 16}",
            "run.epochs=4",
        ],
    )
    assert config.run.epochs == 4
    assert config.model.head["relations"] == ["surrounding:0.4", "near=above:3cells:box"]
    assert config.optimiser["lr"] == 1e-4
    assert config.augment.crop == (64, 96)
    assert config.data.keep == ("cat", 3)
    assert config.model.backbone == {"kind": "tiny", "width": 16, "stride": 4}


def test_epochs_replace_the_steps_of_a_preset() -> None:
    tiny = load_config("tiny")
    assert tiny.run.steps is not None
    assert override(tiny, ["run.epochs=2"]).run.steps is None
    both = override(tiny, ["run.epochs=2", "run.steps=7"]).run
    assert (both.epochs, both.steps) == (2, 7)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run.epoch=3", 'no setting "run.epoch": did you mean "run.epochs"?'),
        ("lr=0.1", 'no setting "lr": did you mean "optimiser.lr"?'),
        ("optimizer.lr=0.1", 'no setting "optimizer.lr": did you mean "optimiser.lr"?'),
        ("optimizer=sgd", 'no setting "optimizer": did you mean "optimiser"?'),
        ("optimizer.kind=sgd", 'no setting "optimizer.kind": did you mean "optimiser.kind"?'),
        ("backbone=tinny", 'no setting "backbone": did you mean "model.backbone"?'),
        ("head.hidden=3", 'no setting "head.hidden": did you mean "model.head.hidden"?'),
        ("head.hiden=3", 'no setting "head.hiden": did you mean "model.head.hidden"?'),
        ("model.lr=3", 'no setting "model.lr": did you mean "optimiser.lr"?'),
        ("run.hidden=3", 'no setting "run.hidden": did you mean "model.head.hidden"?'),
        ("momentum=0.9", 'no setting "momentum": did you mean "optimiser.momentum", of the optimiser sgd?'),
        ("zzz=3", 'no setting "zzz": choose one of: augment, data, loss, model, optimiser, run, schedule'),
        ("model.zzz=3", 'no setting "model.zzz": choose one of: backbone, head, neck, '),
        ("run.epochs=three", "run.epochs is 'three'; give a whole number"),
        ("run.epochs=2.5", "run.epochs is 2.5; give a whole number"),
        ("run.epochs=true", "run.epochs is True; give a whole number"),
        ("run.epochs=0", "run: epochs is 0; give at least 1"),
        ("run.steps=x", "run.steps is 'x'; give a whole number or null"),
        ("run.ema=1.5", "run: ema is 1.5; give a number from 0 to below 1"),
        ("run.freeze_backbone=1", "run.freeze_backbone is 1; give true or false"),
        ("optimiser.lr=[1]", "optimiser.lr is [1]; give a number"),
        ("optimiser.kind=adam", 'there is no optimiser "adam": did you mean "adamw"? (optimiser)'),
        ("optimiser.momentum=0.5", 'there is no setting "optimiser.momentum" for adamw: it is one of sgd'),
        ("optimiser.lr=-1", "optimiser: lr is -1.0; give at least 0"),
        ("optimiser={kind: sgd, momentum: 1}", "optimiser: momentum is 1.0; give a number from 0 to below 1"),
        ("augment.scales=[1, x]", "augment.scales is [1, 'x']; give a list, each a number"),
        ("augment.crop=[1, 2, 3]", "augment.crop is [1, 2, 3]; give a whole number or a list of 2"),
        ("model.head.relations=[abve:0.4]", 'has the shape "abve": did you mean "above"?'),
        ("model=3", "model is 3; give settings as name: value"),
        ("run.cache_variants=2", "run: cache_variants is for cached features; set run.cache_features=true"),
        ("run.cache_precision=fp32", "run: cache_precision is for cached features; set run.cache_features=true"),
        ("run.cache_folder=features", "run: cache_folder is for cached features; set run.cache_features=true"),
        ("loss={resolution: pixels, cell_label: majority}", "loss: cell_label is for a loss at the nodes"),
        ("run.cache_features=true", "cache_features needs a backbone that does not change"),
        ("run.epochs", '"run.epochs" sets nothing; write section.name=value'),
        ("data.balance=1.1", "data: balance is 1.1; give a number from 0 to 1"),
        ("data.balance=-1", "data: balance is -1.0; give a number from 0 to 1"),
        ("model.head={kind: crf_rnn, bilateral_colour: wide}", "model.head.bilateral_colour is 'wide'; give a number"),
        ("model.backbone.kind=tinny", 'there is no backbone "tinny": did you mean "tiny"? (model.backbone)'),
        ("model.backbone=tinny", 'there is no backbone "tinny": did you mean "tiny"? (model.backbone)'),
        ("model.head.kind=contextcrf", 'there is no head "contextcrf": choose one of: '),
        ("loss=piecewis", 'there is no loss "piecewis": did you mean "piecewise"? (loss)'),
        ("run.method=dager", 'there is no method "dager": did you mean "dagger"? (run.method)'),
        ("model.head.hiden=4", 'no setting "model.head.hiden" for message: did you mean "hidden"?'),
        ("model.head.hidden=many", "model.head.hidden is 'many'; give a whole number"),
        ("model.head.hidden.units=3", "model.head.hidden is {'units': 3}; give a whole number"),
        ("model.head=[1]", "model.head is [1]; give a kind, or settings as {kind: …, name: value}"),
        ("model.head=null", "model.head is None; give settings as {name: value}"),
        ("loss=null", "loss is None; give settings as {name: value}"),
        ("run.precision=float23", "run.precision is 'float23'; did you mean \"float32\"?"),
        ("run.precision=bfloat16", 'run.precision is \'bfloat16\'; give "float32" or "bf16" or "fp16"'),
        ("run.precision=no", 'run.precision is False; give "float32" or "bf16" or "fp16"'),
        ("data.keep=[", "the value is not YAML"),
    ],
)
def test_mistakes_are_named(line: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        override(TrainConfig(), [line])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_option_of_another_kind_is_named_with_the_kinds_that_have_it() -> None:
    said = r'"model\.iterations": did you mean "model\.head\.iterations", of the head .*message.*\?$'
    fcn8s = override(TrainConfig(), ["model.head=fcn8s"])
    for base, lines in ((fcn8s, []), (TrainConfig(), ["model.head=fcn8s"]), (TrainConfig(), ["model.head.kind=fcn8s"])):
        with pytest.raises(InputError, match=said):
            override(base, [*lines, "model.iterations=2"])
    with pytest.raises(InputError, match=r'"model\.iterations": did you mean "model\.head\.iterations"\?$'):
        override(TrainConfig(), ["model.iterations=2"])


def test_bounds_themselves_are_allowed() -> None:
    lines = ["data.balance=1", "model.head.kind=crf_rnn", "model.head.bilateral_colour=3.0e+1"]
    config = override(TrainConfig(), lines)
    assert (config.data.balance, config.model.head["bilateral_colour"]) == (1.0, 30.0)
    assert override(TrainConfig(), ["data.balance=0"]).data.balance == 0


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
    assert names["model.head.relations"] == ["surrounding:0.4", "above:0.4", "below:0.4"]


def test_the_same_seed_builds_the_same_model() -> None:
    config = load_config("tiny")
    first, same, other = (
        build_model(override(config, {"run.seed": seed}), SCENE_CLASSES).model.state_dict() for seed in (0, 0, 1)
    )
    assert all(first[name].equal(same[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)


def test_values_travel_as_values() -> None:
    """A mapping is not read as YAML: numbers keep their type and last digit, text stays text."""
    values: dict[str, Any] = {
        "optimiser.lr": 1e-5,
        "optimiser.weight_decay": 0.1 + 0.2,
        "data.spec": "folder:a: [b",
        "data.keep": ("yes", 3),
        "model.head": {"kind": "message", "relations": ("above:3cells",)},
        "run.epochs": 2,
    }
    config = override(load_config("tiny"), values)
    assert (config.optimiser["lr"], config.optimiser["weight_decay"]) == (1e-5, 0.1 + 0.2)
    assert type(config.optimiser["lr"]) is float
    assert (config.data.spec, config.data.keep) == ("folder:a: [b", ("yes", 3))
    assert config.model.head["relations"] == ["above:3cells"]
    assert (config.run.epochs, config.run.steps) == (2, None)
    assert parse_config(config_text(config)) == config


def test_a_setting_that_nothing_would_use_is_refused() -> None:
    for lines, said in (
        (["model.head.kind=fcn8s", "model.neck.width=4"], "head fcn8s takes none; set model.neck=null"),
        (["model.neck.width=4", "model.head=fcn8s"], "head fcn8s takes none; set model.neck=null"),
        (["model.head=unary", "model.head.iterations=9"], 'no setting "model.head.iterations" for unary'),
        (["model.head.iterations=9", "model.head.kind=unary"], 'no setting "model.head.iterations" for unary'),
        (["model.backbone=tiny", "model.backbone.frozen_stages=2"], '"model.backbone.frozen_stages" for tiny'),
        (["model.head=unary", "model.separate_features=true"], "set model.separate_features=false"),
        (["model.neck.filters=1", "model.separate_features=true"], "set model.neck=null, or"),
        (["model.head=crf", "loss=piecewise", "loss.resolution=pixels"], '"loss.resolution" for piecewise'),
        (["loss.iteration_weights=[0.3]"], "iteration_weights are for the beliefs before the last; set"),
        (["model.head.iterations=2", "loss.iteration_weights=[1, 1]"], "2 iteration_weights for 1 earlier beliefs"),
        (["loss=piecewise"], "is for the head crf, not message; set model.head.kind=crf, or loss.kind="),
    ):
        for base in (TrainConfig(), load_config("fast")):
            with pytest.raises(InputError) as caught:
                override(base, lines)
            assert said in str(caught.value)
            assert "\n" not in str(caught.value)


def test_a_run_says_what_it_trains() -> None:
    lines = [
        "model.neck=null",
        "model.head.iterations=2",
        "model.head.relations=[surrounding:0.4:box, four_neighbours]",
    ]
    assert override(load_config("fast"), lines).model.summary() == (
        "backbone efficientnet_lite0 (weights: package), head message, T = 2, messages from surrounding:0.4:box "
        "four_neighbours"
    )
    assert apply_system(load_config("tiny"), "unary").model.summary() == "backbone tiny (weights: random), head unary"


def test_a_preset_is_soft() -> None:
    fast = load_config("fast")
    assert fast.model.neck is not None
    changed = override(fast, ["model.head.kind=fcn8s"])
    assert changed.model.neck is None
    with pytest.raises(InputError, match=r"takes none; set model\.neck=null"):
        override(changed, ["model.neck.width=4"])
    separate = override(TrainConfig(), ["model.separate_features=true"])
    assert override(separate, ["model.head=crf"]).model.separate_features
    assert not override(separate, ["model.head=unary"]).model.separate_features


def test_another_kind_keeps_the_options_that_both_have() -> None:
    base = override(
        TrainConfig(),
        [
            "model.head.hidden=12",
            "model.head.iterations=3",
            "model.backbone.frozen_stages=2",
            "loss.cell_label=majority",
        ],
    )
    changed = override(base, ["model.head=crf", "model.backbone=efficientnet_lite2", "loss=piecewise"])
    defaults = {name: option.default for name, option in options(find("head", "crf")).items()}
    assert changed.model.head["hidden"] == 12
    assert "iterations" not in changed.model.head
    assert changed.model.head["inference_iterations"] == defaults["inference_iterations"]
    assert changed.model.backbone["frozen_stages"] == 2
    assert changed.loss == {"kind": "piecewise", "cell_label": "majority"}


def test_another_kind_has_its_own_defaults() -> None:
    """Kernel weights of DeepLab-CRF and CRF-RNN have other defaults; only what was set is carried over."""
    deeplab = override(TrainConfig(), ["model.head=deeplab_crf", "model.head.bilateral_colour=7"])
    rnn = override(deeplab, ["model.head=crf_rnn"])
    assert deeplab.model.head["spatial_weight"] == 3.0
    assert rnn.model.head["spatial_weight"] == 1.0
    assert rnn.model.head["bilateral_colour"] == 7.0


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_precisions(precision: str) -> None:
    assert override(TrainConfig(), [f"run.precision={precision}"]).run.precision == precision


def test_where_a_run_starts_from(tmp_path: Path) -> None:
    assert choose_config(data="synthetic:20") == override(load_config("tiny"), ["data.spec=synthetic:20"])
    photographs = choose_config(data="folder:street", epochs=3, keep=("cat",), rest=None)
    expected = override(load_config("finetune"), ["data.spec=folder:street", "run.epochs=3", "data.keep=[cat]"])
    assert photographs == expected
    saved = override(load_config("tiny"), ["run.steps=7"])
    save_config(saved, tmp_path / "config.yaml")
    assert choose_config(run_folder=tmp_path) == saved
    given = choose_config(data="synthetic", system="unary", settings={"model.head.hidden": 4, "optimiser.lr": 1e-5})
    assert given.model.head == {"kind": "unary", "hidden": 4}
    assert given.optimiser["lr"] == 1e-5
    for wrong, said in (
        ({}, "say what to train on"),
        ({"preset": "tiny", "file": "my.yaml"}, "not both"),
        ({"run_folder": tmp_path / "none"}, "there is no run to resume"),
        ({"data": "synthetic", "system": "unray"}, 'there is no system "unray"; did you mean "unary"?'),
        ({"data": "synthetic", "system": "unary", "settings": ["model.head.iterations=2"]}, "for unary"),
    ):
        with pytest.raises(InputError, match=said.replace("?", r"\?")):
            choose_config(**wrong)  # type: ignore[arg-type]


def test_a_configuration_is_not_changed_by_those_made_from_it() -> None:
    base = load_config("fast")
    before = dataclasses.asdict(base)
    override(base, ["model.head.hidden=3", "model.backbone.width=8", "loss.label_smoothing=0.1", "model.neck=null"])
    assert dataclasses.asdict(base) == before
    assert TrainConfig() == load_config("default")


@pytest.mark.parametrize("system", ["machine_forward", "machine_dagger"])
@pytest.mark.parametrize("preset", preset_names())
def test_a_method_drops_what_a_preset_has_and_it_does_not_use(preset: str, system: str) -> None:
    shared = override(load_config(preset), ["run.ema=0.9", "augment.longest_side=200"])
    config = apply_system(override(shared, CACHED), system)
    default = flat(TrainConfig())
    assert {path for path, value in flat(config).items() if value != default.get(path)} <= {
        *(path for path in flat(config) if path.startswith(("model.", "data."))),
        *("run.method", "run.epochs", "run.steps", "run.batch_size", "run.accumulate", "augment.longest_side"),
    }
    assert config.augment.longest_side == 200
    assert config.run.batch_size == shared.run.batch_size


@pytest.mark.parametrize(
    "line",
    [
        *("augment.mirror=true", "augment.crop=32", "loss.resolution=pixels", "optimiser.lr=0.1"),
        *("optimiser.kind=sgd", "schedule.warmup=3", "run.ema=0.9", "run.precision=bf16", "run.evaluate_every=3"),
        *("run.freeze_backbone=true", "run.norm=frozen", "run.log_every=3", "run.checkpoint_every=3"),
    ],
)
def test_a_setting_that_the_method_does_not_use_is_refused(line: str) -> None:
    path = line.partition("=")[0]
    with pytest.raises(InputError, match=f"^forward training does not use {path}; leave it out, or set run.method=gra"):
        choose_config(data="synthetic", system="machine_forward", settings=[line])
    with pytest.raises(InputError, match=f"does not use {path}"):
        choose_config(
            data="synthetic", settings=[line, "run.method=dagger", "model.head={kind: inference_machine, tied: true}"]
        )


def test_settings_that_the_method_uses_are_taken() -> None:
    used = ["run.workers=0", "run.seed=3", "run.accumulate=2", "loss.cell_label=majority", "augment.longest_side=64"]
    config = choose_config(data="synthetic", system="machine_dagger", settings=used)
    assert (config.run.accumulate, config.loss["cell_label"], config.augment.longest_side) == (2, "majority", 64)


def test_settings_of_cached_features_go_with_them() -> None:
    cached = override(load_config("tiny"), [*CACHED, "run.cache_folder=features"])
    off = override(cached, ["run.cache_features=false"])
    assert (off.run.cache_variants, off.run.cache_folder) == (1, None)
    assert apply_system(cached, "crf_rnn").run == override(off, {}).run  # it needs the images themselves
    with pytest.raises(InputError, match=r"crf_rnn needs the images themselves; set run.cache_features=false"):
        override(apply_system(cached, "crf_rnn"), CACHED)
    with pytest.raises(InputError, match="cache_variants is for cached features"):
        override(cached, ["run.cache_features=false", "run.cache_variants=2"])


def test_a_resumed_run_has_its_own_settings(tmp_path: Path) -> None:
    save_config(load_config("tiny"), tmp_path / "config.yaml")
    for source in ({"preset": "tiny"}, {"file": tmp_path / "config.yaml"}):
        with pytest.raises(InputError, match="resumed run has its own settings; leave --preset and --config out"):
            choose_config(run_folder=tmp_path, **source)
    assert choose_config(run_folder=tmp_path, epochs=3).run.epochs == 3


def test_what_only_scoring_uses_needs_images_to_score() -> None:
    tiny = override(load_config("tiny"), ["run.evaluate_every=7"])
    unscored = override(tiny, ["data.val_split=null"])
    assert (tiny.data.val_limit, unscored.data.val_limit, unscored.run.evaluate_every) == (100, None, None)
    for line, said in (
        ("data.val_limit=3", "data: val_limit is for images to score; set data.val_split, or leave it out"),
        ("run.evaluate_every=3", "run.evaluate_every is for images to score; set data.val_split, or leave it out"),
    ):
        for base, lines in ((unscored, [line]), (tiny, [line, "data.val_split=null"])):
            with pytest.raises(InputError) as caught:
                override(base, lines)
            assert str(caught.value) == said


def test_what_becomes_of_other_classes_needs_classes_to_keep() -> None:
    said = "data: rest is for classes that are not kept; set data.keep, or leave it out"
    kept = override(TrainConfig(), ["data.keep=[cat]", "data.rest=background"])
    assert override(kept, ["data.keep=null"]).data.rest == "void"
    for base, lines in ((TrainConfig(), []), (kept, ["data.keep=null"])):
        with pytest.raises(InputError, match=f"^{said}$"):
            override(base, [*lines, "data.rest=background"])
    with pytest.raises(InputError, match=f"^{said}$"):
        choose_config(data="synthetic", keep=("sky",), rest="background", settings=["data.keep=null"])


@pytest.mark.parametrize(
    ("text", "system", "path"),
    [
        ("model: {head: {iterations: 9}}", "unary", "model.head.iterations"),
        ("preset: fast\nmodel: {neck: {filters: 3}}", "fcn8s", "model.neck.filters"),
        ("preset: tiny\noptimiser: {lr: 0.5}", "machine_forward", "optimiser.lr"),
        ("model: {head: crf}", "unary", "model.head.kind"),
        ("model: {head: {iterations: 3}}", "message_t2", "model.head.iterations"),
        ("loss: {resolution: pixels}", "context_crf", "loss.resolution"),
        ("run: {freeze_backbone: true, cache_features: true}", "crf_rnn", "run.cache_features"),
    ],
)
def test_what_a_file_sets_and_the_system_does_not_use_is_refused(
    text: str, system: str, path: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    choose_config(file=file)
    said = f"{file}: {path} is not for the system {system}; remove it, or leave --system out"
    with pytest.raises(InputError) as caught:
        choose_config(file=file, system=system)
    assert str(caught.value) == said


def test_what_a_file_sets_is_as_hard_as_single_settings(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: tiny\nmodel: {head: {iterations: 2}}\ndata: {val_limit: 5}\nrun: {epochs: 4, steps: 9}")
    for line, said in (
        ("model.head=unary", 'there is no setting "model.head.iterations" for unary'),
        ("data.val_split=null", "val_limit is for images to score"),
    ):
        with pytest.raises(InputError, match=said):
            choose_config(file=file, settings=[line])
    changed = choose_config(file=file, settings=["model.head.hidden=3", "data.val_limit=null", "data.val_split=null"])
    assert (changed.model.head["iterations"], changed.run.epochs, changed.run.steps) == (2, 4, 9)
    assert choose_config(file=file, epochs=3).run.steps is None
    file.write_text("preset: fast\nmodel: {neck: null}\n")  # the head of the preset is still soft
    assert choose_config(file=file, settings=["model.neck.filters=1"]).model.neck is not None
    assert choose_config(file="fast", system="fcn8s").model.neck is None


@pytest.mark.parametrize("preset", ["default", "tiny", "fast"])
def test_the_saved_settings_of_a_run_are_another_preset(preset: str, tmp_path: Path) -> None:
    config = override(load_config(preset), ["run.steps=3"])
    file = save_config(config, tmp_path / "config.yaml")
    assert choose_config(file=file) == config
    assert choose_config(file=file, system="message") == config
    assert choose_config(file=file, system="unary") == apply_system(config, "unary")
    assert choose_config(file=file, epochs=2).run.steps is None
    saved = save_config(apply_system(config, "context_crf"), tmp_path / "crf.yaml")
    assert choose_config(file=saved, system="context_crf") == load_config(saved)
    assert choose_config(file=saved, system="unary").model.head["kind"] == "unary"


def test_an_optimiser_keeps_the_rates_of_another() -> None:
    paper = load_config("paper-vgg16")
    adamw = override(paper, {"optimiser.kind": "adamw"}).optimiser
    assert adamw == {"kind": "adamw", "lr": 0.01, "backbone_lr": 0.1, "weight_decay": 5e-4, "clip": 5.0}


def test_settings_are_named_by_text() -> None:
    with pytest.raises(InputError, match=r"^a setting is named 1; give its path as text, such as run\.epochs$"):
        override(TrainConfig(), {1: 2})
    with pytest.raises(InputError, match=r'^"1" sets nothing; write section\.name=value'):
        override(TrainConfig(), [1])
