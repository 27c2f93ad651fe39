"""Linear programs over [0, 1] variables, solved by GLOP.

GLOP works in floating point, so its objective is never reported: certificate.py makes a bound of its duals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...limits import NO_LIMITS, Limits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
UNLIMITED = 1 << 62
_ITERATIONS = 100_000
_BASE_ENTRIES = 60_000
_READING = 1500
"""What reading and certifying an answer costs per row and column, in the same unit."""


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
    """Solve with GLOP; ``solved`` is False if that did not end within ``limits`` and ``most_work`` (see `Simplex`)."""
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


class Simplex:
    """GLOP with its basis kept from one solve to the next, while right-hand sides change."""

    def __init__(self, program: LinearProgram) -> None:
        from ortools.linear_solver import linear_solver_pb2, pywraplp

        self._response = linear_solver_pb2.MPSolutionResponse
        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self._options = pywraplp.MPSolverParameters()
        self._options.SetIntegerParam(self._options.INCREMENTALITY, self._options.INCREMENTALITY_ON)
        self._afresh = pywraplp.MPSolverParameters()  # numerical trouble may come with the basis, and go with it
        self._afresh.SetIntegerParam(self._afresh.INCREMENTALITY, self._afresh.INCREMENTALITY_OFF)
        self._optimal, self._abnormal = pywraplp.Solver.OPTIMAL, pywraplp.Solver.ABNORMAL
        self.unit = _unit(program)
        self._variables = [self._solver.NumVar(0.0, 1.0, "") for _ in program.cost]
        objective = self._solver.Objective()
        for variable, cost in zip(self._variables, program.cost, strict=True):
            if cost:
                objective.SetCoefficient(variable, cost / self.unit)
        self._constraints: list[Any] = []
        self._scale: list[float] = []
        self._entries = len(program.rows)
        self.work = 0
        """Iterations so far, each times what one costs: the entries of the program and a base, by measurement."""
        for lower, terms in zip(program.lower, program.by_row(), strict=True):
            largest = max((abs(coefficient) for coefficient, _ in terms), default=1)
            scale = 1.0 if largest <= 1 else largest / 64.0
            constraint = self._solver.Constraint(lower / scale, self._solver.infinity())
            for coefficient, variable in terms:
                constraint.SetCoefficient(self._variables[variable], coefficient / scale)
            self._constraints.append(constraint)
            self._scale.append(scale)

    def set_lower(self, row: int, lower: int) -> None:
        """Replace the right-hand side of a row."""
        self._constraints[row].SetLb(lower / self._scale[row])

    def solve(self, most_work: int = UNLIMITED) -> Answer:
        """Solve from the last basis. ``solved`` is False where there is no point or ``work`` would pass ``most_work``.

        The answer then has no values.
        """
        most = (most_work - self.work) // (_BASE_ENTRIES + self._entries)
        limit = f" max_number_of_iterations: {max(1, min(_ITERATIONS, most))}"
        self._solver.SetSolverSpecificParametersAsString(_PARAMETERS + limit)
        variables, constraints = len(self._variables), len(self._constraints)
        status = self._solver.Solve(self._options)
        iterations = self.iterations
        if status == self._abnormal:
            self._solver.SetSolverSpecificParametersAsString(_PLAIN + limit)
            status = self._solver.Solve(self._afresh)
            iterations += self.iterations
        self.work += iterations * (_BASE_ENTRIES + self._entries) + _READING * (variables + constraints)
        if status != self._optimal:
            return Answer(False, np.zeros(variables), np.zeros(constraints))
        found = self._response()
        self._solver.FillSolutionResponseProto(found)  # one call for each value would take as long as some solves
        primal = np.array(found.variable_value[:variables])
        return Answer(True, primal, np.array(found.dual_value) * self.unit / np.array(self._scale))

    @property
    def iterations(self) -> int:
        """Simplex iterations of the last solve."""
        return int(self._solver.iterations())
