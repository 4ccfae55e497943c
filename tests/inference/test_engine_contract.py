"""The contract of an inference engine: every engine passes every test of this file.

A new engine is one line in `CASES`.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.graph import FactorGraph, GridGraph, chain_graph, grid_factor_graph
from messagenet.inference import BeliefPropagation, Exact, MeanField, Result, SequentialTRW, TreeReweighted, observe
from random_graphs import random_graph, random_potentials, random_tree

close = torch.testing.assert_close
INF = float("inf")


@dataclass(frozen=True)
class Case:
    """An engine and what it promises.

    Attributes:
        engine: with settings for precise answers.
        maximises: log_z is the largest score, log_marginals are max-marginals.
        exact_on: the graphs on which log_z and map_state (sum-product: marginals, too) are exact.
        bound: on which side of the exact value log_z lies on any graph.
        max_order: of factors.
        has_max_marginals: whether max-marginals are exact where map_state is.
        finds_contradictions: whether potentials without a possible state are refused.
    """

    engine: Any
    maximises: bool = False
    exact_on: Literal["all", "trees", "none"] = "trees"
    bound: Literal["upper", "lower", "none"] = "none"
    max_order: int = 3
    has_max_marginals: bool = True
    finds_contradictions: bool = True


PRECISE: dict[str, Any] = {"tolerance": 1e-13, "max_iterations": 400}
MAX: dict[str, Any] = {"temperature": 0, **PRECISE}
PARALLEL = MeanField("parallel", damping=0.5, tolerance=1e-12, max_iterations=150)
CASES = {
    "exact enumerate": Case(Exact(method="enumerate"), exact_on="all"),
    "exact eliminate": Case(Exact(method="eliminate"), exact_on="all"),
    "exact max": Case(Exact(temperature=0), maximises=True, exact_on="all"),
    "bp synchronous": Case(BeliefPropagation(**PRECISE)),
    "bp sequential": Case(BeliefPropagation(schedule="sequential", **PRECISE)),
    "bp residual": Case(BeliefPropagation(schedule="residual", **PRECISE)),
    "bp damped": Case(BeliefPropagation(damping=0.3, **PRECISE)),
    "bp max": Case(BeliefPropagation(**MAX), maximises=True),
    "bp max sequential": Case(BeliefPropagation(schedule="sequential", **MAX), maximises=True),
    "bp max residual": Case(BeliefPropagation(schedule="residual", **MAX), maximises=True),
    "trw": Case(TreeReweighted(damping=0.0, **PRECISE), bound="upper"),
    "trw sequential": Case(TreeReweighted(schedule="sequential", damping=0.0, **PRECISE), bound="upper"),
    "trw max": Case(TreeReweighted(damping=0.0, **MAX), maximises=True),
    "trws": Case(SequentialTRW(tolerance=1e-12), True, bound="upper", max_order=2, has_max_marginals=False),
    "mf": Case(MeanField(tolerance=1e-12), exact_on="none", bound="lower", finds_contradictions=False),
    "mf parallel": Case(PARALLEL, exact_on="none", bound="lower", finds_contradictions=False),
}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def names(select=lambda case: True):
    return [name for name, case in CASES.items() if select(case)]


def forbid_some(graph, generator):
    """Tables with zeros that leave one hidden joint state possible."""
    hidden = [int(torch.randint(int(size), (), generator=generator)) for size in graph.cardinalities]
    tables = []
    for scope, table in zip(graph.scopes(), graph.unpack(random_potentials(graph, generator=generator)), strict=True):
        forbidden = torch.rand(table.shape, generator=generator) < 0.4
        forbidden[tuple(hidden[variable] for variable in scope)] = False
        tables.append(table.masked_fill(forbidden, -INF))
    return tables


def same_answers(result: Result, expected: Result, **tolerance) -> None:
    tolerance = {"atol": 1e-6, "rtol": 0, **tolerance}
    close(result.marginals, expected.marginals, **tolerance)
    close(result.log_z, expected.log_z, **tolerance)
    assert torch.equal(result.map_state, expected.map_state)
    for table, other in zip(result.factor_marginals, expected.factor_marginals, strict=True):
        close(table, other, **tolerance)


@pytest.mark.parametrize("name", CASES)
class TestEveryEngine:
    @pytest.fixture
    def case(self, name) -> Case:
        return CASES[name]

    def test_result_vocabulary(self, case):
        graph = random_tree(4, cardinality=(2, 3), generator=generator(0))
        result = case.engine.run(graph, random_potentials(graph, batch=2, generator=generator(1)))
        assert isinstance(result, Result)
        assert result.log_marginals.shape == result.marginals.shape == (2, 4, graph.max_cardinality)
        close(result.marginals.sum(-1), torch.ones(2, 4, dtype=torch.float64))
        assert result.map_state.shape == (2, 4)
        assert result.log_z.shape == (2,)
        assert result.converged is True
        assert result.iterations == len(result.history)
        assert result.messages is None or result.messages.shape[0] == 2

    @given(seed=st.integers(0, 10_000))
    @settings(max_examples=4, deadline=None)
    def test_trees(self, brute_force, name, seed):
        case = CASES[name]
        if case.exact_on == "none":
            pytest.skip("approximate on trees, too")
        graph = random_tree(6, cardinality=(1, 3), generator=generator(seed))
        self.check_exact(case, brute_force, graph, random_potentials(graph, scale=2.0, generator=generator(seed)))

    @staticmethod
    def check_exact(case, brute_force, graph, potentials):
        enumerated = brute_force(graph, potentials)
        result = case.engine.run(graph, potentials)
        assert result.converged
        if case.maximises:
            assert result.map_state.tolist() == enumerated.map_state
            assert float(result.log_z) == pytest.approx(enumerated.max_score, abs=1e-9)
            if case.has_max_marginals:
                close(result.log_marginals, enumerated.max_marginals.log_softmax(-1), atol=1e-9, rtol=0)
            return
        close(result.marginals, enumerated.marginals, atol=1e-9, rtol=0)
        assert float(result.log_z) == pytest.approx(enumerated.log_z, abs=1e-9)
        for found, expected in zip(graph.unpack(result.factor_marginals), enumerated.factor_marginals, strict=True):
            close(found, expected, atol=1e-9, rtol=0)

    def test_trees_of_high_order_factors(self, case, brute_force):
        if case.exact_on == "none" or case.max_order < 3:
            pytest.skip("approximate, or pairwise only")
        graph = FactorGraph([2, 3, 2, 2, 3, 2], [[1, 0, 2], [2, 3], [5, 2, 4], [4], [0]])
        self.check_exact(case, brute_force, graph, random_potentials(graph, scale=2.0, generator=generator(5)))

    @given(seed=st.integers(0, 10_000))
    @settings(max_examples=4, deadline=None)
    def test_zeros_on_trees(self, brute_force, name, seed):
        case = CASES[name]
        if case.exact_on == "none" or case.maximises:
            pytest.skip("marginals are not exact")
        graph = random_tree(5, cardinality=(2, 3), generator=generator(seed))
        leaves = [table.requires_grad_() for table in graph.pack(forbid_some(graph, generator(seed)))]
        enumerated = brute_force(graph, [leaf.detach() for leaf in leaves])
        result = case.engine.run(graph, leaves)
        close(result.marginals.detach(), enumerated.marginals, atol=1e-9, rtol=0)
        assert float(result.log_z.detach()) == pytest.approx(enumerated.log_z, abs=1e-9)
        gradients = torch.autograd.grad(result.log_z, leaves)
        for gradient, expected in zip(graph.unpack(gradients), enumerated.factor_marginals, strict=True):
            close(gradient, expected, atol=1e-8, rtol=0)

    def test_zeros_never_give_nan_even_in_gradients(self, case, random_model):
        orders = (1, 1, 2, 2, 2, 2) if case.max_order == 2 else (1, 2, 2, 2, 3)
        for seed in range(3):
            graph, potentials = random_model(seed, zeros=0.3, orders=orders)
            leaves = [p.requires_grad_() for p in potentials]
            result = case.engine.run(graph, leaves)
            possible = result.log_marginals.isfinite()
            assert not result.log_marginals.isnan().any()
            total = result.log_marginals[possible].sum()
            total = total + (result.log_z if result.log_z.isfinite() else 0)
            total = total + sum(table.sum() for table in result.factor_marginals)
            for gradient in torch.autograd.grad(total, leaves, allow_unused=True):
                assert gradient is None or gradient.isfinite().all()

    @given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.3, 1.0]))
    @settings(max_examples=5, deadline=None)
    def test_loopy_graphs(self, brute_force, name, seed, scale):
        """Exact where promised; otherwise log_z is on the promised side, and no state scores above the best one."""
        case = CASES[name]
        graph = random_graph(5, 6, order=case.max_order, cardinality=(1, 3), generator=generator(seed))
        potentials = random_potentials(graph, scale=scale, generator=generator(seed))
        if case.exact_on == "all":
            self.check_exact(case, brute_force, graph, potentials)
            return
        enumerated = brute_force(graph, potentials)
        result = case.engine.run(graph, potentials)
        exact = enumerated.max_score if case.maximises else enumerated.log_z
        if case.bound == "upper" and (result.converged or case.maximises):
            assert float(result.log_z) >= exact - 1e-9
        if case.bound == "lower":
            assert float(result.log_z) <= exact + 1e-9
        assert float(graph.score(potentials, result.map_state)) <= enumerated.max_score + 1e-9

    def test_gradient_of_log_z_by_finite_differences(self, case):
        graph = FactorGraph([2, 3, 2], [[0], [0, 1], [2, 1], [0, 2]])
        tables = graph.unpack(random_potentials(graph, scale=0.5, generator=generator(3)))
        moves = graph.unpack(random_potentials(graph, generator=generator(4)))

        def log_z(step):
            moved = [table + step * move for table, move in zip(tables, moves, strict=True)]
            return case.engine.run(graph, moved).log_z

        step = torch.zeros((), dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(log_z(step), step)
        expected = (log_z(torch.tensor(1e-5)) - log_z(torch.tensor(-1e-5))) / 2e-5
        close(slope, expected, atol=1e-6, rtol=1e-6)

    @pytest.mark.parametrize("batch", [None, 3])
    def test_a_table_per_factor_equals_groups(self, case, random_model, batch):
        orders = (1, 2, 1, 2, 0, 2) if case.max_order == 2 else (2, 1, 3, 2, 0, 2)
        for seed in range(2):
            graph, potentials = random_model(seed, orders=orders)
            if batch is not None:
                potentials = random_potentials(graph, batch=batch, generator=generator(seed))
            tables = [table.clone().requires_grad_() for table in graph.unpack(potentials)]
            # Both take the same steps, so a few say as much as those to convergence.
            engine = replace(case.engine, max_iterations=30) if hasattr(case.engine, "max_iterations") else case.engine
            grouped = engine.run(graph, graph.pack(tables))
            result = engine.run(graph, tables)
            assert len(result.log_factor_marginals) == graph.num_factors
            close(result.log_marginals, grouped.log_marginals, atol=0, rtol=0)
            close(result.log_z, grouped.log_z, atol=0, rtol=0)
            assert torch.equal(result.map_state, grouped.map_state)
            for table, found, expected in zip(
                tables, result.log_factor_marginals, graph.unpack(grouped.log_factor_marginals), strict=True
            ):
                assert found.shape == table.shape
                close(found, expected, atol=0, rtol=0)
            gradients = torch.autograd.grad(result.log_z.sum(), tables, allow_unused=True)
            expected = torch.autograd.grad(grouped.log_z.sum(), tables, allow_unused=True)
            for gradient, other in zip(gradients, expected, strict=True):
                assert (gradient is None) == (other is None)
                assert gradient is None or torch.equal(gradient, other)

    def test_a_table_per_factor_on_a_grid(self, case):
        graph = grid_factor_graph(2, 3, 2)
        potentials = random_potentials(graph, scale=0.5, generator=generator(0))
        grouped, natural = (case.engine.run(graph, potentials), case.engine.run(graph, graph.unpack(potentials)))
        close(natural.log_marginals, grouped.log_marginals, atol=0, rtol=0)
        assert [tuple(table.shape) for table in natural.factor_marginals] == [(2,)] * 6 + [(2, 2)] * 7

    def test_evidence(self, case, brute_force):
        graph = random_tree(5, cardinality=(2, 3), generator=generator(2))
        tables = graph.unpack(random_potentials(graph, generator=generator(2)))
        evidence = {0: 1, 3: 0}
        result = case.engine.run(graph, tables, evidence=evidence)
        same_answers(result, observe(graph, tables, evidence).run(case.engine), atol=0)
        assert [table.shape for table in result.factor_marginals] == [table.shape for table in tables]
        assert all(int(result.map_state[variable]) == state for variable, state in evidence.items())
        assert all(float(result.marginals[variable, state]) == 1 for variable, state in evidence.items())
        if case.exact_on == "none":
            return
        clamps = [torch.full((int(graph.cardinalities[variable]),), -INF).double() for variable in evidence]
        for clamp, state in zip(clamps, evidence.values(), strict=True):
            clamp[state] = 0
        clamped = FactorGraph(graph.cardinalities, [*graph.scopes(), *([variable] for variable in evidence)])
        enumerated = brute_force(clamped, clamped.pack([*tables, *clamps]))
        assert float(result.log_z) == pytest.approx(
            enumerated.max_score if case.maximises else enumerated.log_z, abs=1e-9
        )
        if not case.maximises:
            close(result.marginals, enumerated.marginals, atol=1e-9, rtol=0)

    def test_batch_equals_one_at_a_time(self, case):
        graph = random_tree(5, cardinality=(2, 3), generator=generator(3))
        batched = list(random_potentials(graph, batch=3, generator=generator(3)))
        batched[0] = batched[0][0]  # one group without a batch axis
        together = case.engine.run(graph, batched)
        assert together.log_z.shape == (3,)
        for item in range(3):
            alone = case.engine.run(graph, [batched[0], *(table[item] for table in batched[1:])])
            close(together.marginals[item], alone.marginals, atol=1e-6, rtol=0)
            close(together.log_z[item], alone.log_z, atol=1e-6, rtol=0)
            assert torch.equal(together.map_state[item], alone.map_state)
            for whole, part in zip(together.factor_marginals, alone.factor_marginals, strict=True):
                close(whole[item], part, atol=1e-6, rtol=0)

    def test_single_precision(self, case):
        graph = random_tree(5, cardinality=3, generator=generator(4))
        potentials = random_potentials(graph, generator=generator(4))
        double = case.engine.run(graph, potentials)
        single = case.engine.run(graph, [table.float() for table in potentials])
        assert single.log_z.dtype == single.marginals.dtype == torch.float32
        close(single.marginals.double(), double.marginals, atol=1e-5, rtol=0)
        close(single.log_z.double(), double.log_z, atol=1e-5, rtol=1e-5)

    def test_order_of_factors_and_scopes_does_not_matter(self, case):
        graph = FactorGraph([2, 3, 2], [[0, 1], [1, 2], [0]])
        first, second, unary = graph.unpack(random_potentials(graph, generator=generator(2)))
        turned = FactorGraph([2, 3, 2], [[0], [2, 1], [1, 0]])
        result = case.engine.run(graph, [first, second, unary])
        same = case.engine.run(turned, [unary, second.T, first.T])
        close(result.marginals, same.marginals, atol=1e-6, rtol=0)
        close(result.log_z, same.log_z, atol=1e-6, rtol=0)
        assert torch.equal(result.map_state, same.map_state)
        close(result.factor_marginals[0], same.factor_marginals[2].T, atol=1e-6, rtol=0)

    def test_odd_graphs(self, case):
        untouched = FactorGraph([2, 3, 1, 2], [[0, 3], [2], [2, 0]])  # no factor touches variable 1
        result = case.engine.run(untouched, [torch.zeros(group.shape)[None] for group in untouched.groups])
        close(result.marginals.sum(-1), torch.ones(4))
        close(result.marginals[1], torch.full((3,), 1 / 3))
        assert result.marginals[2].tolist() == [1.0, 0.0, 0.0]
        bare = case.engine.run(FactorGraph([2, 4], []), [])
        close(bare.marginals, torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25] * 4]))
        assert bare.factor_marginals == ()
        single = FactorGraph([3], [[0]])
        for potentials in ([torch.tensor([[0.0, 1.0, 2.0]])], [torch.tensor([0.0, 1.0, 2.0])]):
            result = case.engine.run(single, potentials)
            close(result.marginals[0], torch.tensor([0.0, 1.0, 2.0]).softmax(0))
            assert result.map_state.tolist() == [2]

    def test_constants_only_shift_log_z(self, case):
        with_constants = FactorGraph([2, 2], [[0], [0, 1], [], []])
        without = FactorGraph([2, 2], [[0], [0, 1]])
        tables = [torch.tensor([0.0, 1.0]), torch.eye(2), torch.tensor(3.0), torch.tensor(0.5)]
        result = case.engine.run(with_constants, tables)
        plain = case.engine.run(without, tables[:2])
        close(result.marginals, plain.marginals)
        close(result.log_z, plain.log_z + 3.5)
        assert [float(table) for table in result.factor_marginals[2:]] == [1.0, 1.0]

    def test_tables_may_be_arrays_or_lists(self, case):
        graph = FactorGraph([2, 2], [[0], [0, 1]])
        tables = [[0.5, -0.5], [[1.0, 0.0], [0.25, 0.5]]]
        expected = case.engine.run(graph, [torch.tensor(table) for table in tables])
        same_answers(case.engine.run(graph, tables), expected, atol=0)
        arrays = [np.array(table, dtype=np.float32) for table in tables]
        same_answers(case.engine.run(graph, arrays), expected, atol=0)

    def test_copies_and_pickles(self, case):
        graph = random_tree(4, generator=generator(1))
        potentials = random_potentials(graph, generator=generator(1))
        expected = case.engine.run(graph, potentials)
        for engine in (copy.deepcopy(case.engine), pickle.loads(pickle.dumps(case.engine))):
            assert engine == case.engine
            same_answers(engine.run(copy.deepcopy(graph), potentials), expected, atol=0)
            same_answers(engine.run(pickle.loads(pickle.dumps(graph)), potentials), expected, atol=0)

    def test_bad_potentials_are_refused(self, case):
        graph = chain_graph([2, 2])
        unary, pair = torch.zeros(2, 2), torch.zeros(1, 2, 2)
        run = case.engine.run
        with pytest.raises(InputError, match="factor 1: log-potential inf is not finite"):
            run(graph, [torch.tensor([[0.0, 0.0], [0.0, INF]]), pair])
        with pytest.raises(InputError, match="factor 2: log-potential nan"):
            run(graph, [unary, pair * float("nan")])
        with pytest.raises(InputError, match=r"factor 2: .*got \(1, 2, 3\)"):
            run(graph, [unary, torch.zeros(1, 2, 3)])
        with pytest.raises(InputError, match="1 potential tensors were given for 3 factors in 2 groups"):
            run(graph, [unary])
        with pytest.raises(InputError, match="NoneType potential tensors were given"):
            run(graph, None)
        with pytest.raises(InputError, match="one floating-point dtype"):
            run(graph, [unary, pair.double()])
        with pytest.raises(InputError, match="one floating-point dtype"):
            run(graph, [unary[0], unary[0], torch.zeros(2, 2, dtype=torch.long)])
        with pytest.raises(InputError, match="different batch sizes"):
            run(graph, [unary.expand(2, 2, 2), pair.expand(3, 1, 2, 2)])
        with pytest.raises(InputError, match="different batch sizes"):
            run(graph, [torch.zeros(2, 2), torch.zeros(3, 2), torch.zeros(2, 2)])
        with pytest.raises(InputError, match=r"factor 2: its table is \(3, 2\), its scope needs \(2, 2\)"):
            run(graph, [torch.zeros(2), torch.zeros(2), torch.zeros(3, 2)])
        with pytest.raises(InputError, match=r"graph is a GridGraph; give FactorGraph\(cardinalities, scopes\)"):
            run(GridGraph(2, 2), [unary])

    def test_contradictory_potentials_are_refused(self, case):
        if not case.finds_contradictions:
            pytest.skip("keeps the states with the least probability on zeros")
        equal = torch.tensor([[[0.0, -INF], [-INF, 0.0]]])
        with pytest.raises(InputError, match="contradict"):
            case.engine.run(chain_graph([2, 2]), [torch.tensor([[0.0, -INF], [-INF, 0.0]]), equal])

    def test_a_table_of_zeros_alone_is_refused(self, case):
        graph, unary, zeros = chain_graph([2, 2]), torch.zeros(2, 2), torch.full((1, 2, 2), -INF)
        for potentials in ([unary, zeros], [unary.expand(3, 2, 2), torch.stack([zeros, 0 * unary[None], zeros])]):
            with pytest.raises(InputError, match=r"variable \d has no possible state"):
                case.engine.run(graph, potentials)

    def test_impossible_evidence_is_refused(self, case):
        unary = torch.tensor([[0.0, -INF], [0.0, 0.0]])
        with pytest.raises(InputError, match=r"no possible state|probability zero"):
            case.engine.run(chain_graph([2, 2]), [unary, torch.zeros(1, 2, 2)], evidence={0: 1})

    def test_a_graph_is_no_setting(self, case):
        kind = type(case.engine)
        with pytest.raises(InputError, match=rf"write {kind.__name__}\(\)\.run\(graph, potentials\)"):
            kind(chain_graph([2, 2]))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_tables_of_mixed_orders_against_enumeration(brute_force, random_model, seed):
    graph, potentials = random_model(seed, orders=(3, 1, 2, 0, 2, 3), zeros=0.2)
    tables = [table.requires_grad_() for table in graph.unpack(potentials)]
    enumerated = brute_force(graph, [table.detach() for table in potentials])
    result = Exact().run(graph, tables)
    assert float(result.log_z.detach()) == pytest.approx(enumerated.log_z, abs=1e-9)
    close(result.marginals.detach(), enumerated.marginals, atol=1e-9, rtol=0)
    gradients = torch.autograd.grad(result.log_z, tables)
    for found, gradient, expected in zip(result.factor_marginals, gradients, enumerated.factor_marginals, strict=True):
        close(found.detach(), expected, atol=1e-9, rtol=0)
        close(gradient, expected, atol=1e-9, rtol=0)


def test_the_first_thing_people_type():
    graph = FactorGraph([2, 2, 2], [[0, 1], [1, 2], [0, 2]])
    result = BeliefPropagation().run(graph, [torch.randn(2, 2, generator=generator(0)) for _ in range(3)])
    assert result.converged
    assert result.marginals.shape == (3, 2)
    assert result.log_z.shape == ()


@pytest.mark.parametrize(
    ("engine", "settings_", "message"),
    [
        (BeliefPropagation, {"temperature": "max"}, "temperature is 'max'; it must be 1 for sum-product, 0 for max"),
        (BeliefPropagation, {"temperature": -1.0}, "temperature is -1.0"),
        (Exact, {"temperature": None}, "temperature is None"),
        (Exact, {"method": "junction"}, 'method "junction" is not known'),
        (Exact, {"memory_limit": "8"}, "memory_limit is '8'"),
        (MeanField, {"damping": "much"}, "damping is 'much'"),
        (MeanField, {"schedule": 3}, 'schedule "3" is not known'),
        (TreeReweighted, {"max_iterations": 1.5}, "max_iterations is 1.5"),
        (SequentialTRW, {"max_iterations": "10"}, "max_iterations is '10'"),
        (SequentialTRW, {"tolerance": None}, "tolerance is None"),
    ],
)
def test_bad_settings_are_refused(engine, settings_, message):
    with pytest.raises(InputError, match=message):
        engine(**settings_)


def test_evidence_and_initial_values_exclude_each_other():
    graph = FactorGraph([2, 2], [[0, 1]])
    tables = [torch.eye(2)]
    with pytest.raises(InputError, match="leave out one of the two"):
        BeliefPropagation().run(graph, tables, torch.zeros(2, 2), evidence={0: 1})
    with pytest.raises(InputError, match="leave out one of the two"):
        MeanField().run(graph, tables, torch.full((2, 2), 0.5), evidence={0: 1})
