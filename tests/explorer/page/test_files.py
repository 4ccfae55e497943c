"""Files in and out, and what the page does when the server refuses."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
from PIL import Image
from playwright.sync_api import expect

from explorer.page.browsing import (
    HEIGHT,
    IMAGE,
    NODE,
    POINTS,
    WIDTH,
    X,
    Y,
    click_pixel,
    colours,
    refuse_once,
    scene,
    upload,
)
from explorer.running import encoded
from messagenet.report import overlay


def test_downloads(photo_page, models, oracle):
    def saved(button: str) -> tuple[str, bytes]:
        with photo_page.expect_download() as waiting:
            photo_page.click(button)
        return waiting.value.suggested_filename, waiting.value.path().read_bytes()

    classes = models[0].model.classes
    expect(photo_page.locator("#save-node")).to_be_disabled()
    name, content = saved("#save-labels")
    labels = Image.open(io.BytesIO(content))
    assert name == "scene-messages-t2-labels.png"
    assert labels.mode == "P"
    np.testing.assert_array_equal(np.asarray(labels), oracle.labels(2))

    overlaid = np.asarray(Image.open(io.BytesIO(saved("#save-overlay")[1])).convert("RGB")).astype(int)
    assert np.abs(overlaid - np.asarray(overlay(IMAGE, oracle.labels(2), classes))).max() <= 2

    click_pixel(photo_page, IMAGE, X, Y)
    name, content = saved("#save-node")
    node = json.loads(content)
    assert name == f"scene-messages-t2-r{NODE[0]}c{NODE[1]}-node.json"
    assert (node["image"], node["classes"]) == ("scene.png", list(classes.names))
    assert node["pixel"] == [X, Y]
    totals = np.sum([factor["total"] for factor in node["factors"]], 0)
    np.testing.assert_allclose(totals, oracle.logits(2)[0, :, NODE[0], NODE[1]], atol=1e-5)

    figure = Image.open(io.BytesIO(saved("#save-figure")[1]))
    assert figure.width >= 2000
    assert figure.width / figure.height == WIDTH / HEIGHT


def test_dropped_and_pasted_photos_are_opened(page):
    send = """([type, content]) => {
        const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], `${type}.png`, {type: "image/png"}));
        const options = {bubbles: true, cancelable: true};
        document.body.dispatchEvent(type === "drop"
            ? new DragEvent("drop", {dataTransfer: data, ...options})
            : new ClipboardEvent("paste", {clipboardData: data, ...options}));
    }"""
    for kind, side in (("drop", 40), ("paste", 44)):
        page.evaluate(send, [kind, base64.b64encode(encoded(scene(side, side))).decode()])
        expect(page.locator("#status")).to_contain_text(f"{side} × {side} pixels")
        expect(page.locator("#surface")).to_have_attribute(
            "aria-label", f"{kind}.png, {side // 4} rows and {side // 4} columns of nodes"
        )


def test_a_sample_is_opened(page):
    page.locator(".sample").first.click()
    expect(page.locator("#status")).to_contain_text("256 × 256 pixels, 64 × 64 nodes")


def test_a_broken_file_is_named_and_changes_nothing(photo_page):
    before = colours(photo_page, POINTS)
    photo_page.set_input_files(
        "#choose", {"name": "broken.png", "mimeType": "image/png", "buffer": encoded(IMAGE)[:200]}
    )
    alert = photo_page.get_by_role("alert")
    expect(alert).to_be_visible()
    assert len(alert.locator("p").inner_text()) > 20
    np.testing.assert_array_equal(colours(photo_page, POINTS), before)
    photo_page.click("#problem-close")
    expect(alert).to_be_hidden()
    click_pixel(photo_page, IMAGE, X, Y)


def test_a_photo_that_is_no_longer_cached_is_sent_again(photo_page):
    sent = []
    photo_page.on("request", lambda request: sent.append(request.url.rsplit("/", 1)[1]))
    refuse_once(photo_page, "**/explain", status=404, json={"error": "the image is not cached, or not any more"})
    click_pixel(photo_page, IMAGE, X, Y)
    expect(photo_page.locator("#node-title")).to_contain_text("row 7")
    assert sent == ["explain", "segment", "explain"]
    expect(photo_page.get_by_role("alert")).to_be_hidden()


def test_requests_to_a_busy_server_are_retried(page):
    refuse_once(page, "**/segment", status=503, headers={"Retry-After": "0.5"}, json={"error": "the server is busy"})
    page.set_input_files("#choose", {"name": "a.png", "mimeType": "image/png", "buffer": encoded(IMAGE)})
    expect(page.locator("#status")).to_contain_text("busy; retrying")
    expect(page.locator("body")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#status")).to_contain_text("90 × 70 pixels")
    expect(page.locator("body")).not_to_have_attribute("aria-busy", "true")


def test_a_server_that_is_gone_is_named(photo_page):
    photo_page.route("**/explain", lambda route: route.abort())
    photo_page.locator("#surface").click()
    expect(photo_page.get_by_role("alert")).to_contain_text("does not answer")


def test_the_last_choice_wins(photo_page):
    for model in ("boxes", "messages", "alone"):
        photo_page.select_option("#model", model)
    upload(photo_page, scene(40, 40))
    expect(photo_page.locator("#status")).to_contain_text("40 × 40 pixels")
    expect(photo_page.locator("#model")).to_have_value("alone")
    expect(photo_page.locator("#no-node-text")).to_contain_text("alone")
    expect(photo_page.locator("#surface")).to_be_visible()


def test_a_model_that_is_refused_is_not_shown(photo_page):
    refuse_once(photo_page, "**/segment", status=400, json={"error": "there is no model 'boxes'"})
    photo_page.select_option("#model", "boxes")
    expect(photo_page.get_by_role("alert")).to_contain_text("There is no model")
    expect(photo_page.locator("#model")).to_have_value("messages")
    click_pixel(photo_page, IMAGE, X, Y)
