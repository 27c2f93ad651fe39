"""The baseline strategies: each does what its source says, and none claims what the replay does not confirm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from math import isqrt

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.graph import Storage
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.solution import Status
from ogc_plan.planner.strategies import FIXED as FIXED_NAMES
from ogc_plan.planner.strategies import STRATEGIES, strategy_named
from ogc_plan.planner.strategies.baselines import articulation as separators
from ogc_plan.planner.strategies.baselines import checkpoint_sequential as segments
from ogc_plan.planner.strategies.baselines import greedy, ogc, sqrt_n
from ogc_plan.planner.strategies.baselines import keep_expensive as speed
from ogc_plan.planner.strategies.baselines import per_layer as layers
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.training_graph import BackwardOp, Gradient, GradientEdge, OpCost, TrainingGraph, TrainingOp

from tests.graphs.builders import training_graphs
from tests.graphs.problems import between, keep_all_peak, random_problem
from tests.oracles.replay import keeps_its_word

LABELLED = ("sqrt", "segments:1", "segments:2", "segments:5", "speed", "ogc", "greedy", "layers")
BASELINES = (*LABELLED, "knapsack", "checkmate", "rotor")


def net(
    edges: Sequence[Sequence[int]], sizes: Sequence[int] | None = None, types: Sequence[str] | None = None
) -> Problem:
    """Op i reads the storages ``edges[i]`` and writes storage i; backwards read inputs and output; the last is held."""
    count = len(edges)
    sizes = sizes or [8] * count
    ops = tuple(
        TrainingOp(
            f"op{i}",
            types[i] if types else "Op",
            tuple(reads),
            (i,),
            BackwardOp((*reads, i), (i,), tuple(GradientEdge(r) for r in reads)),
            forward=i,
        )
        for i, reads in enumerate(edges)
    )
    graph = TrainingGraph(
        ops,
        tuple(Storage(f"t{i}", nbytes) for i, nbytes in enumerate(sizes)),
        tuple(Gradient(f"g{i}", nbytes) for i, nbytes in enumerate(sizes)),
        (count - 1,),
        (count - 1,),
    )
    return build_problem(graph, (OpCost(10, 20),) * count, Scope.ACTIVATIONS)


def chain_problem(n: int, sizes: Sequence[int] | None = None) -> Problem:
    return net([(i - 1,) if i else () for i in range(n)], sizes)


def blocks(count: int) -> Problem:
    """``count`` identical residual blocks: MatMul, Gelu, MatMul, Add."""
    edges: list[tuple[int, ...]] = [()]
    types, sizes = ["Gather"], [8]
    for _ in range(count):
        x = len(edges) - 1
        edges += [(x,), (x + 1,), (x + 2,), (x, x + 3)]
        types += ["MatMul", "Gelu", "MatMul", "Add"]
        sizes += [32, 32, 8, 8]
    return net(edges, sizes, types)


def kept_of(module: object, problem: Problem, *arguments: object) -> list[int]:
    """Undecided storages that a strategy's labels keep."""
    evaluator = Evaluator(problem)
    labels = module.labels(evaluator, *arguments)  # type: ignore[attr-defined]
    return [int(s) for s in np.flatnonzero((labels == Label.KEEP) & ~evaluator.decided)]


@pytest.mark.parametrize("name", BASELINES)
@given(graph=training_graphs(max_ops=40), scope=st.sampled_from(Scope), share=st.sampled_from((None, 20, 60, 100)))
@settings(max_examples=25, deadline=None)
def test_the_replay_finds_the_claimed_peak_and_time_within_the_budget(name, graph, scope, share):
    problem = build_problem(graph[0], graph[1], scope)
    budget = None if share is None else between(problem, share)
    solution = strategy_named(name)(problem, budget)
    assert solution.decisions is not None or solution.smallest_nbytes > budget
    assert keeps_its_word(problem, solution, budget)


@pytest.mark.parametrize("name", LABELLED)
@given(graph=training_graphs(max_ops=30), share=st.sampled_from((None, 50)))
@settings(max_examples=15, deadline=None)
def test_what_the_user_decided_stays_decided(name, graph, share):
    training, costs, rng = graph
    free = [s for s in range(len(training.storages)) if s not in training.outputs]
    rng.shuffle(free)
    part = len(free) // 4
    keep, recompute = frozenset(free[:part]), frozenset(free[part : 2 * part])
    problem = build_problem(training, costs, Scope.TOTAL, keep=keep, recompute=recompute)
    evaluator = Evaluator(problem)
    module = {"sqrt": sqrt_n, "greedy": greedy, "layers": layers, "ogc": ogc, "speed": speed}.get(name, segments)
    budget = None if share is None else between(problem, share)
    labels = module.labels(evaluator, 2 if module is segments else budget)
    decided = evaluator.decided
    assert (labels[decided] == evaluator.labels(Label.KEEP)[decided]).all()


