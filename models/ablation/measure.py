"""Plan one graph at every budget without one piece, in a process of its own."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ogc_plan.planner.pipeline import replay
from ogc_plan.planner.problem import Problem, Scope
from ogc_plan.planner.solver import Solver

from models.ablation.graphs import GRAPHS, NEW, load
from models.ablation.pieces import BASES, DEFAULT, HIGH, PIECES, REPLAN, Piece, without
from models.plan_benchmark.extent import FIRST, SHARES

if TYPE_CHECKING:
    from ogc_plan.planner.model import Model

LOWEST = "min"
"""The label of the smallest peak; those of budgets are their percent of store-all's peak."""
SMALL_OPS = 700
"""The smallest peak, and plans after one for another budget, are looked for on graphs of no more ops."""
HARD = {
    "dag60_7": (60, 50), "unet_narrow": (60, 50), "light-squeezenet": (50,), "unet": (50,), "dag100_0": (60,),
    "resnet26": (50, 40), "light-shufflenet": (40,),
}  # fmt: skip
"""Graphs and budgets of effort high."""


def labels_of(piece: Piece, name: str, ops: int) -> list[str]:
    """The budgets at which a graph is planned without a piece."""
    small = ops <= SMALL_OPS
    if piece.base == REPLAN and not small:
        return []
    if piece.base == HIGH:
        return [str(share) for share in HARD.get(name, ())]
    shares = [str(share) for share in SHARES if piece.base != REPLAN or share != FIRST]
    return [*shares, LOWEST] if piece.lowest and small else shares


@cache
def _model(name: str, folder: Path) -> Model:
    return load(name, folder)


def measured(name: str, variant: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Solve from nothing at each budget of a graph, or after a plan at `FIRST` for `REPLAN`.

    Returns:
        What the graph is, and its cells by label. Costs are shares of a store-all step, peaks of store-all's peak.
    """
    piece, model = {**BASES, **PIECES}[variant], _model(name, folder)
    solver = Solver(effort=HIGH if piece.base == HIGH else DEFAULT, seed=piece.seed)
    whole, problem = model.store_all().peak_activation_nbytes, model.problem(Scope.ACTIVATIONS)
    cells: dict[str, Any] = {}
    with without(piece):
        shared = solver.prepared(problem) if piece.base == REPLAN else None
        for label in labels_of(piece, name, problem.op_count):
            if shared is not None and not cells:
                solver.solve(shared, whole * FIRST // 100)
            fresh = model.problem(Scope.ACTIVATIONS)
            limit = None if label == LOWEST else whole * int(label) // 100
            cells[label] = _cell(solver, shared or solver.prepared(fresh), limit, fresh, whole)
    return {"ops": problem.op_count, "new": name in NEW, "origin": GRAPHS[name].origin}, cells


def _cell(solver: Solver, prepared: Any, limit: int | None, problem: Problem, whole: int) -> dict[str, Any]:
    started = time.process_time()
    solution = solver.solve(prepared, limit)
    spent = time.process_time() - started
    found = solution.decisions is not None
    if found:
        replay(problem, solution)
    return {
        "status": solution.status.value,
        "overhead": round(solution.objective_ns / problem.store_all_ns, 7) if found else None,
        "bound": round(solution.bound_ns / problem.store_all_ns, 7) if solution.bound_class else None,
        "peak": round((solution.peak_nbytes or 0) / whole, 7) if found else None,
        "cpu_s": round(spent, 3),
    }
