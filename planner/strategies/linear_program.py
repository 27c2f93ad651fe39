"""The only door to OR-Tools: linear programs over [0, 1] variables, and bounds made exact afterwards.

GLOP works in floating point, so its objective is never reported. `certified_bound` recomputes a bound
from the dual values in integer arithmetic; weak duality makes it valid whatever the duals are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_DUAL_BITS = 44


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

    def at_least(self, lower: int, terms: list[tuple[int, int]]) -> None:
        """Add the row ``sum(coefficient * x[variable]) >= lower`` from (coefficient, variable) pairs."""
        row = len(self.lower)
        self.lower.append(lower)
        for coefficient, variable in terms:
            self.rows.append(row)
            self.columns.append(variable)
            self.coefficients.append(coefficient)


@dataclass(frozen=True)
class Answer:
    """Primal values per variable and dual values per row; ``solved`` is False when the solver gave up."""

    solved: bool
    primal: Floats
    dual: Floats


def solve(program: LinearProgram, time_limit_s: float | None = None) -> Answer:
    """Solve with GLOP. A program the solver does not finish comes back with ``solved`` False."""
    from ortools.linear_solver.python import model_builder, model_builder_helper
    from scipy.sparse import csr_matrix

    variables, constraints = len(program.cost), len(program.lower)
    coefficients = np.array(program.coefficients, dtype=np.float64)
    rows = np.array(program.rows, dtype=np.int64)
    # Byte rows are scaled to unit magnitude; GLOP's tolerances are absolute.
    scale = np.ones(constraints)
    np.maximum.at(scale, rows, np.abs(coefficients))
    scale[scale > 1] /= 64.0
    matrix = csr_matrix((coefficients / scale[rows], (rows, program.columns)), shape=(constraints, variables))
    unit = max(1.0, max(program.cost, default=0) / 1024.0)
    helper: Any = model_builder_helper.ModelBuilderHelper()  # its stub types arrays wrongly
    helper.fill_model_from_sparse_data(
        np.zeros(variables),
        np.ones(variables),
        np.array(program.cost, dtype=np.float64) / unit,
        np.array(program.lower, dtype=np.float64) / scale,
        np.full(constraints, np.inf),
        matrix,
    )
    solver = model_builder_helper.ModelSolverHelper("glop")
    # Faster than GLOP's defaults on stage LPs: models.plan_benchmark --only light-densenet121 shows it without this.
    solver.set_solver_specific_parameters("use_preprocessing: false use_dual_simplex: true")
    if time_limit_s is not None:
        solver.set_time_limit_in_seconds(time_limit_s)
    solver.solve(helper)
    if not solver.has_solution() or solver.status() != model_builder.SolveStatus.OPTIMAL:
        return Answer(False, np.zeros(variables), np.zeros(constraints))
    primal = np.array(solver.variable_values(), dtype=np.float64)
    dual = np.array(solver.dual_values(), dtype=np.float64) * unit / scale
    return Answer(True, primal, dual)


def certified_bound(program: LinearProgram, dual: Floats) -> int:
    """A lower bound on every integer solution's cost, exact whatever ``dual`` holds.

    Weak duality over the box: y . lower + sum_j min(0, cost_j - (A^T y)_j) for any y >= 0, with y rounded
    to multiples of 2^-44 and everything summed in integers. The objective is an integer, so it is rounded up.
    """
    one = 1 << _DUAL_BITS
    multipliers = [int(value * one) if value > 0 else 0 for value in dual.tolist()]
    reduced = [cost * one for cost in program.cost]
    for row, column, coefficient in zip(program.rows, program.columns, program.coefficients, strict=True):
        if multipliers[row]:
            reduced[column] -= multipliers[row] * coefficient
    bound = sum(y * lower for y, lower in zip(multipliers, program.lower, strict=True) if y)
    bound += sum(value for value in reduced if value < 0)
    return max(0, -(-bound // one))
