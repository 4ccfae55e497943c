from __future__ import annotations

from pathlib import Path

import pytest

from messagenet.data import VOC_CLASSES, VOID, Classes, read_classes
from messagenet.data.classes import VOC_NAMES, voc_palette
from messagenet.errors import InputError


def test_voc_palette_is_the_devkit_s() -> None:
    """The colours of the 21 classes and void as the devkit's masks store them."""
    known = {1: (128, 0, 0), 7: (128, 128, 128), 8: (64, 0, 0), 15: (192, 128, 128), 20: (0, 64, 128)}
    assert {label: voc_palette(21)[label] for label in known} == known
    assert voc_palette(256)[255] == (224, 224, 192)
    assert len(set(voc_palette(256))) == 256


def test_voc_classes() -> None:
    assert VOC_CLASSES.num_classes == 21
    assert [VOC_NAMES[label] for label in (0, 8, 10, 12, 13, 15, 17)] == [
        "background", "cat", "cow", "dog", "horse", "person", "sheep",
    ]  # fmt: skip


def test_palette_has_void_last() -> None:
    palette = Classes(("a", "b"), ((1, 2, 3), (4, 5, 6))).palette()
    assert len(palette) == 768
    assert palette[:6] == [1, 2, 3, 4, 5, 6]
    assert palette[-3:] == [224, 224, 192]


def test_index_by_name_id_and_digits() -> None:
    assert [VOC_CLASSES.index(which) for which in ("cat", 8, "8")] == [8, 8, 8]
    with pytest.raises(InputError, match='did you mean "cat"'):
        VOC_CLASSES.index("catt")
    with pytest.raises(InputError, match="from 0 to 20"):
        VOC_CLASSES.index(21)


def test_colour_table_includes_void() -> None:
    assert VOC_CLASSES.colour_table()[224, 224, 192] == VOID
    assert VOC_CLASSES.colour_table()[128, 0, 0] == 1


@pytest.mark.parametrize(
    ("names", "colours", "expected"),
    [
        (("only",), (), "at least 2 classes"),
        (tuple(map(str, range(256))), (), "at most 255"),
        (("a", "b", "a"), (), '"a" occurs twice'),
        (("a", "b"), ((0, 0, 0),), "2 class names but 1 colours"),
        (("a", "b"), ((0, 0, 0), (0, 0, 256)), "outside 0..255"),
        (("a", "b"), ((0, 0, 9), (0, 0, 9)), "classes a, b share the colour"),
    ],
)
def test_bad_classes(names: tuple[str, ...], colours: tuple[tuple[int, int, int], ...], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        Classes(names, colours)


@pytest.mark.parametrize(
    ("file", "text", "names", "colours"),
    [
        ("c.txt", "sky\n\n# comment\nroad\n", ("sky", "road"), ((0, 0, 0), (128, 0, 0))),
        ("c.txt", "\ufeffsky 1 2 3\r\ntall tree 4, 5, 6\r\n", ("sky", "tall tree"), ((1, 2, 3), (4, 5, 6))),
        ("c.txt", "sky #0a0B0c\nroad\t#ffffff", ("sky", "road"), ((10, 11, 12), (255, 255, 255))),
        ("c.txt", "level 2\nlevel 3", ("level 2", "level 3"), ((0, 0, 0), (128, 0, 0))),
        ("c.json", '["sky", "road"]', ("sky", "road"), ((0, 0, 0), (128, 0, 0))),
        ("c.json", '{"sky": [1, 2, 3], "road": "#040506"}', ("sky", "road"), ((1, 2, 3), (4, 5, 6))),
        ("c.json", '{"1": "road", "0": "sky"}', ("sky", "road"), ((0, 0, 0), (128, 0, 0))),
        ("c.json", '{"road": 1, "sky": 0}', ("sky", "road"), ((0, 0, 0), (128, 0, 0))),
    ],
)
def test_read_classes(tmp_path: Path, file: str, text: str, names: object, colours: object) -> None:
    (tmp_path / file).write_text(text, encoding="utf-8")
    classes = read_classes(tmp_path / file)
    assert (classes.names, classes.colours) == (names, colours)


def test_void_line_gives_the_void_colour(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("sky 9 9 9\nroad 1 2 3\nvoid 0 0 0")
    classes = read_classes(tmp_path / "c.txt")
    assert classes.names == ("sky", "road")
    assert classes.colour_table() == {(0, 0, 0): VOID, (9, 9, 9): 0, (1, 2, 3): 1}


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("c.txt", "", "at least 2 classes"),
        ("c.txt", "sky 1 2 3\nroad", '"road" has no colour while others have'),
        ("c.txt", "sky #12\nroad #123456", "'#12' is not a colour"),
        ("c.txt", "sky 1 2 3\nroad 1 2 300", "outside 0..255"),
        ("c.txt", "void\nsky\nroad", '"void" is not a class'),
        ("c.txt", "void 0 0 0\nsky 1 1 1\nroad 2 2 2", '"void" is not a class'),
        ("c.json", "{", "line 1 is not JSON"),
        ("c.json", "3", "expected a list of names"),
        ("c.json", '{"a": 0, "b": 2}', "without a gap"),
        ("c.json", '{"a": [1, 2], "b": "#000000"}', "is not a colour"),
    ],
)
def test_bad_files_name_the_file(tmp_path: Path, file: str, text: str, expected: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=expected) as raised:
        read_classes(tmp_path / file)
    assert file in str(raised.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_classes(tmp_path / "c.txt")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_classes(tmp_path / "c.txt")
