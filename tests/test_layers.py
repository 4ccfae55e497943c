"""Imports point one way, a name means one thing, and the package stays small.

A package may import from those before it in the list, never from those after or beside it. A public class, function or
constant is defined in one module of the package.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import messagenet

SOURCE = Path(__file__).resolve().parents[1] / "src" / "messagenet"
LAYERS = [
    {"errors", "_version"},
    {"settings", "bundled"},
    {"graph"},
    {"inference", "message_passing", "data"},
    {"geometry"},
    {"models"},
    {"losses"},
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
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
FRONT_DOORS = ("cli/",)
"""Where a command has the name of what it calls."""


def imported(path: Path) -> set[str]:
    """The packages of ours that a module imports, inside functions and for type checking too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            modules = (
                [messagenet._MODULES.get(alias.name, f"messagenet.{alias.name}") for alias in node.names]
                if node.module == "messagenet"
                else [node.module or ""]
            )
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        found |= {module.split(".")[1] for module in modules if module.startswith("messagenet.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in RANK, f"{own} is in no layer: add it to the list"
    for other in imported(path):
        assert other in RANK, f"{path.relative_to(SOURCE)} imports {other}, which does not exist"
        allowed = other == own or RANK[other] < RANK[own]
        assert allowed, f"{path.relative_to(SOURCE)} imports {other}, which is not below {own}"


def test_imports_are_found(tmp_path):
    source = tmp_path / "module.py"
    source.write_text(
        "import messagenet.graph.grid\nfrom messagenet import Predictor, cli\n"
        "def f():\n    from messagenet.training.loop import run_training\n"
    )
    assert imported(source) == {"graph", "prediction", "cli", "training"}


def public_names(path: Path) -> Iterator[str]:
    """Names of classes, functions and constants that a module defines; type variables of one letter are left out."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        else:
            names = []
        yield from (name for name in names if not name.startswith("_") and len(name) > 1)


def test_a_public_name_is_defined_in_one_module():
    modules = defaultdict(set)
    for path in MODULES:
        where = str(path.relative_to(SOURCE))
        if not where.startswith(FRONT_DOORS):
            for name in public_names(path):
                modules[name].add(where)
    twice = {name: sorted(where) for name, where in modules.items() if len(where) > 1}
    assert not twice


def lines_of_code(path: Path) -> int:
    """Lines that are neither blank nor part of a docstring or an import."""
    text = path.read_text("utf-8")
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node) is not None:
            node = node.body[0]
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(1 for number, line in enumerate(text.splitlines(), 1) if line.strip() and number not in left_out)


def test_the_package_stays_small() -> None:
    """A new capability says what it replaces; raise a bound only for one that replaces nothing."""
    paths = sorted(SOURCE.rglob("*.py"))
    assert len(paths) <= 130
    assert sum(len(path.read_text("utf-8").splitlines()) for path in paths) <= 25_500
    assert sum(map(lines_of_code, paths)) <= 15_370
