"""The public interface: every name and signature is listed in `goldens/public_names.txt`, so that changes are seen.

python tests/test_public_names.py > tests/goldens/public_names.txt
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import messagenet as mn

LISTING = Path(__file__).parent / "goldens" / "public_names.txt"
LAZY = """
import sys, torch
import messagenet as mn
mn.Predictor
print(*[name for name in ("yaml", "rich", "numba", "matplotlib") if name in sys.modules])
"""


def public_names() -> list[str]:
    """Each public name with its signature, sorted."""
    lines = []
    for name in mn.__all__:
        value = getattr(mn, name)
        if inspect.isclass(value):
            lines.append(f"class {name}{_signature(value)}")
            members = inspect.getmembers(
                value, lambda member: inspect.isfunction(member) or isinstance(member, property)
            )
            own = [(n, m) for n, m in members if not n.startswith("_") and _is_ours(m)]
            lines += [f"  .{n}{'' if isinstance(m, property) else _signature(m)}" for n, m in own]
        elif callable(value):
            lines.append(f"def {name}{_signature(value)}")
        else:
            lines.append(name)
    return lines


def _signature(value: object) -> str:
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except ValueError:
        return "(...)"
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


def _is_ours(member: object) -> bool:
    function = member.fget if isinstance(member, property) else member
    return str(getattr(function, "__module__", "")).startswith("messagenet")


def test_names_and_signatures_are_those_that_are_listed():
    listed = LISTING.read_text(encoding="utf-8").splitlines()
    assert public_names() == listed, "the public interface changed; list it anew and review the difference"


def test_every_name_is_there():
    for name in mn.__all__:
        assert getattr(mn, name) is not None
    assert set(mn.__all__) <= set(dir(mn))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = mn.nonsense


def test_a_predictor_loads_neither_yaml_nor_rich_nor_numba_nor_matplotlib():
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


if __name__ == "__main__":
    print("\n".join(public_names()))
