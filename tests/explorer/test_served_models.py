"""Which models are on offer, and what is said about them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from messagenet.data import Classes
from messagenet.errors import InputError
from messagenet.explorer.models import ServedModel, chosen, load_models
from messagenet.models import KINDS


def test_what_is_said_about_a_model(models):
    described = models[0].description()
    assert described["id"] == "messages"
    assert described["kind"] == "message"
    assert described["classes"][0] == {"name": "sky", "colour": "#8ecae6"}
    assert len(described["classes"]) == 9
    assert described["relations"] == [
        {"name": name, "form": "pairwise"} for name in ("surrounding", "above", "below")
    ]
    assert (described["iterations"], described["explains"], described["stride"]) == (2, True, 4.0)


def test_models_without_messages_do_not_explain(models):
    alone = models[2].description()
    assert (alone["kind"], alone["explains"], alone["iterations"], alone["relations"]) == (
        "unary",
        False,
        0,
        [],
    )


@pytest.mark.parametrize("kind", ["message", "unary", "context_crf", "crf_likelihood", "crf_rnn", "dilated"])
def test_every_kind_is_known_by_its_name(kind):
    torch.manual_seed(0)
    network, settings = KINDS[kind]
    model = ServedModel("x", network("tiny", Classes(("a", "b", "c")), **settings))
    assert model.kind == kind
    assert model.explains == (kind == "message")


def test_iterations_are_checked(models):
    assert models[0].checked_iteration(None) == 2
    assert models[0].checked_iteration(0) == 0
    for wrong in (-1, 3):
        with pytest.raises(InputError, match=r"model 'messages' has 0 \(before messages\) to 2$"):
            models[0].checked_iteration(wrong)


def test_models_are_chosen_by_name(models):
    assert chosen(models, None) is models[0]
    assert chosen(models, "boxes") is models[1]
    with pytest.raises(InputError, match="there is no model 'boxs'; did you mean \"boxes\""):
        chosen(models, "boxs")


def test_without_a_model_the_one_in_the_box_and_those_of_the_demo_are_shown(tmp_path, monkeypatch, models):
    monkeypatch.chdir(tmp_path)
    assert [model.id for model in load_models([])] == ["voc-animals"]
    models[0].net.save(tmp_path / "demo" / "messages" / "best")
    assert [model.id for model in load_models([])] == ["voc-animals", "messages"]


def test_a_model_in_the_box_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [model.id for model in load_models([Path("voc-animals")])] == ["voc-animals"]
