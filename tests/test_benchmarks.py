"""Every benchmark, recipe script and example runs in its quick form and ends with one JSON object."""

from __future__ import annotations

import ast
import json
import math
import os
import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [
    path.relative_to(ROOT)
    for folder in ("benchmarks", "recipes", "examples")
    for path in sorted((ROOT / folder).glob("*.py"))
    if '__name__ == "__main__"' in path.read_text("utf-8")
]


def result_keys(source: str) -> tuple[set[str], bool]:
    """The keys that a script's call of `finish` names, in either form, and whether these are all."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    keywords = [k.arg for call in calls if getattr(call.func, "id", "") == "finish" for k in call.keywords]
    return {name for name in keywords if name}, bool(keywords) and None not in keywords


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_quick_form(script, monkeypatch, capsys, tmp_path):
    source = (ROOT / script).read_text("utf-8")
    assert "--quick" in source or "QUICK" in source, "give it a --quick form"
    before = set(sys.modules)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"), prepend=os.pathsep)
    monkeypatch.setattr(sys, "argv", [str(ROOT / script), "--quick"])
    monkeypatch.syspath_prepend(str((ROOT / script).parent))
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
        for name in {"common", "peer_environments"} - before:
            sys.modules.pop(name, None)
    results = json.loads(capsys.readouterr().out.splitlines()[-1])
    keys, complete = result_keys(source)
    assert results
    assert set(results) == keys if complete else set(results) >= keys
    for name, value in results.items():
        assert value is None or (isinstance(value, int | float) and math.isfinite(value)), name
    assert not list(tmp_path.iterdir()), "the quick form writes into the working directory"


def test_all_scripts_are_found():
    names = {path.stem for path in SCRIPTS}
    assert {"aggregate", "inference", "serving_load", "model", "publish", "snakes", "ldpc"} <= names
