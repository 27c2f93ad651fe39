"""The training graph refuses what no later stage could make sense of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ogc_plan.planner.graph import Storage
from ogc_plan.planner.training_graph import BackwardOp, Gradient, GradientEdge, GradientSum, TrainingGraph, TrainingOp


def network() -> TrainingGraph:
    """``top`` feeds ``left`` and ``right``, which ``end`` joins; the two gradients of top's output are summed."""
    ops = (
        TrainingOp("top", "Op", (), (0,), BackwardOp((), (4,), ())),
        TrainingOp("left", "Op", (0,), (1,), BackwardOp((0,), (1,), (GradientEdge(2),), (GradientSum(4, (2, 3)),))),
        TrainingOp("right", "Op", (0,), (2,), BackwardOp((0,), (1,), (GradientEdge(3),))),
        TrainingOp("end", "Op", (1, 2), (3,), BackwardOp((), (0,), (GradientEdge(1),))),
    )
    storages = tuple(Storage(f"s{i}", 8) for i in range(4))
    gradients = tuple(Gradient(name, 8) for name in ("seed", "joined", "from left", "from right", "total"))
    return TrainingGraph(ops, storages, gradients, (3,), (0,))


def with_backward(index: int, **changes: object) -> TrainingGraph:
    graph = network()
    backward = graph.ops[index].backward
    assert backward is not None
    op = replace(graph.ops[index], backward=replace(backward, **changes))  # type: ignore[arg-type]
    return replace(graph, ops=(*graph.ops[:index], op, *graph.ops[index + 1 :]))


def with_parameter(index: int) -> TrainingGraph:
    graph = with_backward(2, gives=(GradientEdge(3, 1),))
    gradients = tuple(replace(g, parameter=i == index) for i, g in enumerate(graph.gradients))
    return replace(graph, gradients=gradients)


def test_sums_and_a_gradient_that_two_ops_take_are_valid() -> None:
    network().validate()


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (with_backward(0, sums=(GradientSum(2, (4,)),)), "'from left' is the result of a sum and made elsewhere too"),
        (with_backward(0, sums=(GradientSum(0, (4,)),)), "'seed' is the result of a sum and made elsewhere too"),
        (with_backward(0, sums=(GradientSum(4, (2,)),)), "'total' is the result of a sum and made elsewhere too"),
        (with_backward(1, sums=(GradientSum(4, (4,)),)), "backward of 'left' sums 'total' before it is complete"),
        (with_backward(2, sums=(GradientSum(4, (2, 3)),), gives=()), "result of a sum and made elsewhere too"),
        (with_backward(2, gives=()), "backward of 'left' sums 'from right' before it is complete"),
        (with_backward(2, takes=(4,)), "backward of 'right' takes 'total' before it is complete"),
        (with_backward(2, gives=(GradientEdge(3, 0),)), "backward of 'right' shares the memory of a gradient"),
        (with_parameter(3), "backward of 'right' aliases a parameter gradient"),
        (replace(network(), storages=(Storage("s0", 2**60), *network().storages[1:])), "sizes add up to 11529"),
        (replace(network(), seeds=(0, 0)), "handed in twice"),
        (replace(network(), storages=(Storage("s1", 8), *network().storages[1:])), "storage 's1' is listed twice"),
        (replace(network(), gradients=(*network().gradients[:4], Gradient("seed", 8))), "gradient 'seed' is listed"),
        (replace(network(), ops=(*network().ops, replace(network().ops[0], writes=()))), "op 'top' is listed twice"),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused_and_named(graph: TrainingGraph, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        graph.validate()


def test_what_was_assumed_makes_no_graph_another_one() -> None:
    assert replace(network(), assumed=("a sentence of an earlier edition",)) == network()


def test_the_memory_of_a_taken_gradient_may_be_shared() -> None:
    with_backward(2, gives=(GradientEdge(3, 1),)).validate()
