"""What comes with the package: trained models by name, and photographs to try them on.

    NAME/    config.json, model.safetensors, and README.md, the model card

Wherever a model is asked for, a name means one of these and a path a folder of one's own; nothing at all means
`DEFAULT`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

BUNDLED = Path(__file__).parent
DEFAULT = "voc"
PHOTOGRAPHS = ("chelsea.png", "astronaut.png", "motorcycle_left.png")


def bundled_models() -> list[str]:
    """Names of the bundled models.

    >>> bundled_models()
    ['voc']
    """
    return sorted(folder.name for folder in BUNDLED.iterdir() if (folder / "config.json").is_file())


def model_folder(model: str | Path | None = None) -> Path:
    """Where a model is: a folder as it is given, unless it has the name of a bundled model and holds none itself.

    >>> model_folder("runs/mine/best").parts
    ('runs', 'mine', 'best')
    >>> model_folder().name
    'voc'
    """
    if model is None:
        return BUNDLED / DEFAULT
    given = Path(model)
    own = any((folder / "config.json").is_file() for folder in (given, given / "best"))
    return BUNDLED / given if str(given) in bundled_models() and not own else given


def photographs() -> list[Path]:
    """Files of scikit-image's photographs of a cat, an astronaut and a motorbike; none where it is not installed."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        return []
    folder = Path(package.origin).parent / "data"
    return [folder / name for name in PHOTOGRAPHS if (folder / name).is_file()]
