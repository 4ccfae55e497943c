"""Importing the package stays cheap: heavy libraries wait until they are needed."""

import subprocess
import sys

import pytest

HEAVY = ("numba", "matplotlib", "yaml", "rich")


@pytest.mark.parametrize("package", ["messagenet.evaluation", "messagenet.report"])
def test_import_loads_no_heavy_library(package):
    code = f"import sys, {package}; print(*(name for name in {HEAVY} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
