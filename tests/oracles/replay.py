"""What the independent replay finds of a plan, to hold claims to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from ogc_plan.planner.problem import Problem, Scope
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.simulate import simulate
from ogc_plan.planner.solution import Decisions, Solution

Plan = Solution | Decisions | NDArray[np.int64]


def replayed(problem: Problem, plan: Plan) -> tuple[int, int]:
    """(peak in bytes under the problem's scope, recomputation ns)."""
    if isinstance(plan, Solution):
        assert plan.decisions is not None
        plan = plan.decisions
    decisions = plan if isinstance(plan, Decisions) else Decisions(tuple(plan.tolist()))
    timeline = simulate(problem.graph, problem.costs, lower(problem.graph, decisions))
    total = problem.scope is Scope.TOTAL
    return timeline.peak_total_nbytes if total else timeline.peak_activation_nbytes, timeline.recompute_ns


def keeps_its_word(problem: Problem, solution: Solution, budget_nbytes: int | None) -> bool:
    """Whether the replay confirms what a solution claims, and its plan is within the budget."""
    if solution.decisions is None:
        return True
    within = budget_nbytes is None or solution.peak_nbytes <= budget_nbytes
    return within and replayed(problem, solution) == (solution.peak_nbytes, solution.objective_ns)
