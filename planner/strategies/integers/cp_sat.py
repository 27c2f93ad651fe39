"""The integer optimum of a linear program over 0/1 variables by CP-SAT, which computes in integers throughout.

Where a linear relaxation leaves a wide gap, clauses learnt from conflicts close it in seconds where branching on
relaxations takes hours (Perron & Didier, "CP-SAT", OR-Tools). One worker under a limit of deterministic time: the
same program gives the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import needed
from ...limits import NO_LIMITS, Limits
from ..relaxation.linear_program import Floats, LinearProgram

_LAZY_VARIABLES = 2_000
"""Larger programs have all rows in the linear relaxation from the start: adding those that are broken a few at a time
took half of a short search there, and left a lower bound. On smaller ones it makes no difference."""
_EXACT = 1 << 53
"""CP-SAT tells bounds as doubles, which hold every integer up to here."""


@dataclass(frozen=True)
class Minimum:
    """No point costs less than ``bound_ns``.

    ``point`` is the best one found, None for none; ``proven`` whether no point is better by more than was spared;
    ``work`` deterministic time.
    """

    bound_ns: int
    point: Floats | None
    proven: bool
    work: float


def minimum(program: LinearProgram, spare_ns: int, most_work: float, limits: Limits = NO_LIMITS) -> Minimum:
    """The cheapest 0/1 point, or one at most ``spare_ns`` dearer.

    ``most_work`` in CP-SAT's deterministic time, about a second on a core of a 2020s server; ``limits`` end
    the search. A bound is one only for programs that some plan satisfies: an answer that there
    is no point, or one that breaks a row, proves nothing and is told as no point and a bound of 0. Bounds known before
    are no help as rows: where the cheapest point lies below one, the least cost above it is a subset sum, and the cost
    of a good plan as an upper one leaves few points to find.
    """
    with needed("ortools"):
        from ortools.sat.python import cp_model

    if sum(program.cost) > _EXACT or most_work <= 0:
        return Minimum(0, None, False, 0.0)
    model = cp_model.CpModel()
    variables = [model.new_bool_var("") for _ in program.cost]
    terms = program.by_row()
    for row, lower in zip(terms, program.lower, strict=True):
        _add_row(model, variables, row, lower)
    cost = cp_model.LinearExpr.weighted_sum(variables, program.cost)
    model.minimize(cost)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.linearization_level = 2
    solver.parameters.cp_model_probing_level = 0  # on stage programs it takes longer than all the rest
    solver.parameters.max_presolve_iterations = 1  # later ones change little
    solver.parameters.add_lp_constraints_lazily = len(variables) <= _LAZY_VARIABLES
    solver.parameters.absolute_gap_limit = spare_ns
    solver.parameters.max_deterministic_time = most_work
    solver.parameters.catch_sigint_signal = False  # its handler, outside the main thread, would end the process
    limits.watch(lambda: solver.solve(model), solver.stop_search)
    status, work = solver.response_proto.status, float(solver.response_proto.deterministic_time)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):  # false, or numbers beyond its range
        return Minimum(0, None, False, work)
    told = float(solver.best_objective_bound)
    told_ns = int(told) if 0 <= told <= _EXACT else 0  # doubles: 13.99.. for 14 is told as 13
    if status == cp_model.UNKNOWN:
        return Minimum(told_ns, None, False, work)
    chosen = [index for index, variable in enumerate(variables) if solver.value(variable)]
    point = np.zeros(len(variables))
    point[chosen] = 1.0
    taken = set(chosen)
    for row, lower in zip(terms, program.lower, strict=True):
        if sum(coefficient for coefficient, variable in row if variable in taken) < lower:
            return Minimum(0, None, False, work)
    found_ns, proven = sum(program.cost[index] for index in chosen), status == cp_model.OPTIMAL
    return Minimum(max(told_ns, found_ns - spare_ns) if proven else told_ns, point, proven, work)


def _add_row(model: Any, variables: list[Any], row: list[tuple[int, int]], lower: int) -> None:
    """Add ``sum(coefficient * x) >= lower`` to a CpModel; as a clause where it is one, which is read much faster."""
    with needed("ortools"):
        from ortools.sat.python import cp_model

    negative = sum(coefficient < 0 for coefficient, _ in row)
    if lower == 1 - negative and all(abs(coefficient) == 1 for coefficient, _ in row):
        model.add_bool_or([variables[v] if c > 0 else variables[v].negated() for c, v in row])
    else:
        terms = cp_model.LinearExpr.weighted_sum([variables[v] for _, v in row], [c for c, _ in row])
        model.add(terms >= lower)
