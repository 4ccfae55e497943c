"""Images on offer: those that are listed, and nothing else."""

from __future__ import annotations

import io
import os

import pytest
from PIL import Image

from explorer.running import encoded, photo
from messagenet.bundled import photographs
from messagenet.errors import InputError
from messagenet.explorer.models import folder_samples, open_samples


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "photos"
    (home / "deeper").mkdir(parents=True)
    content = encoded(photo())
    for name in ("b.png", "a.JPG", "ü <b>.webp", ".hidden.png", "deeper/c.png"):
        (home / name).write_bytes(content)
    (home / "notes.txt").write_text("private")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (home / "link.png").symlink_to(tmp_path / "secret.png")
    (home / "inner.png").symlink_to(home / "b.png")
    return home


def test_only_images_that_are_there(folder):
    assert list(folder_samples(folder)) == ["a.JPG", "b.png", "inner.png", "ü <b>.webp"]
    sample = folder_samples(folder)["a.JPG"]
    assert (sample.content(), sample.media_type) == (encoded(photo()), "image/jpeg")


def test_names_that_are_no_text_are_left_aside(folder):
    (folder / os.fsdecode(b"\xff.png")).write_bytes(b"")
    assert list(folder_samples(folder)) == ["a.JPG", "b.png", "inner.png", "ü <b>.webp"]


def test_a_file_that_becomes_a_link_out_of_the_folder_is_gone(folder):
    samples = folder_samples(folder)
    (folder / "b.png").unlink()
    assert samples["b.png"].content() is None
    (folder / "b.png").symlink_to(folder.parent / "secret.png")
    assert samples["b.png"].content() is None


def test_a_folder_without_images(tmp_path):
    with pytest.raises(InputError, match="no images in"):
        folder_samples(tmp_path)
    with pytest.raises(InputError, match="is no folder; give a folder of images with --samples"):
        folder_samples(tmp_path / "nowhere")


def test_photographs_and_scenes_by_default():
    samples = open_samples(None)
    assert list(samples)[-4:] == ["scene-1.png", "scene-2.png", "scene-3.png", "scene-4.png"]
    assert list(samples)[:-4] == [path.name for path in photographs()]
    contents = {name: sample.content() for name, sample in samples.items()}
    assert len(set(contents.values())) == len(samples)
    sizes = {name: Image.open(io.BytesIO(content)).size for name, content in contents.items()}
    assert {size for name, size in sizes.items() if name.startswith("scene")} == {(256, 256)}
    assert sizes.get("astronaut.png", (512, 512)) == (512, 512)
