"""One node explained: the numbers on the page are those of the library."""

from __future__ import annotations

import contextlib
import json
from collections import Counter

import numpy as np
import pytest
import torch
from playwright.sync_api import Error, expect

from explorer.page.browsing import (
    HEIGHT,
    IMAGE,
    NODE,
    WIDTH,
    Oracle,
    X,
    Y,
    as_shown,
    click_pixel,
    colours,
    drawn,
    press_pixel,
    upload,
    values,
)


def test_a_click_shows_the_numbers_of_the_library(photo_page, models, oracle):
    click_pixel(photo_page, IMAGE, X, Y)
    expect(photo_page.locator("#node-title")).to_have_text(f"Node at row {NODE[0]}, column {NODE[1]}")
    photo_page.click("#more-classes")
    names = models[0].model.classes.names
    before, after = (oracle.logits(t)[0, :, NODE[0], NODE[1]].double() for t in (0, 2))
    for kind, expected in {
        "unary-marginal": torch.softmax(before, 0),
        "marginal": torch.softmax(after, 0),
        "logit": after,
    }.items():
        shown = [values(photo_page, f'#bars [data-class="{name}"] .{kind}')[0] for name in names]
        assert shown == pytest.approx(expected.tolist(), abs=1e-5)

    for chosen in (int(after.argmax()), int(after.argmin())):
        photo_page.select_option("#chosen", str(chosen))
        for factor, total in oracle.totals(2, NODE).items():
            (part,) = values(photo_page, f'#waterfall [data-factor="{factor}"] .part')
            assert part == pytest.approx(float(total[chosen]), abs=1e-5)
        (total,) = values(photo_page, "data.total")
        assert total == pytest.approx(float(after[chosen]), abs=1e-5)
        assert sum(values(photo_page, ".part")) == pytest.approx(total, abs=1e-5)
        (shown_total,) = as_shown(photo_page, "data.total")
        assert sum(as_shown(photo_page, ".part")) == shown_total
        assert as_shown(photo_page, f'[data-class="{names[chosen]}"] .logit') == [shown_total]


def test_the_strongest_senders_are_listed_and_drawn(photo_page, oracle):
    click_pixel(photo_page, IMAGE, X, Y)
    chosen = int(photo_page.locator("#chosen").input_value())
    sent = [float(each.values[chosen]) for each in oracle.received(NODE) if each.senders]
    for side, sign in (("for", 1), ("against", -1)):
        strongest = sorted((sign * value for value in sent if sign * value > 0), reverse=True)[:5]
        shown = [sign * value for value in values(photo_page, f"#senders-{side} data")]
        assert shown == pytest.approx(strongest, abs=1e-6)
        assert all(as_shown(photo_page, f"#senders-{side} data")), "weak messages are not rounded to 0"
    before = drawn(photo_page, "#marks")
    photo_page.locator(".sender").first.focus()
    assert drawn(photo_page, "#marks") != before
    for relation in ("surrounding", "above", "below"):
        photo_page.locator(".relation", has_text=relation).click()
    photo_page.mouse.move(0, 0)
    cells = [((9.5 * 4) / WIDTH, (row + 0.5) * 4 / HEIGHT) for row in (5, 6, 8, 9)]
    assert (colours(photo_page, cells, "#marks")[:, 3] == 0).all()
    photo_page.locator(".relation", has_text="above").click()
    assert (colours(photo_page, cells, "#marks")[:, 3] > 0).tolist() == [True, True, False, False]


