"""UAI and .fg files: reading, writing, and one clear line for whatever is wrong."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph.factor_graph import FactorGraph
from messagenet.graph.formats import (
    format_uai,
    parse_evidence,
    parse_fg,
    parse_uai,
    read_evidence,
    read_fg,
    read_uai,
    write_uai,
)
from random_graphs import random_graph, random_potentials

MARKOV = """MARKOV
3
2 2 3
3
1 0
2 0 1
2 2 1

2
 0.436 0.564

4
 0.128 0.872
 0.920 0.080

6
 0.210 0.333 0.457
 0.811 0 0.189
"""

BAYES = "BAYES\n2\n2 2\n2\n1 0\n2 0 1\n\n2\n0.3 0.7\n\n4\n0.1 0.9\n0.5 0.5\n"


def test_the_last_variable_of_a_scope_varies_fastest():
    graph, potentials = parse_uai(MARKOV)
    first, second, third = (table.exp() for table in graph.unpack(potentials))
    assert graph.cardinalities.tolist() == [2, 2, 3]
    assert graph.scopes() == [(0,), (0, 1), (2, 1)]
    torch.testing.assert_close(first, torch.tensor([0.436, 0.564], dtype=torch.float64))
    assert float(second[0, 1]) == pytest.approx(0.872)
    assert third.shape == (3, 2)
    assert float(third[2, 0]) == 0
    assert float(third[0, 1]) == pytest.approx(0.333)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_written_models_read_back(seed):
    generator = torch.Generator().manual_seed(seed)
    base = random_graph(4, 3, order=3, cardinality=(1, 3), generator=generator)
    graph = FactorGraph(base.cardinalities, [*base.scopes(), (1, 0), ()])
    potentials = random_potentials(graph, scale=5.0, generator=generator)
    again, tables = parse_uai(format_uai(graph, potentials))
    assert again.scopes() == graph.scopes()
    assert torch.equal(again.cardinalities, graph.cardinalities)
    for found, expected in zip(again.unpack(tables), graph.unpack(potentials), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-13, rtol=1e-13)


def test_files(tmp_path):
    graph, potentials = parse_uai(BAYES)
    write_uai(tmp_path / "m.uai", graph, potentials, kind="BAYES")
    text = (tmp_path / "m.uai").read_text()
    assert text.startswith("BAYES\n2\n2 2\n2\n1 0\n2 0 1\n")
    again, tables = read_uai(tmp_path / "m.uai")
    assert again.scopes() == graph.scopes()
    assert all(torch.allclose(a, b) for a, b in zip(tables, potentials, strict=True))
    (tmp_path / "m.evid").write_text("1 1 0\n")
    assert read_evidence(tmp_path / "m.evid", graph) == {1: 0}
    with pytest.raises(InputError, match="cannot read"):
        read_uai(tmp_path / "absent.uai")


def test_writing_refuses_what_the_format_cannot_hold():
    graph, potentials = parse_uai(MARKOV)
    with pytest.raises(InputError, match="one item of the batch"):
        format_uai(graph, [table[None] for table in potentials])
    with pytest.raises(InputError, match="BAYES"):
        format_uai(graph, potentials, kind="BAYES")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file ends where MARKOV or BAYES should be"),
        ("MARKOW\n", 'line 1: "MARKOW" is not a kind of network; did you mean "MARKOV"'),
        ("MARKOV\n0\n", "line 2: the number of variables is 0; it must be at least 1"),
        ("MARKOV\ntwo\n", 'line 2: the number of variables should be a whole number, not "two"'),
        ("MARKOV\n2\n2\n1\n", "line 4: the file ends where the number of factors"),
        ("MARKOV\n2\n2 0\n1\n", "line 3: the cardinality of variable 1 is 0"),
        ("MARKOV\n1\n99999999999999999999\n1\n", "line 3: the cardinality of variable 0 is 9+; it must be from 1 to"),
        ("MARKOV\n2\n2 2\n1\n2 0 2\n", "line 5: a variable of factor 0 is 2; it must be from 0 to 1"),
        ("MARKOV\n2\n2 2\n1\n2 1 1\n", "line 5: the scope of factor 0 repeats variable 1"),
        ("MARKOV\n1\n2\n-1\n", "line 4: the number of factors is -1"),
        ("MARKOV\n1\n2\n1\n1 0\n3\n1 1 1\n", "line 6: factor 0 says 3 entries; its scope needs 2"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n0.5 -0.1\n", "line 7: factor 0: potential -0.1 must be finite and not negative"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n0.5 inf\n", "line 7: factor 0: potential inf must be finite"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n0.5 nan\n", "line 7: factor 0: potential nan must be finite"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n0.5 x\n", 'line 7: factor 0: potential should be a number, not "x"'),
        ("MARKOV\n1\n2\n1\n1 0\n2\n0.5\n", "line 7: the file ends where factor 0 should be; it is truncated"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n1 1\n7 8\n", 'line 8: unexpected "7" and 1 more words after the end'),
        ("BAYES\n2\n2 2\n2\n2 0 1\n2 1 0\n4\n1 1 1 1\n4\n1 1 1 1\n", "cyclic at variable 0"),
        ("BAYES\n2\n2 2\n1\n1 0\n2\n1 1\n", "no factor has variable 1 last"),
        ("BAYES\n1\n2\n2\n1 0\n1 0\n2\n1 1\n2\n1 1\n", "factor 1 is a second table for variable 0"),
    ],
)
def test_malformed_models_are_refused_with_the_line(text, message):
    with pytest.raises(InputError, match=message):
        parse_uai(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("0", {}), ("2 0 1 2 2", {0: 1, 2: 2}), ("1\n1 2 1\n", {2: 1}), ("2\n0 1\n0 1", {0: 1})]
)
def test_evidence(text, expected):
    graph, _ = parse_uai(MARKOV)
    assert parse_evidence(text, graph) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file ends where the number of observed variables"),
        ("2 0 1", "2 observations need 4 numbers.* 2 follow"),
        ("0\n2 0", "0 observations need 0 numbers"),
        ("1 3 0", "the observed variable is 3; it must be from 0 to 2"),
        ("1\n0 2", "line 2: the state of variable 0 is 2; it must be from 0 to 1"),
        ("1 0 -1", "the state of variable 0 is -1"),
        ("2 0 0 0 1", "variable 0 is observed in two states"),
    ],
)
def test_bad_evidence_is_refused(text, message):
    graph, _ = parse_uai(MARKOV)
    with pytest.raises(InputError, match=message):
        parse_evidence(text, graph)


FG = """# two factors
2

