"""The overlay: labels, uncertainty, iterations, and two results side by side."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from playwright.sync_api import expect

from explorer.page.browsing import (
    AT_POINTS,
    IMAGE,
    NODE,
    POINTS,
    X,
    Y,
    class_colours,
    click_pixel,
    colours,
    set_range,
    values,
)
from messagenet.report.images import entropy_image


def test_labels_and_shares_are_those_of_the_library(photo_page, models, oracle):
    labels = oracle.labels(2)
    set_range(photo_page, "#opacity", 100)
    np.testing.assert_array_equal(colours(photo_page, POINTS)[:, :3], class_colours(models, labels))
    counts = Counter(labels.ravel().tolist())
    for id, name in enumerate(models[0].model.classes.names):
        if counts[id]:
            (share,) = values(photo_page, f'.class[data-class="{name}"] data')
            assert share == pytest.approx(counts[id] / labels.size)


def test_a_class_can_be_switched_off(photo_page, models, oracle):
    labels = oracle.labels(2)
    id = int(np.bincount(labels.ravel()).argmax())
    set_range(photo_page, "#opacity", 100)
    switch = photo_page.locator(f'.class[data-class="{models[0].model.classes.names[id]}"]')
    switch.press("Space")
    expect(switch).to_have_attribute("aria-checked", "false")
    expect(switch).to_be_focused()
    of_class = np.array([labels[position] == id for position in AT_POINTS])
    as_labels = (colours(photo_page, POINTS)[:, :3] == class_colours(models, labels)).all(1)
    assert as_labels[~of_class].all()
    assert not as_labels[of_class].any()
    photo_page.click("#all-on")
    assert (colours(photo_page, POINTS)[:, :3] == class_colours(models, labels)).all()


def test_uncertainty_is_that_of_the_report(photo_page, oracle):
    set_range(photo_page, "#opacity", 100)
    photo_page.get_by_label("Uncertainty").check(force=True)
    image = np.asarray(entropy_image(oracle.marginals(2)))
    expected = np.array([image[position] for position in AT_POINTS])
    difference = np.abs(colours(photo_page, POINTS)[:, :3] - expected)
    assert difference.mean() < 4  # the canvas is larger than the map, and smooths it
    expect(photo_page.locator("#entropy-legend")).to_contain_text("log 9 = 2.20 nats")


def test_stepping_through_the_iterations(photo_page, oracle, models):
    set_range(photo_page, "#opacity", 100)
    click_pixel(photo_page, IMAGE, X, Y)
    chosen = models[0].model.classes.names[int(photo_page.locator("#chosen").input_value())]
    expect(photo_page.locator("#step-text")).to_contain_text("t = 2")
    photo_page.locator("#iteration").press("ArrowLeft")
    expect(photo_page.locator("#step-text")).to_contain_text("t = 1")
    (changed,) = values(photo_page, "#changed")
    assert changed == pytest.approx((oracle.labels(1) != oracle.labels(0)).mean())
    expect(photo_page.locator("#after-heading")).to_have_text("t = 1")
    assert len(values(photo_page, ".part")) == 4
    np.testing.assert_array_equal(colours(photo_page, POINTS)[:, :3], class_colours(models, oracle.labels(1)))
    photo_page.locator("#surface").press(",")
    expect(photo_page.locator("#step-text")).to_contain_text("before messages")
    expect(photo_page.locator("#after-heading")).to_have_text("t = 0")
    assert len(values(photo_page, ".part")) == 1
    logits = oracle.logits(0)[0, models[0].model.classes.names.index(chosen), NODE[0], NODE[1]]
    assert values(photo_page, "data.total") == pytest.approx([float(logits)], abs=1e-5)


def test_playing_the_iterations(photo_page):
    photo_page.clock.install()
    photo_page.click("#play")
    expect(photo_page.locator("#step-text")).to_contain_text("t = 0")
    for t in (1, 2):
        photo_page.clock.run_for(1000)
        expect(photo_page.locator("#step-text")).to_contain_text(f"t = {t}")
    expect(photo_page.locator("#play")).to_have_attribute("aria-label", "Play the iterations")


def test_the_swipe_shows_one_result_on_either_side(photo_page, models, oracle):
    set_range(photo_page, "#opacity", 100)
    photo_page.locator("#compare").check()
    handle = photo_page.locator("#handle")
    expect(photo_page.locator("#left-tag")).to_have_text("messages, t = 0")
    expect(photo_page.locator("#right-tag")).to_have_text("messages, t = 2")
    left, right = (class_colours(models, oracle.labels(t)) for t in (0, 2))
    (agreement,) = values(photo_page, "#agreement data")
    assert agreement == pytest.approx((oracle.labels(0) == oracle.labels(2)).mean())

    def check(share: float) -> None:
        expect(handle).to_have_attribute("aria-valuenow", str(round(100 * share)))
        on_left = np.array([x < share for x, _ in POINTS])[:, None]
        np.testing.assert_array_equal(colours(photo_page, POINTS)[:, :3], np.where(on_left, left, right))

    check(0.5)
    frame = photo_page.locator("#frame").bounding_box()
    middle = frame["y"] + frame["height"] / 2
    photo_page.mouse.move(frame["x"] + frame["width"] / 2, middle)
    photo_page.mouse.down()
    photo_page.mouse.move(frame["x"] + frame["width"] * 0.25, middle, steps=3)
    photo_page.mouse.up()
    check(0.25)
    handle.press("PageUp")
    handle.press("ArrowRight")
    check(0.37)
    handle.press("Home")
    check(0.0)
    photo_page.locator("#compare-with").select_option("alone, t = 0")
    expect(photo_page.locator("#left-tag")).to_have_text("alone, t = 0")
    photo_page.locator("#compare").uncheck()
    expect(handle).to_be_hidden()
