"""Graphs with very many ops and edges are planned in seconds, and what comes before the search heeds its limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import onnx
import pytest
from ogc_plan.planner.model import load_model
from ogc_plan.planner.peak_bounds import order_floor
from ogc_plan.planner.peak_bounds.gradient_lifetimes import GradientLives
from ogc_plan.planner.pipeline import plan, verify
from ogc_plan.planner.plan_file.reader import read_plan
from ogc_plan.planner.plan_file.writer import write_plan
from ogc_plan.planner.problem import Scope, build_problem

from tests.files.onnx_models import model, node, save
from tests.graphs.layered_graphs import layered_graph

X = {"x": (8, 64)}
WEIGHTS = {"v": (64,), "w": (64,)}
START = [node("Mul", "x v", "t0"), node("Mul", "x w", "t1")]


def complete(ops: int = 300) -> onnx.ModelProto:
    """Every op sums the results of all earlier ones."""
    sums = [node("Sum", " ".join(f"t{i}" for i in range(k)), f"t{k}") for k in range(2, ops)]
    return model([*START, *sums], X, f"t{ops - 1}", weights=WEIGHTS)


def wide(ops: int = 5_000) -> onnx.ModelProto:
    """One sum of thousands of ops."""
    return model([*START, *(node("Tanh", "t0", f"a{k}") for k in range(ops)), _sum("a", ops)], X, weights=WEIGHTS)


def branches(ops: int = 1_500) -> onnx.ModelProto:
    """One sum of thousands of branches of unequal sizes, whose backwards may run in any order."""
    sizes = {f"w{k}": (64, 8 + 37 * k % 3_000) for k in range(ops)}
    nodes = [n for k in range(ops) for n in (node("MatMul", f"x w{k}", f"m{k}"), node("ReduceMean", f"m{k}", f"a{k}"))]
    return model([*nodes, _sum("a", ops)], X, weights=sizes)


def _sum(name: str, count: int) -> onnx.NodeProto:
    return node("Sum", " ".join(f"{name}{k}" for k in range(count)), "y")


@pytest.mark.parametrize("build", [complete, wide, branches])
def test_it_is_read_planned_and_verified_in_seconds(tmp_path: Path, build: Callable[[], onnx.ModelProto]) -> None:
    path = save(build(), tmp_path)
    start = time.process_time()
    ready = load_model(path)
    write_plan(plan(ready, "100%", strategy="keep-all"), tmp_path / "plan.json")
    verify(read_plan(tmp_path / "plan.json"), ready)
    assert time.process_time() - start < 15  # two to six, where they were 40 to 300 and more


def test_ten_thousand_ops_are_read_in_seconds(tmp_path: Path) -> None:
    layers = [n for k in range(5_000) for n in (node("Mul", f"h{k} w", f"m{k}"), node("Relu", f"m{k}", f"h{k + 1}"))]
    path = save(model(layers, {"h0": (8, 64)}, "h5000", weights={"w": (64,)}), tmp_path)
    start = time.process_time()
    load_model(path)
    assert time.process_time() - start < 4  # one, where it was two


def test_nodes_that_look_alike_to_the_library_have_the_shapes_of_their_own(tmp_path: Path) -> None:
    flat = [node("Transpose", "m", f"a{k}", perm=perm) for k, perm in enumerate([[1, 0], [0, 1], [1, 0]])]
    nodes = [node("Mul", "x w", "m"), *flat, node("Concat", "a0 a2", "y", axis=0)]
    graph = load_model(save(model(nodes, {"x": (2, 3)}, "y a1", weights={"w": (3,)}), tmp_path)).graph
    assert graph is not None
    assert {t.name: t.shape for t in graph.tensors if t.name in ("a0", "a1", "y")} == {
        "a0": (3, 2), "a1": (2, 3), "y": (6, 2),
    }  # fmt: skip


def test_a_limit_that_has_passed_leaves_the_floor_that_the_dependences_force() -> None:
    hurried = build_problem(*layered_graph(Random(1), 30, 4), Scope.TOTAL, late=lambda: True)
    whole = build_problem(hurried.graph, hurried.costs, Scope.TOTAL)
    assert hurried.floor == whole.forced_floor != whole.floor


def test_a_plan_whose_time_was_over_before_the_search_is_verified(tmp_path: Path) -> None:
    ready = load_model(save(branches(40), tmp_path))
    made = plan(ready, "100%", strategy="keep-all", time_limit_s=1e-6)
    assert verify(made) == made.timeline


def test_a_floor_looks_at_no_more_gradients_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_floor, "MOST_WORK", 500)
    training = load_model(save(branches(40), tmp_path))
    problem = build_problem(training.training, training.costs, Scope.TOTAL)
    lives = GradientLives(problem.graph, parameters=True)
    orders = order_floor.OrderFloor(lives, 0, [0] * problem.op_count, [0] * problem.op_count)
    assert not orders.search(0).complete
