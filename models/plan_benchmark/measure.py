"""Plan one graph at every budget with every strategy, on one simulator, and print what came out as JSON.

    python -m models.plan_benchmark.measure FILE --batch 32

Strategies other than `optimal` run in a process each, so that one that takes too long can be ended.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from ogc_plan.planner.model import load_model
from ogc_plan.planner.pipeline import replay
from ogc_plan.planner.problem import Problem, Scope
from ogc_plan.planner.solution import Solution, Status
from ogc_plan.planner.solver import Solver
from ogc_plan.planner.strategies import FIXED

from models.plan_benchmark.extent import (
    BASE,
    BUDGETED,
    FIRST,
    FIXED_PLANS,
    HARDER,
    HARDER_S,
    LIMIT_S,
    QUICK,
    SHARES,
    Extent,
)
from models.plan_benchmark.targets import INFEASIBLE, missed
from models.plan_benchmark.times import answer, warm

SOLVED = (
    "seconds are wall time, in which other graphs may have been planned beside; cpu_s is processor time. Each is of "
    "one solve from nothing, its preparation included, kernels loaded before; rows with `matches` are solves of a "
    "graph prepared before"
)
"""How the seconds of rows were taken, in words."""


def _answer(problem: Problem, strategy: str, budget_nbytes: int | None, results: Connection) -> None:
    """In a process of its own: solve, replay, send the row."""
    started = time.perf_counter()
    solution = Solver(strategy, time_limit_s=None if strategy.partition(":")[0] in FIXED else LIMIT_S).solve(
        problem, budget_nbytes
    )
    results.send(_row(problem, solution, time.perf_counter() - started))


def _row(problem: Problem, solution: Solution, seconds: float) -> dict[str, Any]:
    """What one solve gave; a plan is replayed first, so that no claim is recorded that is not true."""
    found = solution.decisions is not None
    if found:
        replay(problem, solution)
    proven = solution.status is Status.INFEASIBLE
    return {
        "status": INFEASIBLE if proven else solution.status.value,
        "peak_nbytes": solution.peak_nbytes if found else None,
        "overhead": solution.objective_ns / problem.store_all_ns if found else None,
        "bound": solution.bound_ns / problem.store_all_ns if solution.bound_class else None,
        "smallest_nbytes": solution.smallest_nbytes,
        "seconds": round(seconds, 3),
    }


def limited(problem: Problem, strategy: str, budget_nbytes: int | None) -> dict[str, Any]:
    """The row of a strategy, which is ended a little after LIMIT_S; then its status is ``ended``."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(problem, strategy, budget_nbytes, theirs))
    process.start()
    theirs.close()
    try:
        if ours.poll(1.5 * LIMIT_S):
            return dict(ours.recv())
    except EOFError:
        raise SystemExit(f"strategy {strategy} failed at {budget_nbytes} B") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    nothing = dict.fromkeys(("peak_nbytes", "overhead", "bound", "smallest_nbytes"))
    return {"status": "ended", **nothing, "seconds": 1.5 * LIMIT_S}


def measure(path: str, batch: int | None, device: str, effort: str) -> dict[str, Any]:
    """Plan one file at every budget; the row of a plan with HARDER effort says so in ``effort``."""
    warm()
    model = load_model(path, batch=batch, device=device)
    problem = model.problem(Scope.ACTIVATIONS)
    whole = model.store_all().peak_activation_nbytes
    extent = Extent.of(problem.op_count)
    rows: list[dict[str, Any]] = []

    def others() -> None:
        for strategy in FIXED_PLANS:
            rows.append(
                {"strategy": strategy, "share": None, "budget_nbytes": None, **limited(problem, strategy, None)}
            )
        for strategy in BUDGETED:
            for share in extent.quick if strategy in QUICK else extent.slow:
                limit = whole * share // 100
                if limit >= problem.floor_nbytes:
                    row = limited(problem, strategy, limit)
                    rows.append({"strategy": strategy, "share": share / 100, "budget_nbytes": limit, **row})

    def ours(solver: Solver, limit: int | None, prepared: Any = None, **which: Any) -> dict[str, Any]:
        wall, cpu = time.perf_counter(), time.process_time()
        solution = solver.solve(prepared or solver.prepared(problem), limit)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        row = {"strategy": "optimal", "share": None, "budget_nbytes": limit, **which, **_row(problem, solution, wall)}
        rows.append({**row, "cpu_s": round(cpu, 3)})
        return rows[-1]

    others()
    own_peaks = {row["strategy"]: row["peak_nbytes"] for row in rows if row["share"] is None}
    solver = Solver(effort=effort)
    at_first = solver.prepared(problem)
    found = [
        ours(solver, whole * share // 100, at_first if share == FIRST else None, share=share / 100) for share in SHARES
    ]
    ours(solver, None, minimum=True)
    for strategy, peak in own_peaks.items() if extent.matched else ():
        if peak is not None:
            ours(solver, peak, at_first, matches=strategy)
    for row in found if extent.harder and effort == BASE else ():
        if missed(row):
            ours(Solver(effort=HARDER, time_limit_s=HARDER_S), row["budget_nbytes"], share=row["share"], effort=HARDER)
    return {
        "ops": problem.op_count,
        "store_all_nbytes": whole,
        "store_all_ms": problem.store_all_ns / 1e6,
        "floor_nbytes": problem.floor_nbytes,
        "floor_at": problem.floor.step,
        "rows": rows,
    }


if __name__ == "__main__":
    answer(__doc__, measure)
