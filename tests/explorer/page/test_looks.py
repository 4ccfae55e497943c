"""The page on a phone, in the dark, for those who cannot see it, and the screenshots of it in the docs.

With EXPLORER_PICTURES set to the folder of a `messagenet demo`, its models are shown and the screenshots in
docs/images are taken again; otherwise the same steps are taken with untrained models and nothing is written.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from explorer.page.browsing import PHONE, opened, scene, upload
from explorer.running import running_server
from messagenet.explorer.models import load_models

DEMO = os.environ.get("EXPLORER_PICTURES")
SHARPNESS = 1.5 if DEMO else 1
IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"
LUMINANCE = """(names) => {
    const probe = document.body.appendChild(document.createElement("span"));
    return Object.fromEntries(names.map((name) => {
        probe.style.color = `var(${name})`;
        const [r, g, b] = getComputedStyle(probe).color.match(/[0-9.]+/g).map((value) => {
            const share = value / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return [name, 0.2126 * r + 0.7152 * g + 0.0722 * b];
    }));
}"""
UNNAMED = """() => [...document.querySelectorAll("button, input, select, [tabindex], a")]
    .filter((element) => element.checkVisibility() && !element.closest("[aria-hidden=true]"))
    .filter((element) => !(element.ariaLabel || element.innerText.trim() || element.labels?.length
        || element.querySelector("img[alt]")))
    .map((element) => element.outerHTML)"""


@pytest.fixture(scope="module")
def url(models):
    if DEMO:
        models = load_models([Path(DEMO, name, "best") for name in ("messages", "unary")])
    with running_server(models) as (host, port):
        yield f"http://{host}:{port}/"


def screenshot(page, name: str) -> None:
    """Saves a screenshot for the docs, if EXPLORER_PICTURES is set."""
    if DEMO:
        IMAGES.mkdir(exist_ok=True)
        page.mouse.move(0, 0)
        page.wait_for_timeout(400)
        page.screenshot(path=IMAGES / f"explorer-{name}.png")


def explain(page, x: float, y: float) -> None:
    """Clicks at shares of the image's width and height."""
    rect = page.locator("#surface").bounding_box()
    page.mouse.click(rect["x"] + x * rect["width"], rect["y"] + y * rect["height"])
    expect(page.locator("#node")).to_be_visible()


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_either_theme(chromium, url, scheme):
    with opened(chromium, url, color_scheme=scheme) as page:
        names = ["--ink", "--soft", "--danger", "--paper", "--panel", "--danger-paper", "--for", "--against"]
        light = page.evaluate(LUMINANCE, names)
    assert (light["--paper"] > 0.5) == (scheme == "light")
    for text in ("--ink", "--soft"):
        assert contrast(light[text], light["--paper"]) >= 4.5
        assert contrast(light[text], light["--panel"]) >= 4.5
    assert contrast(light["--danger"], light["--danger-paper"]) >= 4.5
    for bar in ("--for", "--against"):
        assert contrast(light[bar], light["--paper"]) >= 3


def test_the_theme_is_remembered(chromium, url):
    with opened(chromium, url, color_scheme="dark") as page:
        background = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(background)
        page.click("#theme")
        expect(page.locator("#theme")).to_have_text("Theme: light")
        light = page.evaluate(background)
        assert light != dark
        page.reload()
        expect(page.locator("#theme")).to_have_text("Theme: light")
        assert page.evaluate(background) == light


def test_a_tour(chromium, url):
    with opened(chromium, url, device_scale_factor=SHARPNESS) as page:
        for index in (2, 1):
            page.locator(".sample").nth(index - 1).click()
            named = re.compile(f"scene-{index}.png")
            expect(page.locator("#surface")).to_have_attribute("aria-label", named)
        explain(page, 0.3, 0.65)
        assert page.evaluate(UNNAMED) == []
        screenshot(page, "node")
        page.locator("#compare").check()
        expect(page.locator("#handle")).to_be_visible()
        assert page.evaluate(UNNAMED) == []
        page.get_by_label("Uncertainty").check(force=True)
        page.evaluate("scrollTo(0, 0)")
        screenshot(page, "compare")


def test_a_tour_in_the_dark(chromium, url):
    with opened(chromium, url, color_scheme="dark", device_scale_factor=SHARPNESS) as page:
        page.locator(".sample").nth(1).click()
        expect(page.locator("#status")).to_contain_text("nodes")
        explain(page, 0.5, 0.5)
        page.locator(".sender").nth(3).focus()
        page.evaluate("scrollTo(0, 0)")
        screenshot(page, "dark")


def test_a_phone_has_one_column_and_keeps_the_image_in_view(chromium, url):
    with opened(chromium, url, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2) as page:
        page.locator(".sample").first.tap()
        expect(page.locator("#status")).to_contain_text("nodes")
        rect = page.locator("#surface").bounding_box()
        page.touchscreen.tap(rect["x"] + 0.3 * rect["width"], rect["y"] + 0.65 * rect["height"])
        expect(page.locator("#node")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        assert page.evaluate("document.getElementById('overlay').width") == pytest.approx(2 * rect["width"], abs=2)
        page.locator("#why-title").evaluate("(title) => title.scrollIntoView({block: 'center'})")
        sticky = page.locator("#frame").bounding_box()
        assert sticky["y"] == pytest.approx(0, abs=2)
        page.locator("#why-title").evaluate("() => scrollBy(0, -80)")
        screenshot(page, "phone")


def test_a_finger_moves_the_swipe_handle(chromium, url):
    with opened(chromium, url, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        upload(page, scene())
        page.locator("#compare").check()
        rect = page.locator("#frame").bounding_box()
        y = rect["y"] + rect["height"] / 2
        touch = page.context.new_cdp_session(page)
        for kind, share in (("touchStart", 0.5), ("touchMove", 0.6), ("touchMove", 0.7), ("touchEnd", None)):
            points = [] if share is None else [{"x": rect["x"] + share * rect["width"], "y": y}]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        expect(page.locator("#handle")).to_have_attribute("aria-valuenow", "70")
