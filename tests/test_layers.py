"""Imports point one way: a package may import from those before it in the list, never from those after."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import messagenet

SOURCE = Path(__file__).resolve().parents[1] / "src" / "messagenet"
LAYERS = [
    {"errors", "_version"},
    {"bundled", "settings"},
    {"graph"},
    {"inference", "message_passing", "data"},
    {"geometry"},
    {"losses"},
    {"models"},
    {"evaluation"},
    {"report"},
    {"prediction"},
    {"training", "explorer"},
    {"studies"},
    {"api"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
HOME = messagenet._HOME
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            if node.module and node.module.startswith("messagenet"):
                names = [a.name for a in node.names]
                found |= (
                    {node.module.split(".")[1]} if "." in node.module else {HOME.get(n, n) for n in names}
                )
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("messagenet.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in RANK, f"{own} is in no layer: add it to the list"
    for other in imported(path) & RANK.keys():
        allowed = other == own or RANK[other] < RANK[own]
        assert allowed, f"{path.relative_to(SOURCE)} imports {other}, which is not below {own}"


def test_every_public_name_is_there():
    assert set(messagenet._HOME) <= set(messagenet.__all__)
    for name in messagenet.__all__:
        assert getattr(messagenet, name) is not None
    assert set(messagenet.__all__) <= set(dir(messagenet))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = messagenet.nonsense
