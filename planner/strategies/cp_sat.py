"""The integer optimum of a linear program over 0/1 variables by CP-SAT, which computes in integers throughout.

Where a linear relaxation leaves a wide gap, clauses learnt from conflicts close it in seconds where branching on
relaxations takes hours (Perron & Didier, "CP-SAT", OR-Tools). One worker under a limit of deterministic time: the
same program gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from ..errors import SolverError
from .linear_program import Floats, LinearProgram

_ASKED_S = 0.1
_EXACT = 1 << 53
"""CP-SAT tells bounds as doubles, which hold every integer up to here."""


@dataclass(frozen=True)
class Minimum:
    """No point costs less than ``bound_ns``, or else not less than was asked about.

    ``point`` is the best one found, None for none; ``proven`` whether no point is better; ``work`` deterministic time.
    """

    bound_ns: int
    point: Floats | None
    proven: bool
    work: float


def minimum(program: LinearProgram, below_ns: int, most_work: float, late: Callable[[], bool]) -> Minimum:
    """The cheapest 0/1 point of those that cost less than ``below_ns``; the bound is that where there is none.

    ``most_work`` in CP-SAT's deterministic time, about a second on a core of a 2020s server; ``late`` is asked several
    times a second and ends the search. Raises SolverError for an answer that breaks a row. A bound known before is no
    help as a row: where the cheapest point lies below it, the least cost above it is a subset sum.
    """
    from ortools.sat.python import cp_model

    if below_ns > _EXACT or most_work <= 0:
        return Minimum(0, None, False, 0.0)
    model = cp_model.CpModel()
    variables = [model.new_bool_var("") for _ in program.cost]
    terms = program.by_row()
    for row, lower in zip(terms, program.lower, strict=True):
        expression = cp_model.LinearExpr.weighted_sum([variables[v] for _, v in row], [c for c, _ in row])
        model.add(expression >= lower)
    cost = cp_model.LinearExpr.weighted_sum(variables, program.cost)
    model.add(cost < below_ns)
    model.minimize(cost)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.linearization_level = 2
    solver.parameters.cp_model_probing_level = 0  # on stage programs it takes longer than all the rest
    solver.parameters.max_deterministic_time = most_work
    solver.parameters.catch_sigint_signal = False  # its handler, outside the main thread, would end the process
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(solver.solve, model)
        while wait([asked], timeout=_ASKED_S).not_done:
            if late():
                solver.stop_search()
    status, work = asked.result(), float(solver.response_proto.deterministic_time)
    if status == cp_model.INFEASIBLE:
        return Minimum(below_ns, None, True, work)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):  # numbers beyond its range
        return Minimum(0, None, False, work)
    told = float(solver.best_objective_bound)
    told_ns = int(told) if 0 <= told <= below_ns else 0  # doubles: 13.99.. for 14 is told as 13
    if status == cp_model.UNKNOWN:
        return Minimum(told_ns, None, False, work)
    chosen = [index for index, variable in enumerate(variables) if solver.value(variable)]
    point = np.zeros(len(variables))
    point[chosen] = 1.0
    taken = set(chosen)
    for row, lower in zip(terms, program.lower, strict=True):
        if sum(coefficient for coefficient, variable in row if variable in taken) < lower:
            raise SolverError("CP-SAT's answer breaks a row", remedy="please report this with the model")
    proven = status == cp_model.OPTIMAL
    return Minimum(sum(program.cost[index] for index in chosen) if proven else told_ns, point, proven, work)
