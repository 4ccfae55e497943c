"""Noisy scenes: the truth is the material under the blotches, and one place often looks like another."""

from __future__ import annotations

import numpy as np

from messagenet.data.scenes import SCENE_CLASSES, NoisyScenes, SyntheticScenes, blotched

MATERIAL = {
    **dict.fromkeys(("sky", "water"), "blue"),
    "land": "earth",
    **dict.fromkeys(("cloud", "snow", "foam"), "white"),
    **dict.fromkeys(("balloon", "house", "buoy"), "red"),
}


def test_the_truth_is_the_material_of_the_scene_underneath() -> None:
    clean, noisy = SyntheticScenes(5, seed=3, split="val"), NoisyScenes(5, seed=3, split="val")
    for scene, blotchy in zip(clean, noisy, strict=True):
        assert scene.mask is not None
        assert blotchy.mask is not None
        wanted = [noisy.classes.index(MATERIAL[name]) for name in SCENE_CLASSES.names]
        assert np.array_equal(np.array(wanted)[scene.mask], blotchy.mask)
        assert not np.array_equal(scene.image, blotchy.image)


def test_scenes_are_a_function_of_seed_split_and_index() -> None:
    first, again, other = NoisyScenes(3), NoisyScenes(3), NoisyScenes(3, split="val")
    assert np.array_equal(first[1].image, again[1].image)
    assert not np.array_equal(first[1].image, first[2].image)
    assert not np.array_equal(first[1].image, other[1].image)


def test_blotches_have_the_strength_asked_for_and_a_width_of_some_pixels() -> None:
    grey = np.full((96, 96, 3), 128, np.uint8)
    added = blotched(grey, 0.1, np.random.default_rng(0)).astype(float) - 128
    assert abs(added.std() / 25.5 - 1) < 0.02
    beside = np.corrcoef(added[:, 1:].ravel(), added[:, :-1].ravel())[0, 1]
    apart = np.corrcoef(added[:, 12:].ravel(), added[:, :-12].ravel())[0, 1]
    assert beside > 0.8
    assert abs(apart) < 0.1


def test_no_noise_leaves_the_scene_as_it_is() -> None:
    assert np.array_equal(NoisyScenes(2, noise=0.0)[1].image, SyntheticScenes(2)[1].image)
