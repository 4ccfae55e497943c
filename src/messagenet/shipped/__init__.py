"""The models in the box: trained networks that come with the package, by name.

    NAME/    config.json, model.safetensors, and README.md, the model card

Wherever a model is asked for, a name means one of these and a path a folder of one's own; nothing at all means the
first of them.
"""

from __future__ import annotations

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
    """Where a model is: a folder as it is given, unless it has the name of a model in the box and does not exist.

    >>> model_folder("runs/mine/best").parts
    ('runs', 'mine', 'best')
    >>> model_folder().name
    'voc-animals'
    """
    given = Path(DEFAULT if model is None else model)
    if model is not None and given.exists():
        return given
    return SHIPPED / given if str(given) in shipped_models() else given
