"""Linear programs over [0, 1] variables, solved by GLOP.

GLOP works in floating point, so its objective is never reported: certificate.py makes a bound of its duals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import needed
from ...limits import NO_LIMITS, Limits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
UNLIMITED = 1 << 62
_ITERATIONS = 100_000
_BASE_ENTRIES = 60_000


@dataclass
class LinearProgram:
    """minimise cost . x subject to rows ``sum(coefficient * x) >= lower``, 0 <= x <= 1, all data integers."""

    cost: list[int] = field(default_factory=list)
    lower: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    coefficients: list[int] = field(default_factory=list)

    def variable(self, cost: int = 0) -> int:
        """Add a variable and return its index."""
        self.cost.append(cost)
        return len(self.cost) - 1

    def at_least(self, lower: int, terms: list[tuple[int, int]]) -> int:
        """Add the row ``sum(coefficient * x[variable]) >= lower`` from (coefficient, variable) pairs; its index."""
        row = len(self.lower)
        self.lower.append(lower)
        for coefficient, variable in terms:
            self.rows.append(row)
            self.columns.append(variable)
            self.coefficients.append(coefficient)
        return row

    def by_row(self) -> list[list[tuple[int, int]]]:
        """(coefficient, variable) pairs of every row."""
        terms: list[list[tuple[int, int]]] = [[] for _ in self.lower]
        for row, column, coefficient in zip(self.rows, self.columns, self.coefficients, strict=True):
            terms[row].append((coefficient, column))
        return terms


@dataclass(frozen=True)
class Answer:
    """Primal values per variable and dual values per row; ``solved`` is False when the solver gave up.

    The duals it had by then prove a bound all the same.
    """

    solved: bool
    primal: Floats
    dual: Floats


def solve(program: LinearProgram, limits: Limits = NO_LIMITS, most_work: int = UNLIMITED) -> Answer:
    """Solve with GLOP; ``solved`` is False if that did not end within ``limits`` and ``most_work``.

    Work is simplex iterations, each times what one costs by measurement: the entries of the program and a base.
    """
    with needed("ortools"):
        from ortools.linear_solver.python import model_builder, model_builder_helper
    from scipy.sparse import csr_matrix

    variables, constraints = len(program.cost), len(program.lower)
    coefficients = np.array(program.coefficients, dtype=np.float64)
    rows = np.array(program.rows, dtype=np.int64)
    scale = _row_scale(coefficients, rows, constraints)
    matrix = csr_matrix((coefficients / scale[rows], (rows, program.columns)), shape=(constraints, variables))
    unit = _unit(program)
    helper: Any = model_builder_helper.ModelBuilderHelper()  # its stub types arrays wrongly
    helper.fill_model_from_sparse_data(
        np.zeros(variables),
        np.ones(variables),
        np.array(program.cost, dtype=np.float64) / unit,
        np.array(program.lower, dtype=np.float64) / scale,
        np.full(constraints, np.inf),
        matrix,
    )
    most = max(1, min(_ITERATIONS, most_work // (_BASE_ENTRIES + len(rows))))
    for parameters in (_PARAMETERS, _PLAIN):
        solver = model_builder_helper.ModelSolverHelper("glop")
        solver.set_solver_specific_parameters(f"{parameters} max_number_of_iterations: {most}")
        remaining_s = limits.remaining_s()
        if remaining_s is not None:
            solver.set_time_limit_in_seconds(remaining_s)
        limits.watch(lambda: solver.solve(helper), solver.interrupt_solve)  # noqa: B023 (it ends within the iteration)
        if solver.status() != model_builder.SolveStatus.ABNORMAL:
            break
    solved = bool(solver.has_solution()) and solver.status() == model_builder.SolveStatus.OPTIMAL
    dual = np.zeros(constraints)
    if solver.has_response() and len(solver.dual_values()) == constraints:
        dual = np.array(solver.dual_values(), dtype=np.float64) * unit / scale
    primal = np.array(solver.variable_values(), dtype=np.float64) if solved else np.zeros(variables)
    return Answer(solved, primal, dual)


# Faster than GLOP's defaults on stage LPs: models.plan_benchmark --only light-densenet121 shows it without this.
_PLAIN = "use_preprocessing: false use_dual_simplex: true"
# Repeated layers make the duals degenerate, and the simplex stall; perturbed costs take it out of that. Where taking
# the perturbation back leaves an answer imprecise, the plain ones are tried.
_PARAMETERS = f"{_PLAIN} perturb_costs_in_dual_simplex: true"


def _row_scale(coefficients: Floats, rows: Ints, constraints: int) -> Floats:
    """Divisors that bring byte rows to unit magnitude: GLOP's tolerances are absolute."""
    scale = np.ones(constraints)
    np.maximum.at(scale, rows, np.abs(coefficients))
    scale[scale > 1] /= 64.0
    return scale


def _unit(program: LinearProgram) -> float:
    return max(1.0, max(program.cost, default=0) / 1024.0)
