"""What a head asks of the graph and the tensors it is called with, said in one line each where they do not fit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from messagenet.errors import InputError, nearest
from messagenet.estimators.any_graph.field import Known
from messagenet.estimators.any_graph.settings import ONLY_TYPE, FactorType, GraphRules
from messagenet.graph.typed import TypedGraph


def check_graph(rules: GraphRules, graph: TypedGraph) -> None:
    """Refuses a graph that has what the head does not know."""
    _check_variables(rules, graph)
    for name, blocks in graph.factors.items():
        if name not in rules.factors:
            raise InputError(
                f"the graph has factors {name!r}, which this head does not know; "
                f"{nearest(name, rules.factors) if rules.factors else 'name them when the head is built'}"
            )
        kind = rules.factors[name]
        for block in blocks:
            order = block.scopes.shape[1]
            if kind.order is not None and order != kind.order:
                raise InputError(
                    f"factors {name!r} have order {order} in the graph but {kind.order} in the head; "
                    "build the head with the graph's order, or with order=None and ordered=False for any"
                )
            _check_positions(name, kind, graph, block.scopes)


def _check_variables(rules: GraphRules, graph: TypedGraph) -> None:
    expected = set(rules.num_classes)
    if graph.variable_types is None:
        if expected != {ONLY_TYPE}:
            raise InputError(
                f"this head has variables of types {', '.join(sorted(expected))}; build the graph with variable_types"
            )
        return
    for kind in graph.type_names:
        if kind not in expected:
            fix = "give num_classes for each type" if expected == {ONLY_TYPE} else nearest(kind, expected)
            raise InputError(
                f"the graph has variables of type {kind!r}, which this head does not know; {fix}"
            )


def _check_positions(name: str, kind: FactorType, graph: TypedGraph, scopes: Tensor) -> None:
    if graph.variable_types is None:
        return
    for position in range(scopes.shape[1]):
        expected = kind.kind_at(position)
        found = graph.variable_types[scopes[:, position]]
        code = graph.type_names.index(expected) if expected in graph.type_names else -1
        wrong = (found != code).nonzero()
        if len(wrong):
            other = graph.type_names[int(found[wrong[0]])]
            raise InputError(
                f"factors {name!r}: position {position} should hold a variable of type {expected!r}, one of "
                f"them holds a {other!r}; correct its scope or the head's variable_types"
            )


def check_features(
    rules: GraphRules,
    in_channels: int,
    weight: Tensor,
    features: Tensor | Mapping[str, Tensor],
    graph: TypedGraph,
) -> dict[str, Tensor]:
    """One feature matrix for each factor type, of the type and device of `weight`, a parameter of the head."""
    names = ["unary", *rules.factors]
    given = dict.fromkeys(names, features) if isinstance(features, Tensor) else features
    if missing := [name for name in names if name not in given]:
        raise InputError(f"no features for {', '.join(missing)}; give one matrix for each of {names}")
    for values in {id(values): values for values in given.values()}.values():
        if values.ndim != 2 or values.shape[1] != in_channels:
            raise InputError(
                f"features have shape {tuple(values.shape)}; this head takes (variables, {in_channels})"
            )
        if len(values) != graph.num_variables:
            raise InputError(
                f"{len(values)} rows of features for {graph.num_variables} variables; give one row each"
            )
        _check_tensor("features", values, weight)
    return {name: given[name] for name in names}


def _check_tensor(what: str, values: Tensor, weight: Tensor) -> None:
    """Refuses another device, another type (unless autocast minds it) and what is not finite."""
    if values.device != weight.device:
        raise InputError(
            f"{what} are on {values.device}, the head is on {weight.device}; move one with .to(…)"
        )
    if values.dtype != weight.dtype and not torch.is_autocast_enabled(weight.device.type):
        raise InputError(
            f"{what} are {values.dtype}, the head is {weight.dtype}; convert one with .to(dtype)"
        )
    if not torch.compiler.is_compiling() and not bool(torch.isfinite(values).all()):
        raise InputError(f"{what} contain NaN or infinity; look for a diverged encoder or a bad input")


def check_factor_features(
    rules: GraphRules, weight: Tensor, factor_features: Mapping[str, Tensor] | None, graph: TypedGraph
) -> dict[str, Tensor]:
    """The features of factors, for the types that have them."""
    given = factor_features or {}
    expected = {name: kind.features for name, kind in rules.factors.items() if kind.features}
    for name in given:
        if name not in expected:
            raise InputError(
                f"factor features for {name!r} were not announced; build its FactorType with features=…"
            )
    for name, width in expected.items():
        shape = (graph.num_factors(name), width)
        if name not in given:
            if shape[0]:
                raise InputError(f"factors {name!r} come with {width} features each; give factor_features")
            continue
        if tuple(given[name].shape) != shape:
            raise InputError(
                f"features of factors {name!r} have shape {tuple(given[name].shape)}; it must be {shape}"
            )
        _check_tensor(f"features of factors {name!r}", given[name], weight)
    return dict(given)


def check_known(rules: GraphRules, known: Known | None, graph: TypedGraph) -> Known:
    """What is known must be what the head was built to correct."""
    given = known or {}
    if set(given) != rules.known:
        raise InputError(
            f"this head corrects computed messages of {sorted(rules.known) or 'no type'}, but was called with "
            f"known messages of {sorted(given) or 'none'}; give the same"
        )
    if "unary" in given:
        unary = given["unary"]
        shape = (graph.num_variables, rules.most_classes)
        if not isinstance(unary, Tensor) or tuple(unary.shape) != shape:
            raise InputError(f"known unary messages must be a tensor of log-potentials of shape {shape}")
    return given
