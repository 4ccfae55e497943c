"""Relations as one word: how configuration files and the command line write them.

    [name=]shape[:size][:form]

    surrounding                 the paper's range, 0.4 of the short edge of the feature map
    above:0.25                  another fraction of it
    surrounding:13cells         a range box of 13 nodes
    below:0.4:box               one high-order factor per node instead of one for every pair
    near=surrounding:3cells     a name of its own, for a second relation of the same shape
    four_neighbours             no size

Relations by their offsets have no short form: write the mapping that `Relation.to_dict` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from messagenet.errors import InputError, nearest
from messagenet.graph import Relation, four_neighbours
from messagenet.graph.relation import DEFAULT_FRACTION

SHAPES = ("surrounding", "above", "below", "left", "right", "four_neighbours")
FORMS = ("pairwise", "box")
CELLS = "cells"


def parse_relation(given: str | Mapping[str, Any]) -> Relation:
    """The relation that a word, or a mapping of `Relation`'s settings, describes.

    >>> parse_relation("above:0.25").fraction
    0.25
    >>> parse_relation("near=surrounding:3cells:box")
    Relation(name='near', shape='surrounding', fraction=None, cells=3, offsets=None, form='box')
    >>> parse_relation("abve:0.4")
    Traceback (most recent call last):
    messagenet.errors.InputError: relation "abve:0.4" has the shape "abve": did you mean "above"?
    """
    if not isinstance(given, str):
        return _from_mapping(given)
    name, equals, rest = given.rpartition("=")
    shape, *parts = (part.strip() for part in rest.split(":"))
    if shape not in SHAPES:
        raise InputError(f'relation "{given}" has the shape "{shape}": {nearest(shape, SHAPES)}')
    form = parts.pop() if parts and parts[-1] in FORMS else "pairwise"
    if len(parts) == 2 and parts[-1] not in FORMS:
        raise InputError(f'relation "{given}" has the form "{parts[-1]}": {nearest(parts[-1], FORMS)}')
    if len(parts) > 1:
        raise InputError(
            f'relation "{given}" has too many parts; write shape:size:form, as surrounding:0.4:box'
        )
    values: dict[str, Any] = {"name": name.strip() if equals else shape, "form": form}
    if shape == "four_neighbours":
        if parts:
            raise InputError(f'relation "{given}" has a size; four_neighbours takes none')
        return Relation.from_dict(values | {"offsets": four_neighbours().offsets})
    return Relation.from_dict(values | {"shape": shape} | _size(given, parts[0] if parts else None))


def relation_text(relation: Relation) -> str | dict[str, Any]:
    """The shortest form that `parse_relation` reads back.

    >>> relation_text(parse_relation("surrounding:0.4:pairwise"))
    'surrounding:0.4'
    """
    form = "" if relation.form == "pairwise" else f":{relation.form}"
    if relation.offsets is not None:
        if relation.offsets != four_neighbours().offsets:
            return relation.to_dict() | {"offsets": [list(offset) for offset in relation.offsets]}
        shape, size = "four_neighbours", ""
    else:
        shape = relation.shape
        size = f":{relation.fraction!r}" if relation.cells is None else f":{relation.cells}{CELLS}"
    name = "" if relation.name == shape else f"{relation.name}="
    return f"{name}{shape}{size}{form}"


def _from_mapping(given: Mapping[str, Any]) -> Relation:
    try:
        return Relation.from_dict(dict(given))
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"relation {dict(given)} is incomplete or misshapen; give a name and either shape and size, or offsets "
            "such as [[-1, 0], [1, 0]]"
        ) from error


def _size(given: str, size: str | None) -> dict[str, Any]:
    if size is None:
        return {"fraction": DEFAULT_FRACTION}
    number = size.removesuffix(CELLS).strip()
    try:
        return {"cells": int(number)} if size.endswith(CELLS) else {"fraction": float(number)}
    except ValueError:
        raise InputError(
            f'relation "{given}" has the size "{size}"; write a fraction of the short edge, such as 0.4, or a '
            "number of nodes, such as 13cells"
        ) from None
