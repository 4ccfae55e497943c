"""Modules of the page by themselves, with more cases than an image has."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from explorer.running import encoded

ADD_UP = """async ([sets, digits]) => {
    const { addUp } = await import("/static/format.js");
    return sets.map((parts) => addUp(parts, parts.reduce((sum, part) => sum + part, 0), digits));
}"""
DECODE = """async (content) => {
    const { decodeGrey } = await import("/static/png.js");
    const { width, height, values } = await decodeGrey(content);
    return [width, height, [...values]];
}"""
SHOW = """async (calls) => {
    const format = await import("/static/format.js");
    return calls.map(([name, ...values]) => format[name](...values));
}"""


@pytest.mark.parametrize("digits", [0, 3])
def test_rounded_parts_add_up(page, digits):
    sets = (10 * np.random.default_rng(digits).normal(size=(300, 5))).tolist()
    unit = 10**digits
    for parts, rounded in zip(sets, page.evaluate(ADD_UP, [sets, digits]), strict=True):
        units = [round(part * unit) for part in rounded]
        assert units == pytest.approx([part * unit for part in rounded], abs=1e-6)
        assert sum(units) == round(sum(parts) * unit)
        assert max(abs(one - part * unit) for one, part in zip(units, parts, strict=True)) < 1 + 1e-6


def test_label_maps_are_read_exactly(page):
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (1, 7), (5, 1), (37, 50)):
        rows, columns = np.indices(shape)
        noise, slope = rng.integers(0, 256, shape), 3 * rows + 2 * columns
        for pixels in (noise, slope % 256, slope // 9 % 5, noise // 64 + slope % 190):
            content = encoded(pixels.astype(np.uint8))
            width, height, values = page.evaluate(DECODE, base64.b64encode(content).decode())
            np.testing.assert_array_equal(np.reshape(values, (height, width)), pixels)


def test_numbers_as_people_read_them(page):
    cases = {
        ("signed", -1.23456): "\u22121.235",
        ("signed", 0.0004): "0.000",
        ("signed", 2, 1): "+2.0",
        ("percent", 0.12345): "12.3\u202f%",
        ("percent", 0.0001): "<0.1\u202f%",
        ("percent", 0.99999): ">99.9\u202f%",
        ("percent", 1): "100.0\u202f%",
        ("decimals", 0.0398, 3, 6): 4,
        ("decimals", 123456.0, 6, 3): 0,
        ("decimals", 0.0, 3, 6): 2,
        ("duration", 12.4): "12 ms",
        ("duration", 1240): "1.2 s",
    }
    assert page.evaluate(SHOW, [list(call) for call in cases]) == list(cases.values())
    (words,) = page.evaluate(SHOW, [["direction", -3, 2]])
    assert words == {"words": "3 up, 2 right", "arrows": "↑\u200a3 →\u200a2"}
