"""Every system through the same doors: trained, saved, loaded, used to predict, scored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from messagenet.data import Batch
from messagenet.data.classes import numbered_classes
from messagenet.errors import InputError
from messagenet.models import SegmentationModel
from messagenet.prediction import PredictOptions, Predictor, score
from messagenet.settings import build, find, kinds
from messagenet.training import DataSets, TrainConfig, TrainResult, load_config, override
from messagenet.training.build import build_model
from messagenet.training.config import choose_config
from messagenet.training.systems import SYSTEMS, apply_system, custom_system

HEAVY = "deeplab_mcl"  # VGG-16 at three scales
TRAINED = [name for name in SYSTEMS if name != HEAVY]
TINY = [name for name in TRAINED if name not in ("fcn8s", "deconvnet")]
SHARED = (
    "run.steps=2",
    "run.batch_size=2",
    "model.head.hidden=32",
    "model.backbone.width=32",
    "model.head.relations=[surrounding:3cells, above:3cells]",
)
LEVELS = (*SHARED, "model.backbone=efficientnet_lite0")


def test_every_head_and_every_loss_is_in_a_system() -> None:
    configs = [system.apply(TrainConfig()) for system in SYSTEMS.values()]
    assert {config.model.head["kind"] for config in configs} == set(kinds("head"))
    assert {config.loss["kind"] for config in configs} == set(kinds("loss"))
    assert {config.run.method for config in configs} == set(kinds("method"))


@pytest.mark.parametrize("system", TRAINED)
def test_trained_saved_loaded_and_scored(system: str, run: Callable[..., TrainResult], scenes: DataSets) -> None:
    result = run(system=system, shared=SHARED if system in TINY else LEVELS)
    config = load_config(result.folder / "config.yaml")
    assert result.steps == (2 if config.run.method == "gradient" else 1)
    model = SegmentationModel.from_pretrained(result.folder / "last")
    assert model.config["head"] == config.model.head
    again = SegmentationModel.from_pretrained(model.save(result.folder / "again"))
    images = torch.rand(2, 3, 41, 50)
    with torch.no_grad():
        assert torch.equal(model(images), again(images))
        nodes = [-(-side // int(model.output_stride)) for side in (41, 50)]
        assert model(images).shape == (2, model.classes.num_classes, *nodes)
    assert scenes.val is not None
    scores = score(Predictor(model), scenes.val)
    assert scores.mean_iou == pytest.approx(result.last_iou, abs=1e-6)


@pytest.mark.parametrize("system", TINY)
def test_every_parameter_learns(system: str, small: Callable[..., TrainConfig], scenes: DataSets) -> None:
    config = small(system=system, shared=SHARED)
    model = build_model(config, scenes.train.classes).model.train()
    sizes = torch.tensor([[32, 36], [32, 36]])
    target = torch.randint(0, 9, (2, 32, 36))
    loss = build("loss", config.loss)(model, Batch(torch.rand(2, 3, 32, 36), None, target, sizes, ("a", "b")))
    loss.mean.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("system", ["context_crf", "crf_rnn", "deeplab_crf", "inference_machine", "ensemble"])
def test_padding_changes_nothing(system: str, small: Callable[..., TrainConfig], scenes: DataSets) -> None:
    """On the tiny backbone, whose border repeats pixels, padding beyond whole cells is invisible."""
    config = small(system=system, shared=SHARED)
    model = build_model(config, scenes.train.classes).model.eval().double()
    small_image, large = torch.rand(1, 3, 24, 32).double(), torch.rand(1, 3, 40, 40).double()
    images = torch.zeros(2, 3, 40, 40).double()
    images[0, :, :24, :32], images[1] = small_image[0], large[0]
    images[0, :, 24:, :32] = small_image[0, :, -1:]
    images[0, :, :, 32:] = images[0, :, :, 31:32]
    sizes = torch.tensor([[24, 32], [40, 40]])
    with torch.no_grad():
        together, alone = model(images, sizes), model(small_image)
        cells = (int(24 // model.output_stride), int(32 // model.output_stride))
        torch.testing.assert_close(
            together[:1, :, : cells[0], : cells[1]].softmax(1), alone.softmax(1), rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(together[1:], model(large), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["deeplab_crf", "crf_rnn"])
@pytest.mark.parametrize("stride", [1, 2, 4])
def test_dense_crfs_work_on_tiles_and_views(kind: str, stride: int) -> None:
    model = SegmentationModel("tiny", 3, {"kind": kind, "hidden": 8, "working_stride": stride})
    image = np.random.default_rng(0).integers(0, 256, (70, 133, 3), dtype=np.uint8)
    plain = Predictor(model).marginals(image)
    assert plain.shape == (3, 70, 133)
    torch.testing.assert_close(plain.sum(0), torch.ones(70, 133))
    tiled = Predictor(model, PredictOptions(flip=True, scales=(1.0, 0.5), tile=64, overlap=32)).labels(image)
    assert tiled.shape == (70, 133)


@pytest.mark.parametrize(
    ("system", "settings", "words"),
    [
        ("context_crf", ("loss.resolution=pixels",), 'no setting "loss.resolution" for piecewise'),
        ("ensemble", ("loss.label_smoothing=0.1",), 'no setting "loss.label_smoothing" for member_cross_entropy'),
        ("crf_rnn", ("run.freeze_backbone=true", "run.cache_features=true"), "cache_features=false"),
        ("deeplab_crf", ("model.head.working_stride=3",), "model.head: .*choose 1, 2 or 4"),
        ("contextcrf", (), 'there is no system "contextcrf"; did you mean "context_crf"?'),
        ("unary", ("loss=piecewise",), "the loss piecewise is for the head crf, not unary"),
        ("fcn8s", ("model.neck.filters=1",), "the head fcn8s takes none; set model.neck=null"),
    ],
)
def test_what_cannot_be_is_said_before_training(
    small: Callable[..., TrainConfig], system: str, settings: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        build_model(small(*settings, system=system), numbered_classes(3))


@pytest.mark.parametrize("system", ["context_crf", "deeplab_crf", "inference_machine", "ensemble", "dilated"])
def test_cached_features_train_the_same_head(system: str, run: Callable[..., TrainResult]) -> None:
    frozen = "run.freeze_backbone=true"
    plain = run(frozen, name="plain", system=system, shared=SHARED)
    settings = (frozen, "run.cache_features=true", "run.cache_precision=fp32")
    cached = run(*settings, name="cached", system=system, shared=SHARED)
    first, second = (
        SegmentationModel.from_pretrained(result.folder / "last").state_dict() for result in (plain, cached)
    )
    for name, values in first.items():
        torch.testing.assert_close(values, second[name], rtol=1e-4, atol=1e-5)
    assert cached.last_iou == pytest.approx(plain.last_iou, abs=1e-4)


def test_pixels_and_smoothing_where_they_apply() -> None:
    for kind in ("fcn8s", "deconvnet", "deeplab_crf", "crf_rnn", "inference_machine", "convolution"):
        values = {"model.head": kind, "loss": {"resolution": "pixels", "label_smoothing": 0.1}}
        assert override(TrainConfig(), values).loss["label_smoothing"] == 0.1


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("preset", ["fast", "finetune", "tiny", "paper-vgg16"])
def test_every_preset_can_be_trained_as_every_system(system: str, preset: str) -> None:
    shared = load_config(preset)
    config = choose_config(data="folder:street", preset=preset, system=system)
    head, loss = find("head", config.model.head["kind"]), find("loss", config.loss["kind"])
    by_gradient = config.run.method == "gradient"  # other methods use no setting of the loss but cell_label
    assert hasattr(loss, "heads") or config.loss == (shared.loss if by_gradient else TrainConfig().loss)
    takes_neck = getattr(head, "takes_neck", True)
    assert config.model.neck == (shared.model.neck if takes_neck else None)
    for name, value in shared.model.head.items():  # systems are compared at equal sizes
        if name in ("hidden", "relations") and name in config.model.head:
            assert config.model.head[name] == value


@pytest.mark.parametrize("system", ["fcn8s", "deconvnet", "inference_machine", "machine_forward", "machine_dagger"])
def test_a_system_drops_the_neck_of_a_preset_but_not_one_that_was_set(system: str) -> None:
    assert load_config("finetune").model.neck is not None
    config = choose_config(data="folder:street", system=system)
    assert config.model.neck is None
    with pytest.raises(InputError, match=r"takes none; set model\.neck=null"):
        choose_config(data="folder:street", system=system, settings=["model.neck.filters=1"])


def test_a_system_drops_separate_features_where_the_head_reads_one_map() -> None:
    shared = override(load_config("tiny"), ["model.separate_features=true"])
    kept = {name for name in SYSTEMS if apply_system(shared, name).model.separate_features}
    assert {apply_system(shared, name).model.head["kind"] for name in kept} == {"message", "crf"}
    for name in kept:
        assert len(build_model(apply_system(shared, name), numbered_classes(3)).model.backbones) > 1


def test_a_crf_predicts_with_the_inference_it_was_learned_with_by_default() -> None:
    found = {}
    for system in ("context_crf", "crf_pseudo", "crf_likelihood"):
        for given in (None, "mean_field", "belief_propagation"):
            chosen = {} if given is None else {"model.head.inference": given}
            config = choose_config(data="synthetic", system=system, settings={"model.head.hidden": 4, **chosen})
            model = build_model(config, numbered_classes(3)).model
            found[system, given] = (model.config["head"]["inference"], model.head.inference)
    for (system, given), both in found.items():
        usual = "belief_propagation" if system == "crf_likelihood" else "mean_field"
        assert both == (given or usual,) * 2


def test_systems_keep_what_their_head_has_and_drop_the_rest() -> None:
    shared = override(load_config("tiny"), ["model.head.hidden=12", "model.head.iterations=3"])
    assert apply_system(shared, "message") == shared
    assert apply_system(shared, "message_t2").model.head["iterations"] == 2
    assert apply_system(shared, "unary").model.head == {"kind": "unary", "hidden": 12}
    assert apply_system(shared, "context_crf").model.head["hidden"] == 12
    back = apply_system(apply_system(shared, "unary"), "message").model.head
    assert (back["hidden"], back["iterations"]) == (12, 1)


def test_machines_lie_on_the_nodes_of_the_configured_backbone() -> None:
    for preset, stride in (("tiny", 4), ("fast", 8)):
        config = apply_system(load_config(preset), "inference_machine")
        assert (config.model.backbone["kind"], config.model.backbone["stride"]) == ("hand_crafted", stride)
        assert (config.model.pretrained, config.model.head["iterations"]) == (None, 3)


def test_systems_of_ones_own() -> None:
    shared = load_config("tiny")
    mine = custom_system("mine", ["context_crf", "optimiser.lr=1e-5", "model.head.neighbours=all"], "mine, all pairs")
    config = mine.apply(shared)
    assert (config.loss["kind"], config.optimiser["lr"], config.model.head["neighbours"]) == ("piecewise", 1e-5, "all")
    with pytest.raises(InputError, match=r'there is no system "unray"; did you mean "unary"\?'):
        custom_system("wrong", ["unray"])
    with pytest.raises(InputError, match=r'system wrong: there is no setting "model\.head\.iterations" for unary'):
        custom_system("wrong", ["unary", "model.head.iterations=2"]).apply(shared)


@pytest.mark.parametrize("system", ["message_t2", "message_t3"])
def test_more_iterations_of_a_preset_start_from_moderate_logits(system: str) -> None:
    config = override(apply_system(load_config("fast"), system), {"model.pretrained": None})
    model = build_model(config, numbered_classes(3)).model.eval()
    with torch.no_grad():
        logits = model.forward_head(model.forward_features(torch.rand(1, 3, 256, 256)), size=(256, 256))
    assert logits.abs().max() < 20
