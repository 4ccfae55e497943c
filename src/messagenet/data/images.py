"""Images and masks, from files to arrays.

Images are read as uint8 RGB (height, width, 3), upright by their EXIF orientation. Greyscale is repeated over the
channels, 16-bit grey is scaled by 255/65535, CMYK is converted, transparent pixels are composited on white, and of an
animation the first frame is used.

Masks are read as raw values (height, width): palette indices, 8- or 16-bit grey values, or the ids of RGB colours. JPEG
masks, unknown colours and transparency raise an error, because each of them would silently change labels.
"""

from __future__ import annotations

import glob
import os
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from messagenet.data.classes import VOID, Colour
from messagenet.errors import InputError

ImageArray = NDArray[np.uint8]
LabelArray = NDArray[np.uint8]
RawMask = NDArray[np.uint8] | NDArray[np.int32] | NDArray[np.int64]

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
MAX_PIXELS = 80_000_000
LOSSY_FORMATS = frozenset({"JPEG", "MPO", "JPEG2000"})
DECODER_ERRORS = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, struct.error, zlib.error)
IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of red, green and blue in 0..1


def read_image(path: str | Path) -> ImageArray:
    """Reads any image as upright uint8 RGB, (height, width, 3)."""
    return decode_image(read_bytes(Path(path)), str(path))


def read_mask(path: str | Path, colours: Mapping[Colour, int] | None = None) -> RawMask:
    """Reads a mask's raw values, (height, width); see `decode_mask`."""
    return decode_mask(read_bytes(Path(path)), str(path), colours)


def decode_image(data: bytes, name: str = "the image") -> ImageArray:
    """Decodes the bytes of an image file; errors call it `name`."""
    with _decoding(name):
        return to_rgb(_load(data, name), name)


def decode_mask(data: bytes, name: str = "the mask", colours: Mapping[Colour, int] | None = None) -> RawMask:
    """Decodes a mask; `colours` has the id of each RGB colour, and of each grey value if all classes are greys."""
    with _decoding(name):
        image = _load(data, name)
        if image.format in LOSSY_FORMATS:
            raise InputError(f"mask {name} is a {image.format}, whose compression alters labels; save it as PNG")
        if image.mode in ("LA", "PA", "RGBA"):
            if image.getchannel("A").getextrema() != (255, 255):
                raise InputError(f"mask {name} has transparent pixels; save it without an alpha channel")
            image = image.convert("RGB") if image.mode == "RGBA" else image.getchannel(0)
        if image.mode == "RGB":
            if colours is None:
                raise InputError(f"mask {name} is an RGB image; give a class list with colours, or save ids")
            return _look_up(np.asarray(image), colours, name)
        grey = colours and all(r == g == b for (r, g, b), label in colours.items() if label != VOID)
        if image.mode in ("1", "L") and colours and grey:
            return _look_up(np.asarray(image.convert("RGB")), colours, name)
        return _ids(image, data, name)