@pytest.mark.parametrize("name", BASELINES)
def test_a_strategy_answers_the_same_twice(name):
    for seed in range(3):
        problem = random_problem(seed, 40, 40)
        assert strategy_named(name)(problem) == strategy_named(name)(problem)


@pytest.mark.parametrize("name", BASELINES)
def test_a_graph_of_one_op_without_backward_or_storage_is_planned(name):
    graph = TrainingGraph((TrainingOp("only", "Op", (), ()),), (), ())
    solution = strategy_named(name)(build_problem(graph, (OpCost(1),), Scope.TOTAL))
    assert solution.status is Status.OPTIMAL


# articulation storages


@given(graph=training_graphs(max_ops=25))
@settings(max_examples=60, deadline=None)
def test_separators_are_the_storages_that_cross_a_cut_alone(graph):
    training = graph[0]
    trained = {i for i, op in enumerate(training.ops) if op.backward is not None}
    flow = networkx.DiGraph((training.producer[s], i) for i, op in enumerate(training.ops) for s in op.reads)
    flow.add_nodes_from(range(len(training.ops)))
    between = {i for i in flow if trained & networkx.ancestors(flow, i) and trained & networkx.descendants(flow, i)}
    ops, found = sorted(trained | between), []
    for cut in ops:
        written = {s for i in ops if i <= cut for s in training.ops[i].writes if training.storages[s].nbytes}
        alone = written & {s for i in ops if i > cut for s in training.ops[i].reads}
        if len(alone) == 1 and not alone & {separator.storage for separator in found}:
            found.append(separators.Separator(alone.pop(), cut))
    assert separators.separators(training) == tuple(found)


def test_a_skip_hides_the_storages_it_jumps_over():
    problem = net([(), (0,), (1,), (0, 2), (3,)])
    assert [s.storage for s in separators.separators(problem.graph)] == [0, 3]


def test_a_mask_without_gradient_is_carried_and_hides_nothing():
    problem = net([(), (), (0, 1), (0, 2), (0, 3)])
    mask = replace(problem.graph.ops[0], backward=None)
    graph = replace(problem.graph, ops=(mask, *problem.graph.ops[1:]))
    found = separators.separators(graph)
    assert [s.storage for s in found] == [1, 2, 3]
    assert separators.carried(graph, [found[-1].after]) == {0}


# sqrt(n)


@pytest.mark.parametrize("n", [16, 64, 256, 1024])
def test_sqrt_keeps_about_sqrt_n_storages_of_a_chain(n):
    assert isqrt(n) - 2 <= len(kept_of(sqrt_n, chain_problem(n))) <= isqrt(n) + 1


def test_what_such_an_addition_makes_is_not_carried_as_a_mask_is():
    graph = net([[], [0], [0, 1], [2], [2, 3], [4]]).graph
    ops = tuple(replace(op, backward=None if index in (2, 4) else op.backward) for index, op in enumerate(graph.ops))
    assert separators.carried(replace(graph, ops=ops), [2, 4]) == frozenset()


def test_sqrt_spreads_its_checkpoints_evenly():
    gaps = np.diff(kept_of(sqrt_n, chain_problem(100)))
    assert set(gaps.tolist()) == {10}


def test_sqrt_without_articulation_tensors_recomputes_nothing_and_says_so():
    problem = net([(), ()])
    solution = sqrt_n.solve(problem)
    assert solution.objective_ns == 0
    assert "no articulation" in solution.notes[0]


# segments


@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
def test_segments_keep_the_inputs_of_all_but_the_first_and_all_of_the_last(count):
    size = 12 // count
    inputs = [number * size - 1 for number in range(1, count)]
    last = list(range((count - 1) * size, 11))  # storage 11 is held by the caller
    assert kept_of(segments, chain_problem(12), count) == inputs + last


def test_more_segments_than_modules_are_cut_down_and_the_notes_say_so():
    solution = segments.solve(chain_problem(4), segments=9)
    assert solution.notes[-1] == "9 segments asked for, the graph has 4 modules"


# speed


@given(graph=training_graphs(max_ops=30))
@settings(max_examples=50, deadline=None)
def test_speed_keeps_exactly_what_convolutions_and_matrix_products_write(graph):
    training, costs, rng = graph
    types = [rng.choice(("Conv", "MatMul", "Relu", "Add")) for _ in training.ops]
    types[rng.randrange(len(types))] = "Gemm"
    ops = tuple(replace(op, op_type=kind) for op, kind in zip(training.ops, types, strict=True))
    problem = build_problem(replace(training, ops=ops), costs, Scope.TOTAL)
    expensive = {s for op in ops if op.op_type in ("Conv", "MatMul", "Gemm") for s in op.writes}
    decided = set(np.flatnonzero(Evaluator(problem).decided).tolist())
    allowed = expensive | separators.carried(problem.graph, ())
    kept = set(kept_of(speed, problem))
    if expensive:
        assert expensive - decided <= kept <= allowed


