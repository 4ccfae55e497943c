"""The interface of feature networks C1, and reading of published weights.

    images (B, 3, H, W)  →  features (B, channels, h, w),   h ≈ H / stride,  w ≈ W / stride

Each cell of the map is a variable node p, and its vector is the C1(x, p) that message estimators read (Lin, Shen, Reid,
van den Hengel, NIPS 2015, section 3.3). Images have any size from 1×1 up.

A file of weights is read without running code, and must match: a missing, unknown or misshapen tensor stops the loading
before anything is overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from messagenet.errors import InputError, some

IMAGENET_STD = (0.229, 0.224, 0.225)  # of red, green and blue in 0..1


class Backbone(Protocol):
    """The interface of a feature network, for type checkers."""

    @property
    def channels(self) -> int:
        """Length r of a node's feature vector."""
        ...

    @property
    def stride(self) -> float:
        """Image pixels per node along either axis; not always whole."""
        ...

    def __call__(self, images: Tensor) -> Tensor:
        """Maps normalised images (B, 3, H, W) to features (B, channels, h, w)."""
        ...


def positive_integer(option: str, value: object) -> int:
    """Returns `value` if it is a whole number above zero; an error names the option.

    >>> positive_integer("width", 32)
    32
    >>> positive_integer("width", 1.5)
    Traceback (most recent call last):
    messagenet.errors.InputError: width must be a whole number above zero, not 1.5
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{option} must be a whole number above zero, not {value!r}")
    return value


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Reads named tensors from a .safetensors file, or from a .pth / .pt file that holds only tensors."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no weights file {path}: check the path")
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise InputError(f"cannot read weights from {path}: the name must end in .safetensors, .pth or .pt")
    try:
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can fail in any way at all
        raise InputError(
            f"cannot read weights from {path}: it is damaged or holds more than tensors, so fetch it again"
        ) from error
    return check_state_dict(content, str(path))


def check_state_dict(content: object, origin: str) -> dict[str, Tensor]:
    """Returns `content` if it is a dictionary of named tensors, and refuses it otherwise."""
    if not isinstance(content, dict) or not content:
        raise InputError(f"{origin} holds no dictionary of tensors: save model.state_dict() there")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(f"{origin} holds {name!r}, which is not a tensor: save model.state_dict() there")
    return dict(content)


def fill(
    module: nn.Module, source: Mapping[str, Tensor], names: Mapping[str, str], *, ignored: Sequence[str], origin: str
) -> list[str]:
    """Copies published tensors into a module, all of them or none; returns the names of parameters left as they are.

    >>> layer = nn.Linear(2, 1)
    >>> published = {"w": torch.ones(1, 2), "classifier.w": torch.ones(9)}
    >>> fill(layer, published, {"weight": "w"}, ignored=["classifier."], origin="x.pth")
    ['bias']
    >>> fill(layer, {"v": torch.ones(1, 2)}, {"weight": "w"}, ignored=[], origin="x.pth")
    Traceback (most recent call last):
    messagenet.errors.InputError: the weights of x.pth do not fit Linear: missing w; unknown v

    Args:
        module: The network to fill; values are converted to its precision.
        source: Tensors by their published names.
        names: For each entry of the module's state dict to fill, its name in `source`.
        ignored: Prefixes of source names that the module does not use.
        origin: Where the tensors came from, for error messages.
    """
    own = module.state_dict()
    wanted = set(names.values())
    missing = sorted(wanted - set(source))
    unknown = sorted(name for name in set(source) - wanted if not name.startswith(tuple(ignored)))
    misshapen = [
        f"{theirs} {tuple(source[theirs].shape)} instead of {tuple(own[ours].shape)}"
        for ours, theirs in names.items()
        if theirs in source and source[theirs].shape != own[ours].shape
    ]
    problems = (("missing", missing), ("unknown", unknown), ("wrong shape", misshapen))
    found = [f"{problem} {some(culprits)}" for problem, culprits in problems if culprits]
    if found:
        raise InputError(f"the weights of {origin} do not fit {type(module).__name__}: {'; '.join(found)}")
    module.load_state_dict({ours: source[theirs] for ours, theirs in names.items()}, strict=False)
    return [name for name, _ in module.named_parameters() if name not in names]
