"""A smaller arena, or the proof that there is none, by CP-SAT: rectangles of time and memory that do not overlap."""

from __future__ import annotations

import numpy as np

from ..errors import needed
from ..limits import Limits
from .first_fit import Array, Items

MOST_ITEMS = 120
"""More items keep the solver busy for minutes before it counts any work."""
MOST_WORK = 3.0
"""Deterministic time, about a second each on a core of a 2020s server."""


def smaller(
    items: Items, fixed: Array, offset: Array, height: int, bound: int, limits: Limits
) -> tuple[Array, int, int]:
    """Offsets, height and bound in slots, each at least as good as those given.

    One worker and a limit of deterministic time: the same items give the same answer.
    """
    if len(items.size) > MOST_ITEMS:
        return offset, height, bound
    with needed("ortools"):
        from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    top = model.new_int_var(bound, height, "")
    stays = set(fixed.tolist())
    low, rectangles, spans = [], [], []
    for item, (size, begin, end) in enumerate(zip(*(column.tolist() for column in items), strict=True)):
        at = int(offset[item])
        variable = model.new_int_var(*((at, at) if item in stays else (0, height - size)), "")
        low.append(variable)
        spans.append(model.new_fixed_size_interval_var(begin, end - begin, ""))
        rectangles.append(model.new_fixed_size_interval_var(variable, size, ""))
        model.add(variable + size <= top)
        model.add_hint(variable, at)
    model.add_no_overlap_2d(spans, rectangles)
    model.add_cumulative(spans, items.size.tolist(), top)
    model.add_hint(top, height)
    model.minimize(top)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = MOST_WORK
    solver.parameters.catch_sigint_signal = False  # its handler, outside the main thread, would end the process
    limits.watch(lambda: solver.solve(model), solver.stop_search)
    status = solver.response_proto.status
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return offset, height, bound
    found = np.array([solver.value(variable) for variable in low], dtype=np.int64)
    reached = int((found + items.size).max(initial=0))
    proven = reached if status == cp_model.OPTIMAL else max(bound, int(solver.best_objective_bound))
    return (found, reached, min(proven, reached)) if reached <= height else (offset, height, bound)