def test_messages_of_opposite_sign_have_opposite_hues(photo_page, oracle):
    click_pixel(photo_page, IMAGE, X, Y)
    chosen = int(photo_page.locator("#chosen").input_value())
    sums: Counter[tuple[int, int]] = Counter()
    for each in oracle.received(NODE):
        for sender in each.senders:
            sums[sender] += float(each.values[chosen])
    photo_page.mouse.move(0, 0)
    # Off the middle of the cells, where no line of a box runs.
    points = {s: ((s[1] + 0.4) * 4 / WIDTH, (s[0] + 0.6) * 4 / HEIGHT) for s in sums}
    strong = [sender for sender, total in sums.items() if abs(total) > 0.5 * max(map(abs, sums.values()))]
    red, _, blue, _ = colours(photo_page, [points[sender] for sender in strong], "#marks").T
    for sender, warmth in zip(strong, red - blue, strict=True):
        assert np.sign(warmth) == np.sign(sums[sender])


def test_a_class_against_a_rival(photo_page, oracle):
    click_pixel(photo_page, IMAGE, X, Y)
    logits = oracle.logits(2)[0, :, NODE[0], NODE[1]].double()
    first, second = logits.argsort(descending=True)[:2].tolist()
    photo_page.select_option("#rival", str(second))
    assert values(photo_page, "data.total") == pytest.approx([float(logits[first] - logits[second])], abs=1e-5)
    assert sum(as_shown(photo_page, ".part")) == as_shown(photo_page, "data.total")[0]


def test_a_box_sends_one_message(page, models):
    page.select_option("#model", "boxes")
    upload(page, IMAGE)
    click_pixel(page, IMAGE, X, Y)
    received = Oracle(models[1].model, IMAGE).received(NODE)
    chosen = int(page.locator("#chosen").input_value())
    (box,) = [each for each in received if len(each.senders) > 1]
    (part,) = values(page, '[data-factor="surrounding"] .part')
    assert part == pytest.approx(float(box.values[chosen]), abs=1e-5)
    expect(page.locator('[data-factor="surrounding"]')).to_contain_text(f"box of {len(box.senders)}")


def test_the_keyboard_alone_is_enough(photo_page, oracle):
    surface = photo_page.locator("#surface")
    surface.focus()
    surface.press("ArrowUp")
    expect(photo_page.locator("#cursor-status")).to_contain_text("Row 8, column 11")
    surface.press("Shift+ArrowLeft")
    surface.press("ArrowDown")
    expect(photo_page.locator("#cursor-status")).to_contain_text("Row 9, column 6")
    surface.press("Enter")
    expect(photo_page.locator("#node-title")).to_have_text("Node at row 9, column 6")
    logits = oracle.logits(2)[0, :, 9, 6]
    assert values(photo_page, "data.total") == pytest.approx([float(logits.max())], abs=1e-5)
    sender = photo_page.locator(".sender").first
    row, column = json.loads(sender.get_attribute("data-senders"))
    sender.press("Enter")
    expect(photo_page.locator("#node-title")).to_have_text(f"Node at row {row}, column {column}")
    surface.press("Escape")
    expect(photo_page.locator("#node")).to_be_hidden()


def test_a_model_without_messages_says_so(photo_page):
    click_pixel(photo_page, IMAGE, X, Y)
    photo_page.select_option("#model", "alone")
    expect(photo_page.locator("#no-node-text")).to_contain_text("passes no messages")
    expect(photo_page.locator("#steps")).to_be_hidden()
    photo_page.locator("#surface").click()
    expect(photo_page.locator("#node")).to_be_hidden()
    expect(photo_page.get_by_role("alert")).to_be_hidden()


def test_a_late_answer_is_not_shown_under_another_model(photo_page):
    late = []
    photo_page.route("**/explain", lambda route: late.append(route))
    with photo_page.expect_request("**/explain"):
        press_pixel(photo_page, IMAGE, X, Y)
    photo_page.wait_for_timeout(100)
    assert len(late) == 1
    photo_page.select_option("#model", "alone")
    expect(photo_page.locator("#status")).not_to_contain_text("Running")
    with contextlib.suppress(Error):
        late[0].continue_()
    photo_page.wait_for_timeout(300)
    expect(photo_page.locator("#node")).to_be_hidden()
    expect(photo_page.locator("#model")).to_have_value("alone")
