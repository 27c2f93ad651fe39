"""Whatever another strategy finds within a budget, the certified one finds no worse."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import onnx
import pytest
from ogc_plan.planner import load_model
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.solution import Solution
from ogc_plan.planner.strategies import FIXED, STRATEGIES, strategy_named
from ogc_plan.planner.strategies.optimal.strategy import solve

from models.graphs.layered_dag import layered_dag
from tests.graphs.builders import SMALL_SIZES, random_graph
from tests.graphs.problems import between

BUDGETED = [name for name in STRATEGIES if name not in FIXED and name != "optimal"]
FIXED_PLANS = [name for name in FIXED if name != "segments"] + ["segments:2", "segments:4", "segments:8"]
SEEDS = range(600, 608)
SHARES = (20, 60)
LAYERED = ("layered 0", "layered 1")


@cache
def problem(which: int | str) -> Problem:
    """A random problem: of 3 to 40 ops for a seed, of about 60 nodes in layers for a name."""
    if isinstance(which, str):
        with TemporaryDirectory() as folder:
            path = Path(folder, "layered.onnx")
            onnx.save(layered_dag(60, int(which.split()[1]), batch=4), str(path))
            return load_model(path).problem(Scope.ACTIVATIONS)
    rng = Random(which)
    count = rng.choice((rng.randint(3, 8), rng.randint(9, 40)))
    graph, costs = random_graph(rng, count, sizes=SMALL_SIZES if count <= 8 else None)
    return build_problem(graph, costs, rng.choice(list(Scope)))


@cache
def ours(which: int | str, budget_nbytes: int) -> Solution:
    """What `optimal` answers."""
    return solve(problem(which), budget_nbytes, effort="fast")


def is_worse(which: int | str, other: Solution, budget_nbytes: int) -> bool:
    if other.decisions is None:
        return False
    mine = ours(which, budget_nbytes)
    return mine.decisions is None or mine.objective_ns > other.objective_ns


@pytest.mark.parametrize("name", FIXED_PLANS)
def test_it_is_no_worse_at_the_peak_of_a_strategy_without_a_budget(name: str) -> None:
    plans = [(which, strategy_named(name)(problem(which))) for which in (*SEEDS, *LAYERED)]
    assert [which for which, other in plans if is_worse(which, other, other.peak_nbytes)] == []


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", BUDGETED)
def test_it_is_no_worse_than_a_strategy_with_the_same_budget(name: str, share: int) -> None:
    worse = []
    for which in (*SEEDS, *LAYERED):
        limit = between(problem(which), share)
        if is_worse(which, strategy_named(name)(problem(which), limit), limit):
            worse.append(which)
    assert worse == []


@pytest.mark.parametrize("name", BUDGETED)
def test_a_budget_out_of_reach_for_it_is_out_of_reach_for_every_other(name: str) -> None:
    """At what the other one reaches without a budget, `optimal` has a plan too."""
    smallest = [(which, strategy_named(name)(problem(which)).peak_nbytes) for which in SEEDS]
    assert [which for which, peak in smallest if peak and ours(which, peak).decisions is None] == []
