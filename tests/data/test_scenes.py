from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from scipy.stats import ks_2samp
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from messagenet.data import SCENE_CLASSES, Sample, SyntheticScenes
from messagenet.data.scenes import NoisyScenes, add_blotches
from messagenet.errors import InputError

ALIKE = {"blue": (0, 2), "white": (3, 4, 5), "red": (6, 7, 8)}
PATCH, CLEAR = 8, 12  # a patch, and the window around it that holds one class only
SCENES = 300


def over_windows(extreme: Callable[..., np.ndarray], array: np.ndarray, height: int, width: int) -> np.ndarray:
    """The smallest or largest value in every window of a size, one axis after the other."""
    rows = extreme(sliding_window_view(array, height, axis=0), -1)
    return extreme(sliding_window_view(rows, width, axis=1), -1)


def box_any(where: np.ndarray, up: int, down: int, aside: int) -> np.ndarray:
    """Whether `where` holds from `up` rows above to `down` rows below, up to `aside` columns away."""
    return over_windows(np.max, np.pad(where, ((up, down), (aside, aside))), up + down + 1, 2 * aside + 1)


def patch_features(image: np.ndarray) -> np.ndarray:
    """Colour, contrast, slopes down and across, and the four quarters' brightness of a patch."""
    patch = image.astype(np.float64)
    down, across = np.diff(patch, axis=0), np.diff(patch, axis=1)
    quarters = patch.mean(2).reshape(2, PATCH // 2, 2, PATCH // 2).mean((1, 3))
    parts = [patch.mean((0, 1)), patch.std((0, 1)), down.mean((0, 1)), across.mean((0, 1))]
    return np.concatenate([*parts, [np.abs(down).mean(), np.abs(across).mean()], quarters.ravel()])


def interior_patches(scenes: list[Sample]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, class and scene of one patch for every class of every scene that has one well inside it."""
    rng = np.random.default_rng(0)
    features, labels, origins = [], [], []
    margin = (CLEAR - PATCH) // 2
    for index, scene in enumerate(scenes):
        first = over_windows(np.min, scene.mask, CLEAR, CLEAR)
        pure = first == over_windows(np.max, scene.mask, CLEAR, CLEAR)
        for label in np.unique(first[pure]):
            corners = np.argwhere(pure & (first == label)) + margin
            top, left = corners[rng.integers(len(corners))]
            features.append(patch_features(scene.image[top : top + PATCH, left : left + PATCH]))
            labels.append(label)
            origins.append(index)
    return np.array(features), np.array(labels), np.array(origins)


@pytest.fixture(scope="module")
def scenes() -> list[Sample]:
    return list(SyntheticScenes(SCENES))


@pytest.fixture(scope="module")
def masks(scenes: list[Sample]) -> np.ndarray:
    return np.stack([scene.mask for scene in scenes])


@pytest.fixture(scope="module")
def patches(scenes: list[Sample]) -> tuple[np.ndarray, ...]:
    return *interior_patches(scenes)[:2], *interior_patches(list(SyntheticScenes(SCENES, split="val")))


def balanced_accuracy(target: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.mean([(predicted[target == label] == label).mean() for label in np.unique(target)]))


CLASSIFIERS = {
    "logistic": lambda: LogisticRegression(max_iter=500, class_weight="balanced"),
    "neighbours": lambda: KNeighborsClassifier(15),
    "forest": lambda: RandomForestClassifier(40, max_depth=8, class_weight="balanced", random_state=0),
}


@pytest.mark.parametrize("material", ALIKE)
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_local_appearance_is_at_chance(patches: tuple[np.ndarray, ...], material: str, kind: str) -> None:
    x, y, x_val, y_val, _ = patches
    group = ALIKE[material]
    train, val = np.isin(y, group), np.isin(y_val, group)
    model = make_pipeline(StandardScaler(), CLASSIFIERS[kind]()).fit(x[train], y[train])
    accuracy = balanced_accuracy(y_val[val], model.predict(x_val[val]))
    # Three standard errors of a guesser: at least 100 validation patches of every class.
    assert min((y_val == label).sum() for label in group) >= 100
    assert abs(accuracy - 1 / len(group)) < 0.07


@pytest.mark.parametrize("pair", [pair for group in ALIKE.values() for pair in combinations(group, 2)])
def test_no_feature_differs_within_a_scene(patches: tuple[np.ndarray, ...], pair: tuple[int, int]) -> None:
    """Between patches of one scene, whose colours and light are shared, differences have mean zero."""
    _, _, x, y, scene = patches
    common = np.intersect1d(scene[y == pair[0]], scene[y == pair[1]])
    first, second = (x[y == label][np.isin(scene[y == label], common)] for label in pair)
    difference = first - second
    assert len(difference) >= 30
    errors = difference.mean(0) / (difference.std(0) / np.sqrt(len(difference)))
    assert np.abs(errors).max() < 4


@pytest.mark.parametrize("pair", [pair for kind in ("white", "red") for pair in combinations(ALIKE[kind], 2)])
def test_blobs_are_of_the_same_sizes(masks: np.ndarray, pair: tuple[int, int]) -> None:
    """The areas of whole blobs, those the frame does not cut, come from one distribution."""
    areas: dict[int, list[int]] = {label: [] for label in pair}
    for mask in masks:
        for label in pair:
            blob = mask == label
            cut = blob[0].any() or blob[-1].any() or blob[:, 0].any() or blob[:, -1].any()
            if blob.any() and not cut:
                areas[label].append(int(blob.sum()))
    assert min(map(len, areas.values())) >= 30
    assert ks_2samp(*areas.values()).pvalue > 0.001


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_same_features_tell_the_materials(patches: tuple[np.ndarray, ...], kind: str) -> None:
    """The control: the classifiers are not simply bad."""
    x, y, x_val, y_val, _ = patches
    material = np.array([0, 1, 0, 2, 2, 2, 3, 3, 3])
    model = make_pipeline(StandardScaler(), CLASSIFIERS[kind]()).fit(x, material[y])
    assert balanced_accuracy(material[y_val], model.predict(x_val)) > 0.97


def test_the_arrangement_decides(masks: np.ndarray) -> None:
    """From the materials and the land alone every label follows: a perfect solver exists."""
    for mask in masks[:60]:
        for column in range(0, 96, 7):
            labels = mask[:, column]
            land = np.flatnonzero(labels == 1)
            if len(land):
                assert set(labels[: land[0]]) <= {0, 3, 4, 6, 7}
                assert set(labels[land[-1] + 1 :]) <= {2, 4, 5, 7, 8}


def test_blobs_keep_to_their_band(masks: np.ndarray) -> None:
    """Blobs in the blue never touch land; blobs on land always do."""
    for mask in masks[:100]:
        near_land = box_any(mask == 1, 1, 1, 1)
        for label in set(np.unique(mask)) - {0, 1, 2}:
            touches = bool((near_land & (mask == label)).any())
            assert touches == (label in (4, 7)), SCENE_CLASSES.names[label]


def test_land_is_within_reach_mostly(masks: np.ndarray) -> None:
    reached: dict[int, list[np.ndarray]] = {0: [], 2: []}
    for mask in masks[:60]:
        reached[0].append(box_any(mask == 1, 0, 38, 19)[mask == 0])
        reached[2].append(box_any(mask == 1, 38, 0, 19)[mask == 2])
    for label, parts in reached.items():
        assert 0.7 < np.concatenate(parts).mean() < 0.95, SCENE_CLASSES.names[label]


def test_every_class_occurs_often_enough(masks: np.ndarray) -> None:
    for label, name in enumerate(SCENE_CLASSES.names):
        assert (masks == label).mean() > 0.02, name
        assert (masks == label).any((1, 2)).mean() > 0.4, name


def test_height_in_the_image_is_a_poor_guide(masks: np.ndarray) -> None:
    for group, most in (((0, 2), 0.9), ((3, 4, 5), 0.8), ((6, 7, 8), 0.8)):
        by_row = np.stack([(masks == label).sum((0, 2)) for label in group])
        assert by_row.max(0).sum() / by_row.sum() < most


def test_blobs_are_larger_than_the_local_view(masks: np.ndarray) -> None:
    """Most whole blobs hold a 16x16 square, so that their insides show one material only."""
    fits = []
    for mask in masks[:60]:
        for label in set(np.unique(mask)) - {0, 1, 2}:
            fits.append(over_windows(np.min, mask == label, 16, 16).any())
    assert np.mean(fits) > 0.8


def test_same_bytes_whatever_the_order() -> None:
    forwards, backwards = SyntheticScenes(6), SyntheticScenes(60)
    for index in (5, 0, 3):
        a, b = forwards[index], backwards[index]
        assert np.array_equal(a.image, b.image)
        assert np.array_equal(a.mask, b.mask)


def test_seeds_splits_and_indices_differ() -> None:
    images = [
        SyntheticScenes(2, seed=seed, split=split)[index].image.tobytes()
        for seed in (0, 1)
        for split in ("train", "val", "test")
        for index in (0, 1)
    ]
    assert len(set(images)) == len(images)


@pytest.mark.parametrize("size", [32, 50, 160])
def test_other_sizes(size: int) -> None:
    scene = SyntheticScenes(1, size=size)[0]
    assert scene.image.shape == (size, size, 3)
    assert len(np.unique(scene.mask)) >= 4


def test_fast_enough_to_draw_while_training() -> None:
    data = SyntheticScenes(30)
    data[0]
    times = []
    for index in range(30):
        start = time.process_time()
        data[index]
        times.append(time.process_time() - start)
    assert np.median(times) < 0.02  # measured: 3 ms; the limit allows for a busy machine


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"count": 0}, "at least 1 scene"),
        ({"size": 31}, "at least 32 pixels"),
        ({"seed": -1}, "0 or a positive"),
        ({"split": "vall"}, 'did you mean "val"'),
    ],
)
def test_refusals(options: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        SyntheticScenes(**options)


MATERIAL = {
    **dict.fromkeys(("sky", "water"), "blue"),
    "land": "earth",
    **dict.fromkeys(("cloud", "snow", "foam"), "white"),
    **dict.fromkeys(("balloon", "house", "buoy"), "red"),
}


def test_the_target_is_the_material_of_the_scene_underneath() -> None:
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
    added = add_blotches(grey, 0.1, np.random.default_rng(0)).astype(float) - 128
    assert abs(added.std() / 25.5 - 1) < 0.02
    beside = np.corrcoef(added[:, 1:].ravel(), added[:, :-1].ravel())[0, 1]
    apart = np.corrcoef(added[:, 12:].ravel(), added[:, :-12].ravel())[0, 1]
    assert beside > 0.8
    assert abs(apart) < 0.1


def test_no_noise_leaves_the_scene_as_it_is() -> None:
    assert np.array_equal(NoisyScenes(2, noise=0.0)[1].image, SyntheticScenes(2)[1].image)