2
3 1    # labels, not in order; label 0 and 2 occur nowhere
2 3
5
0 0.5
1 1.5
2 2.5
4 4.5
5 5.5

1
1
3
3
0 1
1 2
2 3
"""


def test_fg_lists_the_first_variable_fastest_and_leaves_zeros_out(tmp_path):
    (tmp_path / "m.fg").write_text(FG)
    graph, potentials = read_fg(tmp_path / "m.fg")
    assert graph.cardinalities.tolist() == [1, 3, 1, 2]
    assert graph.scopes() == [(3, 1), (1,)]
    pair, unary = (table.exp() for table in graph.unpack(potentials))
    torch.testing.assert_close(pair, torch.tensor([[0.5, 2.5, 4.5], [1.5, 0.0, 5.5]], dtype=torch.float64))
    torch.testing.assert_close(unary, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert float(graph.unpack(potentials)[0][1, 1]) == -math.inf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "line 1: the file ends where the number of factors"),
        ("1\n\n1\n0\n2\n1\n2 1\n", "line 7: an index of factor 0 is 2; it must be from 0 to 1"),
        ("1\n\n1\n0\n2\n2\n0 1\n0 1\n", "line 8: factor 0 gives entry 0 twice"),
        ("1\n\n1\n0\n2\n3\n", "line 6: the number of entries of factor 0 is 3"),
        ("1\n\n1\n0\n2\n1\n0 -1\n", "line 7: factor 0: potential -1 must be finite and not negative"),
        ("1\n\n2\n0 0\n2 2\n0\n", "line 4: the scope of factor 0 repeats variable 0"),
        ("2\n\n1\n0\n2\n0\n\n1\n0\n3\n0\n", "line 10: factor 1 gives variable 0 3 states, an earlier one 2"),
        ("1\n\n2\n0 1\n99999 99999\n0\n", "line 5: factor 0 has a table of more than"),
        ("1\n\n1\n0\n2\n0\nmore\n", 'line 7: unexpected "more"'),
    ],
)
def test_malformed_fg_is_refused_with_the_line(text, message):
    with pytest.raises(InputError, match=message):
        parse_fg(text)


def test_constant_factors_are_read():
    graph, potentials = parse_fg("1\n\n0\n\n\n1\n0 2.5\n")
    assert graph.scopes() == [()]
    assert float(potentials[0].exp()) == pytest.approx(2.5)
    graph, potentials = parse_uai("MARKOV 1 2 2  0  1 0  1 2.5  2 1 1")
    assert graph.scopes() == [(), (0,)]