@pytest.mark.parametrize(
    ("op_type", "expensive"),
    [("ConvTranspose", True), ("Attention", True), ("Relu", False), ("Add", False), ("BatchNormalization", False),
     ("aten.addmm.default", True), ("aten::_scaled_dot_product_flash_attention", True), ("aten.mul.Tensor", False)],
)  # fmt: skip
def test_speed_knows_products_by_their_onnx_and_pytorch_names(op_type, expensive):
    assert speed.is_expensive(op_type) is expensive


# ogc


def brute_ogc(sizes: Sequence[int]) -> int:
    """The least kept bytes + largest segment of a chain whose last storage is held, over all subsets."""
    inner = range(len(sizes) - 1)
    best = sum(sizes[:-1])
    for count in range(len(sizes)):
        for kept in combinations(inner, count):
            ends = (-1, *kept, len(sizes) - 1)
            largest = max(sum(sizes[i + 1 : j]) for i, j in pairwise(ends))
            best = min(best, sum(sizes[i] for i in kept) + largest)
    return best


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=10))
@settings(max_examples=100, deadline=None)
def test_ogc_is_optimal_on_a_chain(sizes):
    assert ogc.search(chain_problem(len(sizes), sizes).graph).objective_nbytes == brute_ogc(sizes)


def test_ogc_divides_a_piece_into_its_branches():
    # top -> two branches of two tensors -> joined -> last; each branch is a segment of its own
    problem = net([(), (0,), (1,), (0,), (3,), (2, 4), (5,)], [1, 9, 9, 9, 9, 1, 1])
    choice = ogc.search(problem.graph)
    assert (choice.kept, choice.kept_nbytes, choice.segment_nbytes) == (frozenset({0, 5}), 2, 18)


def cells(count: int, depth: int) -> Problem:
    """Cells that read the two before them, each through a chain of ``depth`` ops."""
    edges: list[tuple[int, ...]] = [(), (0,)]
    before, last = 0, 1
    for _ in range(count):
        ends = []
        for source in (before, last):
            edges.append((source,))
            for _ in range(depth - 1):
                edges.append((len(edges) - 1,))
            ends.append(len(edges) - 1)
        edges.append(tuple(ends))
        before, last = last, len(edges) - 1
    edges.append((before, last))
    return net(edges)


def test_ogc_divides_a_tangle_at_the_nodes_between_its_independent_segments():
    problem = cells(8, 4)
    joins = {index for index, op in enumerate(problem.graph.ops) if len(op.reads) == 2}
    assert ogc.search(problem.graph).kept >= joins - {len(problem.graph.ops) - 1}


# with and without a budget


@pytest.mark.parametrize("name", FIXED_NAMES)
def test_a_strategy_without_a_budget_has_the_same_plan_for_every_budget(name):
    problem = blocks(6)
    own = strategy_named(name)(problem)
    plans = [strategy_named(name)(problem, own.peak_nbytes * share // 100).decisions for share in (100, 150, 900)]
    assert plans == [own.decisions] * 3


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - set(FIXED_NAMES)))
def test_a_strategy_with_a_budget_makes_use_of_it(name):
    problem = blocks(6)
    whole = keep_all_peak(problem)
    assert strategy_named(name)(problem, whole).objective_ns < strategy_named(name)(problem, whole // 2).objective_ns


# greedy and layers


@pytest.mark.parametrize("name", ["greedy", "layers"])
@pytest.mark.parametrize("share", [30, 60, 90])
def test_a_feasible_budgeted_plan_is_within_its_budget_on_deep_residual_networks(name, share):
    problem = blocks(30)
    budget = keep_all_peak(problem) * share // 100
    solution = strategy_named(name)(problem, budget)
    assert solution.status is Status.FEASIBLE


@pytest.mark.parametrize("name", ["greedy", "layers"])
def test_a_budget_of_the_keep_all_peak_costs_nothing(name):
    problem = blocks(5)
    solution = strategy_named(name)(problem, keep_all_peak(problem))
    assert solution.status is Status.OPTIMAL


@pytest.mark.parametrize("share", [40, 60, 80])
def test_identical_layers_get_identical_labels(share):
    problem = blocks(12)
    budget = keep_all_peak(problem) * share // 100
    labels = layers.labels(Evaluator(problem), budget)
    middle = labels[1:].reshape(12, 4)[3:-3]
    assert (middle == middle[0]).all()
