"""A real browser on a real server, and the numbers that the page must show, from the Python interface."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import torch
from playwright.sync_api import expect, sync_playwright
from torch import Tensor

from explorer.running import encoded
from messagenet.data import SyntheticScenes
from messagenet.explorer.models import ServedModel
from messagenet.geometry import upsample
from messagenet.message_passing.inspect import Received, received_messages
from messagenet.models import MessageNet

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
expect.set_options(timeout=30_000)  # milliseconds: a busy machine is no failure
DESK = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}


@contextmanager
def browser() -> Iterator[Any]:
    """Headless chromium."""
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """The page, ready; nothing may have gone wrong in it by the end that the server did not refuse."""
    context = browser.new_context(**{"viewport": DESK, "color_scheme": "light", **options})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.goto(url)
    page.wait_for_selector("body.ready")
    yield page
    context.close()
    assert not [line for line in problems if "Failed to load resource" not in line]


def scene(height: int = 70, width: int = 90) -> np.ndarray:
    """An image whose sides are no multiple of the nodes' stride."""
    return np.ascontiguousarray(SyntheticScenes(1, 96, split="test")[0].image[:height, :width])


IMAGE = scene()
HEIGHT, WIDTH = IMAGE.shape[:2]
X, Y = 38, 29
NODE = (7, 9)
"""The node of pixel (X, Y)."""

AT_POINTS = [(y, x) for x in range(2, WIDTH, 11) for y in range(2, HEIGHT, 9)]
POINTS = [((x + 0.5) / WIDTH, (y + 0.5) / HEIGHT) for y, x in AT_POINTS]
"""The middles of some pixels, as shares of the image's width and height."""


def upload(page: Any, image: np.ndarray, name: str = "scene.png") -> None:
    """Chooses an image and waits until it is segmented."""
    page.set_input_files("#choose", {"name": name, "mimeType": "image/png", "buffer": encoded(image)})
    page.wait_for_selector("main.has-photo")
    page.wait_for_selector("body:not([aria-busy])")


def click_pixel(page: Any, image: np.ndarray, x: int, y: int) -> None:
    """Clicks into the middle of a pixel, and waits for its explanation."""
    with page.expect_response("**/explain"):
        press_pixel(page, image, x, y)
    page.wait_for_selector("#node:not([hidden])")


def press_pixel(page: Any, image: np.ndarray, x: int, y: int) -> None:
    """Clicks into the middle of a pixel, and waits for nothing."""
    rect = page.locator("#surface").bounding_box()
    height, width = image.shape[:2]
    page.mouse.click(rect["x"] + (x + 0.5) / width * rect["width"], rect["y"] + (y + 0.5) / height * rect["height"])


def set_range(page: Any, selector: str, value: int) -> None:
    """Moves a slider."""
    page.locator(selector).fill(str(value))


def refuse_once(page: Any, address: str, **answer: Any) -> None:
    """Answers the next request to an address in the server's place."""
    answers = [answer]
    page.route(address, lambda route: route.fulfill(**answers.pop()) if answers else route.continue_())


def values(page: Any, selector: str) -> list[float]:
    """The full values of figures on the page."""
    return [float(each.get_attribute("value")) for each in page.locator(selector).all()]


def as_shown(page: Any, selector: str) -> list[Decimal]:
    """The figures as they can be read."""
    return [Decimal(each.inner_text().replace("\u2212", "-")) for each in page.locator(selector).all()]


FRAMES = "for (let i = 0; i < 2; i += 1) await new Promise(requestAnimationFrame);"
"""Waits until what was asked for is drawn."""


def drawn(page: Any, canvas: str) -> str:
    """All of a canvas."""
    content: str = page.locator(canvas).evaluate(f"async (canvas) => {{ {FRAMES} return canvas.toDataURL(); }}")
    return content


def colours(page: Any, points: list[tuple[float, float]], canvas: str = "#overlay") -> np.ndarray:
    """RGBA of a canvas at shares of its width and height."""
    script = """async (canvas, points) => { FRAMES
        const context = canvas.getContext("2d");
        return points.map(([x, y]) => [...context.getImageData(
            Math.floor(x * canvas.width), Math.floor(y * canvas.height), 1, 1).data]);
    }"""
    return np.array(page.locator(canvas).evaluate(script.replace("FRAMES", FRAMES), points))


def class_colours(models: list[ServedModel], labels: np.ndarray) -> np.ndarray:
    """The colours of the labels at `AT_POINTS`."""
    table = np.array(models[0].model.classes.colours)
    return table[[labels[position] for position in AT_POINTS]]


class Oracle:
    """A model's beliefs about an image, straight from the library."""

    def __init__(self, model: MessageNet, image: np.ndarray) -> None:
        self.model, self.image = model, image

    @cached_property
    def features(self) -> Tensor:
        pixels = torch.from_numpy(self.image.transpose(2, 0, 1).copy())[None].float() / 255
        with torch.no_grad():
            features = self.model.forward_features(pixels)
        assert isinstance(features, Tensor)
        return features

    @torch.no_grad()
    def totals(self, t: int, node: tuple[int, int]) -> dict[str, np.ndarray]:
        """The messages of each factor type to a node in an iteration, summed, (K,) each; for t = 0 the unary alone."""
        if t == 0:
            return {"unary": self.logits(0)[0, :, node[0], node[1]].numpy()}
        trace = self.model.head.trace(self.features)[t - 1]
        return {name: total[0, :, node[0], node[1]].numpy() for name, total in trace.items()}

    @torch.no_grad()
    def logits(self, t: int) -> Tensor:
        """(1, K, h, w)."""
        if t == 0:
            first = self.model.head.stage(0)["unary"](self.features.permute(0, 2, 3, 1))
            return first.permute(0, 3, 1, 2)
        return torch.stack(list(self.model.head.trace(self.features)[t - 1].values())).sum(0)

    def marginals(self, t: int) -> Tensor:
        """At the pixels, (K, H, W)."""
        size = (self.image.shape[0], self.image.shape[1])
        return torch.softmax(upsample(self.logits(t), size, self.model.output_stride), 1)[0]

    def labels(self, t: int) -> np.ndarray:
        """(H, W)."""
        return self.marginals(t).argmax(0).numpy()

    def received(self, node: tuple[int, int]) -> list[Received]:
        """The single messages of the last iteration."""
        return received_messages(self.model.head, self.features, node)
