"""The models in the box: trained networks that come with the package, by name.

    NAME/    config.json, model.safetensors, and README.md, the model card

Wherever a model is asked for, a name means one of these and a path a folder of one's own; nothing at all means
`DEFAULT`.

Photographs that are free for everyone: a cat and an astronaut, which scikit-image carries in its package.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

SHIPPED = Path(__file__).parent
DEFAULT = "voc-animals"


def shipped_models() -> list[str]:
    """Names of the models in the box.

    >>> shipped_models()
    ['voc-animals']
    """
    return sorted(folder.name for folder in SHIPPED.iterdir() if (folder / "config.json").is_file())


def model_folder(model: str | Path | None = None) -> Path:
    """Where a model is: a folder as it is given, unless it has the name of a model in the box and holds none itself.

    >>> model_folder("runs/mine/best").parts
    ('runs', 'mine', 'best')
    >>> model_folder().name
    'voc-animals'
    """
    if model is None:
        return SHIPPED / DEFAULT
    given = Path(model)
    own = any((folder / "config.json").is_file() for folder in (given, given / "best"))
    return SHIPPED / given if str(given) in shipped_models() and not own else given


PACKAGE = "scikit-image"
NAMES = ("chelsea.png", "astronaut.png")


def photographs() -> list[Path]:
    """The files, without loading the package; none where it is not installed."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        return []
    folder = Path(package.origin).parent / "data"
    return [folder / name for name in NAMES if (folder / name).is_file()]
