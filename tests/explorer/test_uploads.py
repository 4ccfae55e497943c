"""Files to pixels: the same as reading the file, and nothing hostile gets as far as its pixels."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, _webp

from explorer.running import encoded, photo
from messagenet.data import decode_image
from messagenet.errors import InputError
from messagenet.explorer import Limits
from messagenet.explorer.uploads import decode, file_key, webp_size

LIMITS = Limits()


def png(width: int, height: int, body: bytes = b"") -> bytes:
    """A PNG whose header says what it likes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def jpeg_header(width: int, height: int) -> bytes:
    """A real JPEG with other dimensions written into it."""
    data = bytearray(encoded(photo(), "JPEG"))
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def webp_header(width: int, height: int) -> bytes:
    content = encoded(photo(), "WEBP", xmp=b"<x/>")
    assert content[12:16] == b"VP8X"
    return content[:24] + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little") + content[30:]


def gif_header(width: int, height: int) -> bytes:
    content = encoded(photo()[..., 0], "GIF")
    return content[:6] + struct.pack("<HH", width, height) + content[10:]


def images() -> dict[str, bytes]:
    rgb = photo()
    grey16 = (photo()[..., 0].astype(np.uint16) * 257 + 5).astype(np.uint16)
    alpha = np.dstack([rgb, photo(1)[..., 0]])
    palette = io.BytesIO()
    Image.fromarray(rgb).quantize(16).save(palette, "PNG", transparency=3)
    cmyk = io.BytesIO()
    Image.fromarray(rgb).convert("CMYK").save(cmyk, "JPEG")
    turned = Image.Exif()
    turned[0x0112] = 6
    return {
        "rgb": encoded(rgb),
        "grey": encoded(rgb[..., 0]),
        "16 bits": encoded(grey16),
        "alpha": encoded(alpha),
        "palette": palette.getvalue(),
        "bilevel": encoded(rgb[..., 0] > 99),
        "jpeg": encoded(rgb, "JPEG"),
        "cmyk": cmyk.getvalue(),
        "turned": encoded(rgb, "JPEG", exif=turned),
        "webp": encoded(alpha, "WEBP"),
        "gif": encoded(rgb[..., 0], "GIF"),
        "one pixel": encoded(rgb[:1, :1]),
    }


@pytest.mark.parametrize("name", images())
def test_as_when_the_file_is_read(name):
    data = images()[name]
    np.testing.assert_array_equal(decode(io.BytesIO(data), LIMITS), decode_image(data))


def test_turned_upright():
    assert decode(io.BytesIO(images()["turned"]), LIMITS).shape == (50, 37, 3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_large_images_are_reduced(kind):
    rows = np.linspace(0, 255, 3000).astype(np.uint8)
    wide = np.broadcast_to(rows, (2, 400, 3000))[0]
    small = decode(io.BytesIO(encoded(np.repeat(wide[..., None], 3, 2), kind)), LIMITS)
    assert small.shape == (137, 1024, 3)
    assert abs(small[70, :, 0].astype(float) - np.linspace(0, 255, 1024)).max() < 3


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(10_000, 10_000), (16_383, 16_383), (65_500, 400)])
@pytest.mark.parametrize("make", [png, jpeg_header, webp_header, gif_header])
def test_refused_by_the_header(make, size, monkeypatch):
    if make is webp_header and max(size) > 16_383:
        size = (16_383, 2_000)
    content = make(*size)

    def decoder(*_):
        raise AssertionError("memory is set aside for pixels")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decoder)
    monkeypatch.setattr(_webp, "WebPAnimDecoder", decoder)
    with pytest.raises(InputError, match=r"pixels, more than the 24 million allowed; scale it down first$"):
        decode(io.BytesIO(content), LIMITS)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_decompression_bomb_is_never_inflated():
    body = zlib.compress(bytes(10_001 * 10_000), 1)  # 100 MB in half a megabyte
    assert len(body) < 500_000
    with pytest.raises(InputError, match="10000×10000 pixels"):
        decode(io.BytesIO(png(10_000, 10_000, body)), LIMITS)


def test_more_data_than_the_header_says_is_left_alone():
    body = zlib.compress(bytes(10_000_000), 1)
    assert decode(io.BytesIO(png(4, 4, body)), LIMITS).shape == (4, 4, 3)


def test_all_webp_headers_are_understood():
    rgb = photo(0, 300, 1000)
    for options in ({}, {"lossless": True}, {"xmp": b"<x/>"}):
        assert webp_size(encoded(rgb, "WEBP", **options)[:30]) == (1000, 300)


@pytest.mark.parametrize("kind", ["TIFF", "BMP", "PPM", "PDF", "EPS", "ICO", "TGA"])
def test_other_formats_are_refused(kind):
    with pytest.raises(InputError, match=r"not a readable image; send JPEG, PNG, WEBP or GIF$"):
        decode(io.BytesIO(encoded(photo(0, 32, 32), kind)), LIMITS)


@pytest.mark.parametrize(
    "tail", [b"<script>alert(1)</script>", b"PK\x03\x04" + bytes(50), b"%PDF-1.7\n", b"#!/bin/sh\nrm -rf /\n"]
)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
def test_what_hides_behind_an_image_is_gone(kind, tail):
    image = photo()[..., 0] if kind == "GIF" else photo()
    plain = encoded(image, kind)
    np.testing.assert_array_equal(decode(io.BytesIO(plain + tail), LIMITS), decode(io.BytesIO(plain), LIMITS))


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.9])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_cut_off_files_are_refused(kind, share):
    data = encoded(photo(0, 60, 60), kind)
    with pytest.raises(InputError, match=r"damaged or incomplete|not a readable image") as refusal:
        decode(io.BytesIO(data[: int(share * len(data))]), LIMITS)
    assert "\n" not in str(refusal.value)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF"]), st.lists(st.tuples(st.integers(0), st.integers(0, 255))))
def test_broken_bytes_give_an_image_or_a_refusal(kind, changes):
    data = bytearray(encoded(photo(0, 12, 12)[..., 0], kind))
    for index, value in changes:
        data[index % len(data)] = value
    with suppress(InputError):
        pixels = decode(io.BytesIO(bytes(data)), Limits(pixels=10_000))
        assert pixels.dtype == np.uint8
        assert pixels.shape[2:] == (3,)


def test_keys_depend_on_the_content_alone():
    first, again, other = (io.BytesIO(b"a" * 3_000_000), io.BytesIO(b"a" * 3_000_000), io.BytesIO(b"a" * 2_999_999))
    first.read(17)
    assert file_key(first) == file_key(again) != file_key(other)
