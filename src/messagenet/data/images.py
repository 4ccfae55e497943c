"""Pictures and masks, from files to arrays.

A picture becomes uint8 RGB (height, width, 3), upright: the EXIF orientation is applied. Greyscale is
repeated over the channels; 16-bit grey is scaled by 255/65535; CMYK is converted; whatever is transparent is
laid on white, as a browser shows it; of an animation the first frame is taken.

A mask becomes its raw values (height, width), not yet labels: the indices of a palette PNG, the grey values
of an 8- or 16-bit picture, or, for a painted RGB mask, the ids a colour table gives. Nothing is guessed: JPEG
masks, unknown colours and half-transparent masks are refused, because each of them silently changes labels.
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

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from messagenet.data.classes import VOID, Colour
from messagenet.errors import InputError

ImageArray = NDArray[np.uint8]
LabelArray = NDArray[np.uint8]
RawMask = NDArray[np.uint8] | NDArray[np.int32]

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
MAX_PIXELS = 80_000_000
LOSSY_FORMATS = frozenset({"JPEG", "MPO", "JPEG2000"})
DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    struct.error,
    zlib.error,
)
MEAN_COLOUR = (0.485, 0.456, 0.406)  # of ImageNet, red, green, blue


def read_image(path: str | Path) -> ImageArray:
    """Reads any picture as upright uint8 RGB, (height, width, 3)."""
    return decode_image(read_bytes(Path(path)), str(path))


def read_mask(path: str | Path, colours: Mapping[Colour, int] | None = None) -> RawMask:
    """Reads a mask's raw values, (height, width); see `decode_mask`."""
    return decode_mask(read_bytes(Path(path)), str(path), colours)


def decode_image(data: bytes, name: str = "the image") -> ImageArray:
    """Decodes the bytes of a picture file; `name` is what an error calls it."""
    with _decoding(name):
        return _to_rgb(_load(data, name), name)


def decode_mask(data: bytes, name: str = "the mask", colours: Mapping[Colour, int] | None = None) -> RawMask:
    """Decodes the bytes of a mask file.

    Args:
        data: The file's content.
        name: What an error calls it.
        colours: The id each colour of a painted mask stands for. When the colours of all classes are greys,
            greyscale masks are looked up as well: so masks with, say, 0 and 255 for two classes are read.
    """
    with _decoding(name):
        picture = _load(data, name)
        if picture.format in LOSSY_FORMATS:
            raise InputError(
                f"mask {name} is a {picture.format}, whose compression alters labels; save it as PNG"
            )
        if picture.mode in ("LA", "PA", "RGBA"):
            if picture.getchannel("A").getextrema() != (255, 255):
                raise InputError(f"mask {name} has transparent pixels; save it without an alpha channel")
            picture = picture.convert("RGB") if picture.mode == "RGBA" else picture.getchannel(0)
        if picture.mode == "RGB":
            if colours is None:
                raise InputError(
                    f"mask {name} is an RGB picture; give a class list with colours, or save ids"
                )
            return _look_up(np.asarray(picture), colours, name)
        if picture.mode in ("1", "L") and colours is not None and _all_grey(colours):
            return _look_up(np.asarray(picture.convert("RGB")), colours, name)
        return _ids(picture, data, name)


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """The pictures that files, folders (searched to the bottom) and globs stand for, sorted, each once.

    A file named outright is taken whatever its suffix; folders and globs give pictures only, none hidden.
    """
    given = [Path(path).expanduser() for path in paths]
    found: dict[Path, Path] = {}
    for path in given:
        for match in _expand(path):
            found.setdefault(match.resolve(), match)
    if not found:
        places = ", ".join(map(str, given)) or "an empty list"
        raise InputError(
            f"no images in {places}; give picture files or folders ({' '.join(sorted(IMAGE_SUFFIXES))})"
        )
    return sorted(found.values())


