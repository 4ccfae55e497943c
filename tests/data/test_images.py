from __future__ import annotations

import warnings
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from messagenet.data import VOID, Classes, decode_image, find_images, read_image, read_mask
from messagenet.data.images import MAX_PIXELS, decode_mask
from messagenet.errors import InputError


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    file = BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


@pytest.fixture
def photograph() -> np.ndarray:
    rows, columns = np.mgrid[0:24, 0:32]
    return np.stack([rows * 10, columns * 7, (rows + columns) * 4], -1).astype(np.uint8)


class TestReadImage:
    def test_rgb_is_unchanged(self, photograph: np.ndarray) -> None:
        assert np.array_equal(decode_image(encoded(Image.fromarray(photograph))), photograph)

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_exif_orientation_is_applied(self, photograph: np.ndarray, orientation: int) -> None:
        stored = {
            1: photograph,
            2: photograph[:, ::-1],
            3: photograph[::-1, ::-1],
            4: photograph[::-1],
            5: photograph.transpose(1, 0, 2),
            6: np.rot90(photograph),
            7: photograph.transpose(1, 0, 2)[::-1, ::-1],
            8: np.rot90(photograph, -1),
        }[orientation]
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(Image.fromarray(np.ascontiguousarray(stored)), exif=exif)
        assert np.array_equal(decode_image(data), photograph)

    def test_cmyk(self) -> None:
        # Full cyan without black is no red and all green and blue.
        data = encoded(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", quality=95)
        assert np.abs(decode_image(data).astype(int) - (0, 255, 255)).max() <= 3

    def test_16_bit_grey_is_scaled_to_the_full_range(self) -> None:
        values = np.array([[0, 128, 129, 32768, 65535 - 129, 65535]], np.uint16)
        expected = np.rint(values / 65535 * 255).astype(np.uint8)
        image = decode_image(encoded(Image.fromarray(values)))
        assert np.array_equal(image, np.repeat(expected[:, :, None], 3, 2))

    def test_transparency_is_laid_on_white(self) -> None:
        pixels = np.array([[[200, 0, 0, 255], [200, 0, 0, 0], [200, 0, 0, 128]]], np.uint8)
        image = decode_image(encoded(Image.fromarray(pixels)))
        half = 255 + (np.array([200, 0, 0]) - 255) * 128 / 255
        assert np.abs(image[0] - np.array([[200, 0, 0], [255, 255, 255], half])).max() <= 1

    def test_transparent_palette_and_grey_with_alpha(self) -> None:
        palette = Image.new("P", (2, 2), 1)
        palette.putpalette([9, 9, 9, 50, 60, 70])
        assert (decode_image(encoded(palette)) == (50, 60, 70)).all()
        assert (decode_image(encoded(palette, transparency=1)) == 255).all()
        assert (decode_image(encoded(Image.new("LA", (2, 2), (40, 255)))) == 40).all()

    @pytest.mark.parametrize("mode", ["1", "L", "P", "YCbCr"])
    def test_other_modes(self, mode: str, photograph: np.ndarray) -> None:
        pixels = Image.fromarray(photograph).convert(mode)
        image = decode_image(encoded(pixels, "TIFF" if mode == "YCbCr" else "PNG"))
        assert image.dtype == np.uint8
        assert np.array_equal(image, np.asarray(pixels.convert("RGB")))

    def test_first_frame_of_an_animation(self) -> None:
        frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
        data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
        assert (decode_image(data) == (255, 0, 0)).all()

    @pytest.mark.parametrize(("format", "keep"), [("JPEG", 0.5), ("PNG", 0.5), ("PNG", 0.9), ("TIFF", 0.5)])
    def test_truncated(self, tmp_path: Path, format: str, keep: float) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
        data = encoded(Image.fromarray(noise), format)
        path = tmp_path / "half.img"
        path.write_bytes(data[: int(len(data) * keep)])
        with pytest.raises(InputError, match=r"half\.img is damaged or incomplete") as raised:
            read_image(path)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"", r"is empty \(0 bytes\)"),
            (b"hello, world" * 50, "is not an image"),
            (b"\xff\xd8\xff", "not an image|damaged"),
        ],
    )
    def test_not_an_image(self, tmp_path: Path, content: bytes, expected: str) -> None:
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(InputError, match=expected):
            read_image(tmp_path / "a.png")

    def test_missing_file_and_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"nowhere\.png does not exist"):
            read_image(tmp_path / "nowhere.png")
        with pytest.raises(InputError, match="is a folder"):
            read_image(tmp_path)

    @pytest.mark.parametrize("side", [9_000, 10_000, 60_000])
    @pytest.mark.filterwarnings("error")
    def test_decompression_bomb(self, side: int) -> None:
        assert side**2 > MAX_PIXELS
        data = bytearray(encoded(Image.new("L", (1, 1))))
        data[16:24] = side.to_bytes(4, "big") * 2
        data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
        with pytest.raises(InputError, match="80 million"):
            decode_image(bytes(data), "bomb.png")

    def test_floats_are_refused(self) -> None:
        with pytest.raises(InputError, match="floating-point"):
            decode_image(encoded(Image.new("F", (2, 2), 0.5), "TIFF"))
        with pytest.raises(InputError, match="32-bit"):
            decode_image(encoded(Image.new("I", (2, 2), 1 << 20), "TIFF"))

    @given(data=st.binary(max_size=200), head=st.sampled_from([b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0", b""]))
    @settings(max_examples=60, deadline=None)
    def test_bytes_of_any_kind_give_an_image_or_one_line(self, data: bytes, head: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcome = str(decode_image(head + data, "x").shape)
            except InputError as error:
                outcome = str(error)
        assert "\n" not in outcome


class TestReadMask:
    @given(ids=arrays(np.uint8, (5, 7)))
    @settings(max_examples=25, deadline=None)
    def test_palette_grey_and_16_bit_hold_ids(self, ids: np.ndarray) -> None:
        palette = Image.fromarray(ids)
        palette.putpalette(Classes(("a", "b")).palette())
        for image in (palette, Image.fromarray(ids), Image.fromarray(ids.astype(np.uint16) * 200)):
            factor = 200 if image.mode.startswith("I") else 1
            assert np.array_equal(decode_mask(encoded(image)), ids.astype(np.int64) * factor)

    @pytest.mark.parametrize("depth", [1, 2, 4])
    def test_few_bits_per_pixel(self, depth: int) -> None:
        """Grey PNGs of 1, 2 and 4 bits, which Pillow stretches to 0..255; made by hand, as it makes none."""
        ids = np.arange(16, dtype=np.uint8).reshape(2, 8) % 2**depth
        bits = np.unpackbits(ids[:, :, None], axis=2)[:, :, 8 - depth :].reshape(2, -1)
        rows = b"".join(b"\0" + np.packbits(row).tobytes() for row in bits)

        def chunk(kind: bytes, body: bytes) -> bytes:
            return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

        header = (8).to_bytes(4, "big") + (2).to_bytes(4, "big") + bytes([depth, 0, 0, 0, 0])
        data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
        assert np.array_equal(decode_mask(data), ids)

    @given(ids=arrays(np.uint8, (6, 5), elements=st.sampled_from([0, 1, 2, 20, VOID])))
    @settings(max_examples=25, deadline=None)
    def test_painted_masks_invert_the_palette(self, ids: np.ndarray) -> None:
        classes = Classes(tuple(f"class {label}" for label in range(21)))
        painted = np.array(classes.palette(), np.uint8).reshape(256, 3)[ids]
        assert np.array_equal(decode_mask(encoded(Image.fromarray(painted)), colours=classes.colour_table()), ids)

    def test_unknown_colour_is_named_and_counted(self) -> None:
        painted = np.zeros((4, 4, 3), np.uint8)
        painted[0] = (1, 2, 255)
        painted[1, 0] = (9, 9, 9)
        with pytest.raises(InputError, match=r"m\.png holds colour \(1, 2, 255\) = #0102ff at 4 pixels and 1 more"):
            decode_mask(encoded(Image.fromarray(painted)), "m.png", Classes(("a", "b")).colour_table())

    def test_grey_classes_are_looked_up_in_grey_masks(self) -> None:
        table = Classes(("background", "object"), ((0, 0, 0), (255, 255, 255))).colour_table()
        values = np.array([[0, 255]], np.uint8)
        assert decode_mask(encoded(Image.fromarray(values)), colours=table).tolist() == [[0, 1]]
        assert decode_mask(encoded(Image.fromarray(values).convert("1")), colours=table).tolist() == [[0, 1]]

    def test_rgb_needs_colours(self) -> None:
        with pytest.raises(InputError, match="is an RGB image; give a class list with colours"):
            decode_mask(encoded(Image.new("RGB", (2, 2))))

    def test_jpeg_is_refused_with_the_reason(self) -> None:
        with pytest.raises(InputError, match=r"is a JPEG, whose compression alters labels; save it as PNG"):
            decode_mask(encoded(Image.new("L", (8, 8)), "JPEG"))

    def test_alpha(self) -> None:
        assert decode_mask(encoded(Image.new("LA", (1, 1), (3, 255)))).tolist() == [[3]]
        with pytest.raises(InputError, match="transparent pixels"):
            decode_mask(encoded(Image.new("LA", (1, 1), (3, 254))))

    def test_damaged(self, tmp_path: Path) -> None:
        (tmp_path / "m.png").write_bytes(encoded(Image.new("L", (50, 50)))[:60])
        with pytest.raises(InputError, match=r"m\.png is damaged"):
            read_mask(tmp_path / "m.png")


class TestFindImages:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        for name in ("b.jpg", "a.PNG", "sub/c.webp", "sub/deep/d.tif", "notes.txt", ".hidden.png", "sub/.cache/e.png"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    def test_folders_are_searched_to_the_bottom(self, tree: Path) -> None:
        found = [path.relative_to(tree).as_posix() for path in find_images([tree])]
        assert found == ["a.PNG", "b.jpg", "sub/c.webp", "sub/deep/d.tif"]

    def test_files_globs_and_duplicates(self, tree: Path) -> None:
        found = find_images(
            [tree / "sub" / "*", str(tree / "b.jpg"), tree / "sub" / ".." / "b.jpg", tree / "notes.txt"]
        )
        assert sorted(path.name for path in found) == ["b.jpg", "c.webp", "d.tif", "notes.txt"]

    def test_a_file_with_brackets_is_no_glob(self, tmp_path: Path) -> None:
        (tmp_path / "a[1].png").touch()
        assert find_images([tmp_path / "a[1].png"]) == [tmp_path / "a[1].png"]

    def test_nothing_found(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no images in"):
            find_images([tmp_path])
        with pytest.raises(InputError, match="no images in"):
            find_images([tmp_path / "*.png"])
        with pytest.raises(InputError, match="does not exist"):
            find_images([tmp_path / "a.png"])
        with pytest.raises(InputError, match="an empty list"):
            find_images([])