def find_images(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """The image files among files (any suffix), folders (recursively) and globs, none hidden; sorted, no duplicates."""
    listed = [paths] if isinstance(paths, str) or not isinstance(paths, Iterable) else list(paths)
    if others := [type(path).__name__ for path in listed if not isinstance(path, str | os.PathLike)]:
        raise InputError(f"{others[0]} is not a file; for an image in memory call mn.Predictor(model).labels(image)")
    if "" in listed:
        raise InputError("an image path is empty; give an image file, a folder or a glob")
    given = [Path(path).expanduser() for path in listed]
    found: dict[Path, Path] = {}
    for match in (match for path in given for match in _expand(path)):
        found.setdefault(match.resolve(), match)
    if not found:
        where = ", ".join(map(str, given)) or "an empty list"
        raise InputError(f"no images in {where}; give image files or folders ({' '.join(sorted(IMAGE_SUFFIXES))})")
    return sorted(found.values())


def _expand(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for file in path.rglob("*"):
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if _is_image_file(file) and not hidden:
                yield file
    elif path.exists():
        yield path
    elif glob.has_magic(str(path)):
        for match in map(Path, glob.glob(str(path), recursive=True)):
            yield from _expand(match) if match.is_dir() else [match] * _is_image_file(match)
    else:
        raise InputError(f"{path} does not exist; check the path")


def _is_image_file(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()


def read_bytes(path: Path) -> bytes:
    """A file's content; raises `InputError` if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a file; give a file in it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    """Turns any exception of a decoder into an `InputError` that names the file."""
    try:
        yield
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(name) from None
    except UnidentifiedImageError:
        raise InputError(f"{name} is not an image this program can read; save it as PNG or JPEG") from None
    except DECODER_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name} is damaged or incomplete ({reason}); copy or save it again") from error


def _too_large(name: str, size: tuple[int, int] | None = None) -> InputError:
    extent = f"has {size[0]}x{size[1]} pixels" if size else "is far too large"
    return InputError(f"{name} {extent}, more than the {MAX_PIXELS // 10**6} million allowed; scale it down first")


def _load(data: bytes, name: str) -> Image.Image:
    if not data:
        raise InputError(f"{name} is empty (0 bytes); copy or save it again")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = Image.open(BytesIO(data))
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise _too_large(name, image.size)
    if width * height == 0:
        raise InputError(f"{name} has no pixels ({width}x{height}); save it again")
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    return image


def to_rgb(image: Image.Image, name: str) -> ImageArray:
    """An opened image of any mode as uint8 RGB, (height, width, 3); errors call it `name`."""
    if image.mode == "F":
        raise InputError(f"{name} holds floating-point values; save it as 8-bit or 16-bit PNG")
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise InputError(f"{name} holds 32-bit values; save it as 8-bit or 16-bit PNG")
        scaled = ((grey * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(scaled[:, :, None], 3, axis=2)
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return np.array(image.convert("RGB"))


def _ids(image: Image.Image, data: bytes, name: str) -> RawMask:
    if image.mode in ("1", "P"):
        return np.array(image, dtype=np.uint8)
    if image.mode == "L":
        # Pillow stretches 2- and 4-bit grey PNGs to 0..255; their ids are the values before that.
        depth = data[24] if image.format == "PNG" else 8
        return np.array(image, dtype=np.uint8) // np.uint8(255 // (2**depth - 1))
    if image.mode.startswith("I"):
        return np.asarray(image).astype(np.int32)
    raise InputError(f"mask {name} is of mode {image.mode}; save ids as a palette, 8-bit or 16-bit grey PNG")


def _look_up(rgb: ImageArray, colours: Mapping[Colour, int], name: str) -> LabelArray:
    """The id of every pixel's colour, (H, W); no colour is approximated."""
    known = sorted(colours)
    ids = np.array([colours[colour] for colour in known], dtype=np.uint8)
    codes, pixels = _pack(np.array(known)), _pack(rgb)  # (C,) sorted, (H, W)
    position = np.minimum(np.searchsorted(codes, pixels), len(codes) - 1)
    unknown = codes[position] != pixels
    if unknown.any():
        values, counts = np.unique(pixels[unknown], return_counts=True)
        worst = int(values[counts.argmax()])
        colour = (worst >> 16, (worst >> 8) & 255, worst & 255)
        others = f" and {len(values) - 1} more unknown colours" if len(values) > 1 else ""
        raise InputError(
            f"mask {name} holds colour {colour} = #{worst:06x} at {counts.max()} pixels{others}, of no class;"
            " add it to the class list (a line named void marks pixels without a label)"
        )
    return ids[position]


def _pack(rgb: NDArray[Any]) -> NDArray[np.uint32]:
    channels = rgb.astype(np.uint32)
    return (channels[..., 0] << np.uint32(16)) | (channels[..., 1] << np.uint32(8)) | channels[..., 2]


def file_stem(path: Path, folder: Path) -> str:
    """A file's path within a folder, without its suffix; an image and its mask have the same.

    >>> file_stem(Path("data/images/city/a.b.png"), Path("data/images"))
    'city/a.b'
    """
    return os.path.splitext(path.relative_to(folder).as_posix())[0]
