"""Lists the error texts of the package, one per line; `error_texts.txt` holds what it prints.

Expressions inside a text are shown as {}. The listing is committed, so that a change of wording is seen in review.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "messagenet"


def template(node: ast.expr) -> str | None:
    """The text of a string expression, with {} for what is filled in; None if there is no text in it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join("{}" if isinstance(part, ast.FormattedValue) else template(part) or "" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = (template(left), template(right))
            return None if parts == (None, None) else "".join(part or "{}" for part in parts)
    return None


def error_texts() -> list[str]:
    """Every text that an `InputError`, or an error derived from it, is raised with; sorted, each once."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                found.update(_texts(node.exc))
    return sorted(found)


def _texts(call: ast.Call) -> Iterator[str]:
    for argument in call.args:
        text = template(argument)
        if text is not None:
            yield " ".join(text.split())


if __name__ == "__main__":
    print("\n".join(error_texts()))
