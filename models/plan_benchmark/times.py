"""Time `optimal` on one graph with the machine to itself: first plans, then plans for other budgets; print JSON.

    python -m models.plan_benchmark.times FILE --batch 32

A solve keeps two threads busy, so times of solves that run side by side say little. Nothing else may run.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ogc_plan.planner.model import load_model
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.solver import Solver
from ogc_plan.planner.strategies.optimal.warm_up import prepare_kernels

from models.light import light_path
from models.plan_benchmark.extent import BASE, FIRST, SHARES

TIMED = (
    "Wall seconds, taken after everything else, one graph at a time and nothing beside it, in a process that has "
    "loaded its kernels and planned a small network before. First plan: preparing the graph, and planning for one "
    "budget, or for the smallest peak, which is looked for first (min). Re-plan: planning the graph prepared for "
    f"{FIRST}% (or the smallest budget above the floor, where that is "
    "more) for all other budgets in turn, from the loosest to the tightest; each starts from the plans before it. "
    "Budgets below the floor, which are refused at once, are not timed. Reading the file is in neither. RSS: the peak "
    "of that process."
)
"""How the times were taken, in words."""


def warm() -> None:
    """Compile or load every kernel and import what solves import: plan VGG-19 quickly."""
    prepare_kernels()
    model = load_model(light_path("vgg19"), batch=32)
    Solver(effort="fast").solve(model.problem(Scope.ACTIVATIONS), model.store_all().peak_activation_nbytes * 4 // 5)


def peak_rss_kb() -> int:
    """The most that this process has had in memory, in KiB.

    Linux hands `getrusage`'s figure on to the programs that a process starts: that of a small one may be its
    parent's. The peak of the present memory map is this program's own.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


def times(path: str, batch: int | None, device: str, effort: str) -> dict[str, Any]:
    """Seconds of reading (``read_s``), of each first plan and then of each re-plan, and the peak RSS in MB."""
    warm()
    started = time.perf_counter()
    model = load_model(path, batch=batch, device=device)
    problem = model.problem(Scope.ACTIVATIONS)
    read_s = time.perf_counter() - started
    whole, floor = model.store_all().peak_activation_nbytes, model.problem(Scope.ACTIVATIONS).floor_nbytes
    feasible = [share for share in SHARES if whole * share // 100 >= floor]
    first = max(FIRST, min(feasible, default=FIRST))
    solver = Solver(effort=effort)
    plans: list[dict[str, Any]] = []

    def timed(prepared: Any, share: int | None, *, is_first: bool) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        solution = solver.solve(prepared, None if share is None else whole * share // 100)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        found = solution.decisions is not None
        plans.append(
            {
                "label": "min" if share is None else f"{share}%",
                "first": is_first,
                "overhead": solution.objective_ns / problem.store_all_ns if found else None,
                "seconds": round(wall, 3),
                "cpu_s": round(cpu, 3),
            }
        )

    for share in (None, *(share for share in feasible if share != first)):
        timed(solver.prepared(problem), share, is_first=True)  # nothing yet: the solve prepares what it uses
    prepared = solver.prepared(problem)
    for share in sorted(feasible, key=lambda share: (share != first, -share)):
        timed(prepared, share, is_first=share == first)
    return {"read_s": round(read_s, 3), "peak_rss_mb": round(peak_rss_kb() / 1024, 1), "plans": plans}


def answer(about: str | None, of: Callable[[str, int | None, str, str], dict[str, Any]]) -> None:
    """Print as JSON what ``of`` says of the file, batch, device and effort of the command line."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--effort", default=BASE)
    options = parser.parse_args()
    json.dump(of(options.file, options.batch, options.device, options.effort), sys.stdout)


if __name__ == "__main__":
    answer(__doc__, times)
