"""What every head promises, checked for every system of `oracles.systems`: a new one is one line there."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch
from torch import nn

from messagenet import InputError
from messagenet.geometry import map_size
from messagenet.losses import CrossEntropy
from messagenet.models import Head, SegmentationModel
from messagenet.settings import build, component, find, kinds, options
from oracles.systems import CLASSES, SIZES, SYSTEMS, VOID, batch_logits, pad_together, random_batch, with_features

pytestmark = pytest.mark.filterwarnings("ignore:.*on an image this small")


def test_every_head_is_under_test():
    assert {system.head["kind"] for system in SYSTEMS.values()} == set(kinds("head"))


INFERS = ("crf", "deeplab_crf", "crf_rnn")
"""Heads that run inference on potentials; it refuses NaN by itself."""


@pytest.fixture(params=SYSTEMS)
def name(request):
    return request.param


@pytest.fixture
def model(name):
    return SYSTEMS[name].build()


def images_of(size=(33, 45), count=1, seed=1):
    return torch.rand(count, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class TestEveryHead:
    @pytest.mark.parametrize("size", [(1, 1), (8, 5), (33, 45)])
    def test_any_image_size_gives_marginals_at_its_pixels(self, model, size):
        images = images_of(size, 2)
        with torch.no_grad():
            logits, marginals = model(images), model.marginals(images)
        assert logits.shape == (2, CLASSES, *(-int(-side // model.output_stride) for side in size))
        assert marginals.shape == (2, CLASSES, *size)
        torch.testing.assert_close(marginals.sum(1), torch.ones_like(marginals[:, 0]))

    def test_padded_maps_get_the_logits_they_have_alone(self, model):
        batches = [with_features(model, batch) for batch in random_batch(SIZES)]
        with torch.no_grad():
            together = batch_logits(model, pad_together(batches))
            for index, batch in enumerate(batches):
                alone = batch_logits(model, batch)
                rows, columns = alone.shape[2:]
                own = together[index]
                torch.testing.assert_close(own[:, :rows, :columns], alone[0], rtol=1e-9, atol=1e-9)
                assert (own[:, rows:] == 0).all()
                assert (own[:, :, columns:] == 0).all()

    def test_images_of_a_batch_do_not_meet(self, model):
        images = images_of(count=3)
        with torch.no_grad():
            alone = torch.cat([model(image[None]) for image in images])
            torch.testing.assert_close(model(images), alone, rtol=1e-9, atol=1e-9)

    def test_parts_make_the_whole(self, model):
        images = images_of(count=2)
        with torch.no_grad():
            features = model.forward_features(images)
            logits = model.forward_head(features, size=(33, 45), images=images)
            assert torch.equal(logits, model(images))
            train, stride = model.forward_train(features, size=(33, 45), images=images)
        assert stride in (model.feature_stride, model.output_stride)
        assert train.shape == (2, CLASSES, *(-int(-side // stride) for side in (33, 45)))

    def test_every_parameter_is_trained(self, model):
        images, target = images_of((40, 48), 2), torch.randint(0, CLASSES, (2, 40, 48))
        (batch,) = random_batch([(40, 48)])
        CrossEntropy()(model.train(), batch._replace(images=images, target=target)).total.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
        for name, parameter in model.head.named_parameters():
            assert parameter.grad.abs().sum() > 0, name

    def test_features_with_nan_are_refused_unless_not_looked_for(self, model):
        if isinstance(model.head, Head) and model.head.level_strides:
            pytest.skip("scores levels as they are")
        features = model.forward_features(images_of())
        maps = features if isinstance(features, dict) else {"": features}
        for each in maps.values():
            each.detach()[0, 0, 0, 0] = torch.nan
        with pytest.raises(InputError, match="NaN or infinity"):
            model.forward_head(features, size=(33, 45), images=images_of())
        model.skip_finite_checks()
        if model.config["head"]["kind"] not in INFERS:
            assert model.forward_head(features, size=(33, 45)).isnan().any()

    def test_saved_loaded_copied_and_sent_it_is_the_same(self, model, tmp_path):
        images = images_of(count=2)
        with torch.no_grad():
            wanted = model(images)
            loaded = SegmentationModel.from_pretrained(model.save(tmp_path / "model"))
            others = (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
            for other in others:
                assert other.config == model.config
                assert other.input == model.input
                assert other.relations == model.relations
                assert not other.training
                assert torch.equal(other(images), wanted)
        again = loaded.save(tmp_path / "again")
        for file in ("config.json", "model.safetensors"):
            assert (again / file).read_bytes() == (tmp_path / "model" / file).read_bytes()

    def test_its_state_is_all_there_is(self, name, model):
        other = SYSTEMS[name].build(seed=1)
        images = images_of()
        with torch.no_grad():
            assert not torch.equal(other(images), model(images))
            other.load_state_dict(model.state_dict())
            assert torch.equal(other(images), model(images))

    def test_its_configuration_rebuilds_it(self, model):
        config = json.loads(json.dumps(model.config))
        again = SegmentationModel(classes=model.input, **config)
        assert again.config == model.config
        assert [(n, p.shape) for n, p in again.named_parameters()] == [
            (n, p.shape) for n, p in model.named_parameters()
        ]
        assert component("head", config["head"]) == config["head"]
        assert set(config["head"]) == {"kind", *options(find("head", config["head"]["kind"]))}

    def test_tuned_settings_are_saved(self, model, tmp_path):
        for name, values in model.head.tunable.items() if hasattr(model.head, "tunable") else ():
            model.set_tunable(**{name: values[0]})
            loaded = SegmentationModel.from_pretrained(model.save(tmp_path))
            assert getattr(loaded.head, name) == values[0]
            assert loaded.config == model.config
            with torch.no_grad():
                assert torch.equal(loaded(images_of()), model(images_of()))
            other = copy.deepcopy(model)
            other.set_tunable(**{name: values[-1]})
            assert getattr(model.head, name) == model.config["head"][name] == values[0]
            assert SegmentationModel.from_pretrained(other.save(tmp_path)).config == other.config
        with pytest.raises(InputError, match="has no setting 'volume' to tune"):
            model.set_tunable(volume=11)

    def test_settings_of_other_kinds_are_refused_by_name(self, model):
        with pytest.raises(InputError, match=r'there is no setting "head\.hiden"'):
            SegmentationModel(model.config["backbone"], CLASSES, {**model.config["head"], "hiden": 3})


SINGLE_MAP = [
    name
    for name, system in SYSTEMS.items()
    if not system.separate_features
    and system.neck is None
    and system.head["kind"] not in ("fcn8s", "deconvnet", "crf_rnn")
]


@pytest.fixture(params=SINGLE_MAP)
def head(request):
    torch.manual_seed(0)
    spec = SYSTEMS[request.param].head
    head = build("head", spec, in_channels=4, num_classes=CLASSES, feature_stride=4.0).double().eval()
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.5)
    return head


class TestHeadsOnOneMap:
    """On features alone; a dense CRF by what it trains."""

    @staticmethod
    def logits(head, features, mask=None):
        return getattr(head, "forward_train", head)(features, mask)

    def test_gradients_are_those_of_differences(self, head):
        torch.manual_seed(1)
        features = torch.randn(1, 4, 3, 4, dtype=torch.float64, requires_grad=True)
        mask = torch.ones(1, 3, 4, dtype=torch.bool)
        mask[0, 1, 1] = False
        weights = torch.randn(1, CLASSES, 3, 4, dtype=torch.float64)

        def total(features):
            return (self.logits(head, features, mask).log_softmax(1) * weights).sum()

        assert torch.autograd.gradcheck(total, (features,))

    def test_nodes_that_do_not_exist_are_neither_read_nor_answered(self, head):
        torch.manual_seed(1)
        features = torch.randn(2, 4, 6, 7, dtype=torch.float64)
        mask = torch.ones(2, 6, 7, dtype=torch.bool)
        mask[1, 2, 3] = False
        changed = features.clone()
        changed[1, :, 2, 3] = torch.nan
        logits = self.logits(head, features, mask)
        assert (logits[1, :, 2, 3] == 0).all()
        torch.testing.assert_close(self.logits(head, changed, mask), logits, rtol=0, atol=0)

    def test_bad_features_name_the_fix(self, head):
        with pytest.raises(InputError, match=r"\(batch, 4, height, width\)|have 5 channels|4 channels"):
            self.logits(head, torch.zeros(1, 5, 3, 3, dtype=torch.float64))
        broken = torch.zeros(1, 4, 3, 3, dtype=torch.float64)
        broken[0, 0, 0, 0] = torch.nan
        with pytest.raises(InputError, match="NaN"):
            self.logits(head, broken)
        head.check_finite = False
        if head.config["kind"] != "crf":
            assert self.logits(head, broken).isnan().any()


@pytest.mark.parametrize("kind", [kind for kind in kinds("head") if kind not in ("fcn8s", "deconvnet")])
def test_heads_that_cannot_classify_are_refused(kind):
    for sizes, words in (((4, 1), "at least 2 classes"), ((0, 3), "in_channels")):
        with pytest.raises(InputError, match=words):
            build("head", kind, in_channels=sizes[0], num_classes=sizes[1], feature_stride=4.0)


class Patches(nn.Module):
    """A backbone of one's own: one linear map per 8×8 patch."""

    channels, stride = 5, 8

    def __init__(self):
        super().__init__()
        self.project = nn.Conv2d(3, 5, 8, 8)

    def forward(self, images):
        return self.project(images)


