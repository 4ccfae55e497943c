"""The Python of the README runs as printed, block after block, up to the ones that need a trained model."""

from __future__ import annotations

import re
from pathlib import Path

import torch

README = Path(__file__).resolve().parents[1] / "README.md"


def test_snippets_run_and_mean_what_they_say():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names: dict = {}
    ran = [block for block in blocks if "from_pretrained" not in block]
    for block in ran:
        exec(block, names)
    assert len(ran) == len(blocks) - 1
    assert names["logits"].shape == (2, 21, 32, 48)
    total = sum(
        message.values
        for message in names["received_messages"](names["head"], names["features"], node=(10, 17))
    )
    torch.testing.assert_close(total, names["logits"][0, :, 10, 17], rtol=1e-3, atol=1e-3)
    unary = names["potentials"][0]
    torch.testing.assert_close(unary.grad, names["result"].marginals.detach(), rtol=1e-3, atol=1e-3)


def test_every_file_it_names_exists():
    for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
