"""Every plan is a point of every stage program: it satisfies all rows."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np
from numpy.typing import NDArray
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.relaxation.stage_program import StageProgram
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageRelaxation
from ogc_plan.planner.strategies.retention.annealer import RetentionAnnealer

from tests.graphs.builders import random_graph
from tests.graphs.layered_graphs import layered_graph
from tests.graphs.small_cases import cases
from tests.oracles.brute import best_decisions
from tests.oracles.plan_point import point_of

Plan = tuple[Problem, NDArray[np.int64], int]


@cache
def plans() -> list[Plan]:
    """Exact optima of small problems, which may recompute during the forward, and annealed plans of larger ones."""
    found: list[Plan] = []
    for case in cases():
        best = best_decisions(case.problem, case.budget_nbytes)
        assert best is not None
        found.append((case.problem, np.array(best.sequence, dtype=np.int64), case.budget_nbytes))
    for seed in range(73_000, 73_040):
        rng = Random(seed)
        graph, costs = random_graph(rng, 25) if seed % 2 else layered_graph(rng, 25, 4)
        problem = build_problem(graph, costs, rng.choice(list(Scope)))
        evaluator = Evaluator(problem)
        dropped = np.array(evaluator.decisions(evaluator.labels(Label.DROP)).sequence, dtype=np.int64)
        budget = problem.floor_nbytes + rng.randint(0, 20)
        sequence, reached = RetentionAnnealer(evaluator, seed).run(dropped, budget, 3000, heat=0.1)
        found.append((problem, sequence, max(budget, reached.peak_nbytes)))
    return [plan for plan in found if plan[0].backward_order]


def programs(seed: int, plan: Plan) -> tuple[StageRelaxation, StageProgram]:
    """The program of a few stages and of moments of the forward, under the peak of the plan."""
    problem, _, budget = plan
    rng, relaxed, backwards = Random(seed), StageRelaxation(plan[0]), range(len(plan[0].backward_order))
    stages = rng.sample(backwards, min(3, len(backwards)))
    return relaxed, relaxed.program(budget, (*stages, *rng.sample(range(-problem.op_count, 0), 2)))


def test_every_row_holds_for_every_plan() -> None:
    broken = []
    for seed, plan in enumerate(plans()):
        relaxed, staged = programs(seed, plan)
        point = point_of(relaxed, staged, plan[1])
        for terms, lower in zip(staged.program.by_row(), staged.program.lower, strict=True):
            broken += [seed] if sum(c * point[v] for c, v in terms) < lower else []
    assert broken == []