class Masked(nn.Conv2d):
    """A head of one's own that is told which nodes exist."""

    def forward(self, features, mask=None):
        self.seen = mask
        return super().forward(features)


PLAIN = {
    "1×1": lambda: nn.Conv2d(5, CLASSES, 1),
    "3×3": lambda: nn.Conv2d(5, CLASSES, 3, padding=1),
    "sequence": lambda: nn.Sequential(nn.Conv2d(5, 7, 1), nn.ReLU(), nn.Conv2d(7, CLASSES, 1)),
}


class TestPlainModules:
    def build(self, head="1×1", **options):
        torch.manual_seed(0)
        return SegmentationModel(Patches(), CLASSES, PLAIN[head](), **options).double().eval()

    @pytest.mark.parametrize("head", PLAIN)
    def test_padded_maps_get_the_logits_and_loss_they_have_alone(self, head):
        model = self.build(head)
        batches = [with_features(model, batch) for batch in random_batch(SIZES)]
        whole = pad_together(batches)
        together = batch_logits(model, whole)
        total = count = 0
        for index, batch in enumerate(batches):
            alone = batch_logits(model, batch)
            rows, columns = alone.shape[2:]
            torch.testing.assert_close(together[index, :, :rows, :columns], alone[0], rtol=1e-9, atol=1e-9)
            assert (together[index, :, rows:] == 0).all()
            assert (together[index, :, :, columns:] == 0).all()
            loss = CrossEntropy()(model, batch)
            total, count = total + loss.total, count + loss.count
        loss = CrossEntropy()(model, whole)
        torch.testing.assert_close(loss.total, total, rtol=1e-9, atol=1e-9)
        assert loss.count == count

    def test_a_module_with_a_parameter_for_the_mask_gets_it(self):
        model = SegmentationModel(Patches(), CLASSES, Masked(5, CLASSES, 1))
        sizes = torch.tensor([[16, 16], [16, 8]])
        model(torch.rand(2, 3, 16, 16), sizes)
        assert model.head.seen.tolist() == [[[True, True]] * 2, [[True, False]] * 2]
        model(torch.rand(2, 3, 16, 16))
        assert model.head.seen is None

    def test_a_neck_of_ones_own_says_how_many_channels_it_has(self, tmp_path):
        neck = nn.Conv2d(5, 7, 1)
        with pytest.raises(InputError, match='the neck Conv2d has no attribute "channels"'):
            SegmentationModel(Patches(), CLASSES, "unary", neck=neck)
        neck.channels = 7
        model = SegmentationModel(Patches(), CLASSES, {"kind": "unary", "hidden": 4}, neck=neck).eval()
        assert model.head.in_channels == 7
        images, sizes = torch.rand(2, 3, 16, 24), torch.tensor([[16, 24], [9, 24]])
        assert (model(images, sizes)[1, :, 2:] == 0).all()
        model.save(tmp_path)
        with pytest.raises(InputError, match="with a backbone of its owner's"):
            SegmentationModel.from_pretrained(tmp_path)
        with pytest.raises(InputError, match=r"from_pretrained\(folder, neck=\.\.\.\)"):
            SegmentationModel.from_pretrained(tmp_path, backbone=Patches())
        fresh = nn.Conv2d(5, 7, 1)
        fresh.channels = 7
        loaded = SegmentationModel.from_pretrained(tmp_path, backbone=Patches(), neck=fresh)
        assert torch.equal(loaded(images, sizes), model(images, sizes))

    def test_own_parts_come_back_when_passed(self, tmp_path):
        model = self.build()
        model.save(tmp_path)
        with pytest.raises(InputError, match=r"pass it: from_pretrained\(folder, backbone=\.\.\.\)"):
            SegmentationModel.from_pretrained(tmp_path)
        with pytest.raises(InputError, match=r"pass it: from_pretrained\(folder, head=\.\.\.\)"):
            SegmentationModel.from_pretrained(tmp_path, backbone=Patches())
        loaded = SegmentationModel.from_pretrained(tmp_path, backbone=Patches(), head=PLAIN["1×1"]())
        images = images_of()
        assert torch.equal(loaded(images), model(images))
        assert torch.equal(copy.deepcopy(model)(images), model(images))

    def test_they_take_part_in_nothing_they_cannot(self):
        with pytest.raises(InputError, match="Conv2d reads one feature map"):
            SegmentationModel("tiny", CLASSES, nn.Conv2d(32, 3, 1), separate_features=True)
        with pytest.raises(InputError, match="give its kind"):
            SegmentationModel(Patches(), CLASSES, "message", separate_features=True)
        with pytest.raises(InputError, match="has no setting 'volume' to tune"):
            self.build().set_tunable(volume=11)
        self.build().skip_finite_checks()
        assert self.build().relations == ()
        assert self.build().needs_images == frozenset()

    def test_a_configuration_that_is_not_ours_is_no_kind(self, tmp_path):
        """Modules of other libraries have a `config` of their own."""
        backbone = Patches()
        backbone.config = {"hidden_size": 5}
        model = SegmentationModel(backbone, CLASSES, {"kind": "unary", "hidden": 4}).eval()
        assert model.config["backbone"] is None
        model.save(tmp_path)
        loaded = SegmentationModel.from_pretrained(tmp_path, backbone=Patches())
        assert torch.equal(loaded(images_of().float()), model(images_of().float()))


@pytest.mark.parametrize("name", ["message", "message, T = 2, cavity", "unary", "plain"])
def test_whole_models_compile_without_a_break(name):
    model = TestPlainModules().build() if name == "plain" else SYSTEMS[name].build()
    images = images_of(count=2)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.parametrize("name", ["plain", *(name for name in SYSTEMS if SYSTEMS[name].head["kind"] not in INFERS)])
def test_whole_models_are_exported(name):
    """Without the heads that infer: their inference looks at values, which PyTorch's tracer has none of."""
    model = TestPlainModules().build() if name == "plain" else SYSTEMS[name].build()
    images = images_of(count=2)
    with torch.no_grad():
        torch.testing.assert_close(torch.export.export(model, (images,)).module()(images), model(images))


def test_void_is_left_out(model):
    (batch,) = random_batch([(33, 45)])
    nothing = CrossEntropy()(model, batch._replace(target=torch.full((1, 33, 45), VOID)))
    assert nothing.count == 0
    assert nothing.mean == 0


def test_maps_by_name_have_the_size_of_the_first():
    assert map_size({"8": torch.zeros(1, 2, 4, 6), "16": torch.zeros(1, 2, 2, 3)}) == (4, 6)
