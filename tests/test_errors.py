"""Files are written whole or not at all."""

import os

import pytest

from messagenet.errors import InputError, write_atomically


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    write_atomically(path, b"old")

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("path", [".", "..", "/", ""])
def test_a_folder_is_no_file_to_write(tmp_path, monkeypatch, path):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(InputError, match="choose a file in a writable folder"):
        write_atomically(path, b"text")
    assert os.listdir(tmp_path / "inner") == []
    assert os.listdir(tmp_path) == ["inner"]
