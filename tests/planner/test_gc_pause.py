"""No cyclic garbage is looked for while a plan is."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from random import Random

import pytest
from ogc_plan.planner.limits import Limits, gc_paused
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.solver import Solver

from tests.graphs.layered_graphs import layered_graph


@pytest.fixture(autouse=True)
def _collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_python_looks_for_garbage_again_afterwards() -> None:
    with gc_paused():
        pass
    assert gc.isenabled()


def test_python_looks_for_garbage_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), gc_paused():
        raise ValueError("wrong")
    assert gc.isenabled()


@pytest.mark.parametrize("what", ["solve", "smallest_peak"])
def test_none_is_looked_for_during_a_search(what: str) -> None:
    looked: list[bool] = []
    solver = Solver(limits=Limits(stop=lambda: bool(looked.append(gc.isenabled()))))
    problem = build_problem(*layered_graph(Random(0), 20, 4), Scope.ACTIVATIONS)
    solver.smallest_peak(problem) if what == "smallest_peak" else solver.solve(problem, problem.floor_nbytes + 1)
    assert looked
    assert not any(looked)
