"""What every loss promises, checked for every system that it trains; a new one is one line of `oracles.systems`."""

from __future__ import annotations

import pytest
import torch

from messagenet import InputError
from messagenet.settings import build, component, kinds
from oracles.systems import LOSSES, SIZES, SYSTEMS, TRAININGS, VOID, fits, pad_together, random_batch, with_features

pytestmark = pytest.mark.filterwarnings("ignore:.*on an image this small")


def test_every_loss_is_under_test():
    assert {name.partition(",")[0] for name in LOSSES} == set(kinds("loss"))
    for name in LOSSES:
        assert any(loss == name for _, loss in TRAININGS)


@pytest.fixture(params=TRAININGS, ids=lambda pair: " | ".join(pair))
def training(request):
    """A model, and the loss that trains it."""
    system, loss = request.param
    model = SYSTEMS[system].build()
    return model, LOSSES[loss]()


def gradients(model, loss):
    parameters = list(model.head.parameters()) + list(model.neck.parameters() if model.neck else ())
    found = torch.autograd.grad(loss.total, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    ]


def summed(model, loss, batches):
    """Total, count and gradients over several batches, as accumulation adds them."""
    parts = [loss(model, batch) for batch in batches]
    all_gradients = [gradients(model, part) for part in parts]
    return (
        sum(part.total for part in parts),
        sum(part.count for part in parts),
        [sum(each) for each in zip(*all_gradients, strict=True)],
    )


class TestEveryLoss:
    def test_however_images_are_batched_the_sums_are_the_same(self, training):
        """1×4 = 2×2 = 4×1, padded with NaN: total, count and gradients."""
        model, loss = training
        batches = [with_features(model, batch) for batch in random_batch(SIZES)]
        total, count, of_parameters = summed(model, loss, batches)
        assert count > 0
        for size in (2, 4):
            groups = [pad_together(batches[start : start + size]) for start in range(0, 4, size)]
            found = summed(model, loss, groups)
            torch.testing.assert_close(found[0], total, rtol=1e-9, atol=1e-9)
            assert found[1] == count
            for gradient, right in zip(found[2], of_parameters, strict=True):
                torch.testing.assert_close(gradient, right, rtol=1e-9, atol=1e-9)

    def test_rubbish_in_the_padding_is_not_read(self, training):
        model, loss = training
        batches = [with_features(model, batch) for batch in random_batch(SIZES)]
        first, second = (loss(model, pad_together(batches, fill)) for fill in (torch.nan, 1e4))
        assert first.total.isfinite()
        torch.testing.assert_close(first.total, second.total, rtol=1e-9, atol=1e-9)

    def test_cached_features_stand_for_images(self, training):
        model, loss = training
        for sizes in (SIZES[:1], [(33, 45)] * 3):
            batch = pad_together(random_batch(sizes))
            with_images, cached = loss(model, batch), loss(model, with_features(model, batch))
            torch.testing.assert_close(cached.total, with_images.total, rtol=1e-12, atol=1e-12)
            assert cached.count == with_images.count

    def test_void_does_not_count(self, training):
        model, loss = training
        (batch,) = random_batch(SIZES[:1])
        nothing = loss(model, batch._replace(target=torch.full_like(batch.target, VOID)))
        assert nothing.count == 0
        assert abs(float(nothing.total.detach())) < 1e-9
        assert not any(gradient.abs().max() > 1e-12 for gradient in gradients(model, nothing))
        labelled = loss(model, batch)
        assert labelled.mean > 0
        torch.testing.assert_close(labelled.mean, labelled.total / labelled.count)

    def test_what_is_missing_is_named(self, training):
        model, loss = training
        (batch,) = random_batch(SIZES[:1])
        with pytest.raises(InputError, match="no target"):
            loss(model, batch._replace(target=None))
        with pytest.raises(InputError, match="neither images nor features"):
            loss(model, batch._replace(images=None))


@pytest.mark.parametrize("kind", kinds("loss"))
def test_losses_are_built_from_their_settings(kind):
    loss = build("loss", kind)
    assert loss.config == component("loss", kind)
    assert build("loss", loss.config).config == loss.config
    with pytest.raises(InputError, match=rf'there is no setting "loss\.volume" for {kind}'):
        build("loss", {"kind": kind, "volume": 11})


@pytest.mark.parametrize("loss", [name for name in LOSSES if not fits(name, "message")])
def test_a_loss_that_does_not_fit_names_the_head(loss):
    (batch,) = random_batch(SIZES[:1])
    with pytest.raises(InputError, match=r"choose the head|in the head"):
        LOSSES[loss]()(SYSTEMS["message"].build(), batch)