def _expand(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for file in path.rglob("*"):
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if _is_picture(file) and not hidden:
                yield file
    elif path.exists():
        yield path
    elif glob.has_magic(str(path)):
        for match in map(Path, glob.glob(str(path), recursive=True)):
            yield from _expand(match) if match.is_dir() else [match] * _is_picture(match)
    else:
        raise InputError(f"{path} does not exist; check the path")


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()


def read_bytes(path: Path) -> bytes:
    """A file's content, or one line that says why it cannot be had."""
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
    """Turns whatever a decoder raises on a bad file into one line about that file."""
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
    return InputError(
        f"{name} {extent}, more than the {MAX_PIXELS // 10**6} million allowed; scale it down first"
    )


def _load(data: bytes, name: str) -> Image.Image:
    if not data:
        raise InputError(f"{name} is empty (0 bytes); copy or save it again")
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        picture = Image.open(BytesIO(data))
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise _too_large(name, picture.size)
    if width * height == 0:
        raise InputError(f"{name} has no pixels ({width}x{height}); save it again")
    picture.load()
    ImageOps.exif_transpose(picture, in_place=True)
    return picture


def _to_rgb(picture: Image.Image, name: str) -> ImageArray:
    if picture.mode == "F":
        raise InputError(f"{name} holds floating-point values; save it as 8-bit or 16-bit PNG")
    if picture.mode.startswith("I"):
        grey = np.asarray(picture).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise InputError(f"{name} holds 32-bit values; save it as 8-bit or 16-bit PNG")
        scaled = ((grey * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(scaled[:, :, None], 3, axis=2)
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return np.array(picture.convert("RGB"))


def _ids(picture: Image.Image, data: bytes, name: str) -> RawMask:
    if picture.mode in ("1", "P"):
        return np.array(picture, dtype=np.uint8)
    if picture.mode == "L":
        # Pillow stretches 2- and 4-bit grey PNGs to 0..255; their ids are the values before that.
        depth = data[24] if picture.format == "PNG" else 8
        return np.array(picture, dtype=np.uint8) // np.uint8(255 // (2**depth - 1))
    if picture.mode.startswith("I"):
        return np.asarray(picture).astype(np.int32)
    raise InputError(
        f"mask {name} is of mode {picture.mode}; save ids as a palette, 8-bit or 16-bit grey PNG"
    )


def _look_up(rgb: ImageArray, colours: Mapping[Colour, int], name: str) -> LabelArray:
    """The id of every pixel's colour, exactly."""
    known = np.array(sorted(colours), dtype=np.uint32)  # (C, 3)
    ids = np.array([colours[r, g, b] for r, g, b in known.tolist()], dtype=np.uint8)
    codes, pixels = _pack(known), _pack(rgb)  # (C,) sorted, (H, W)
    place = np.minimum(np.searchsorted(codes, pixels), len(codes) - 1)
    unknown = codes[place] != pixels
    if unknown.any():
        values, counts = np.unique(pixels[unknown], return_counts=True)
        worst = int(values[counts.argmax()])
        colour = (worst >> 16, (worst >> 8) & 255, worst & 255)
        others = f" and {len(values) - 1} more unknown colours" if len(values) > 1 else ""
        raise InputError(
            f"mask {name} holds colour {colour} = #{worst:06x} at {counts.max()} pixels{others}, of no class;"
            " add it to the class list (a line named void marks pixels without a label)"
        )
    return ids[place]


def _all_grey(colours: Mapping[Colour, int]) -> bool:
    return all(r == g == b for (r, g, b), label in colours.items() if label != VOID)


def _pack(rgb: NDArray[np.uint8] | NDArray[np.uint32]) -> NDArray[np.uint32]:
    channels = rgb.astype(np.uint32)
    return (channels[..., 0] << np.uint32(16)) | (channels[..., 1] << np.uint32(8)) | channels[..., 2]


def file_stem(path: Path, folder: Path) -> str:
    """The name of a file inside a folder, without its suffix: what pairs an image with its mask.

    >>> file_stem(Path("data/images/city/a.b.png"), Path("data/images"))
    'city/a.b'
    """
    return os.path.splitext(path.relative_to(folder).as_posix())[0]
