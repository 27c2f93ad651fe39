"""Linear programs over [0, 1] variables, solved by GLOP, and bounds made exact afterwards.

GLOP works in floating point, so its objective is never reported. `certified_bound` recomputes a bound
from the dual values in integer arithmetic; weak duality makes it valid whatever the duals are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_DUAL_BITS = 44
UNLIMITED = 1 << 62
_ITERATIONS = 100_000
_BASE_ENTRIES = 60_000
_READING = 1500
"""What reading and certifying an answer costs per row and column, in the same unit."""
_LIMB_BITS = 22
_EXACT = float(1 << 62)


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


class Interrupter:
    """Ends a linear program that another thread is solving."""

    def __init__(self) -> None:
        self._lock, self._interrupted = Lock(), False
        self._end: Callable[[], object] | None = None

    def interrupt(self) -> None:
        """End what is being solved, and whatever is begun from now on."""
        with self._lock:
            self._interrupted = True
            if self._end is not None:
                self._end()

    @contextmanager
    def over(self, end: Callable[[], object]) -> Iterator[None]:
        """While a program is solved that ``end`` would end."""
        with self._lock:
            self._end = end
            if self._interrupted:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._end = None


def solve(
    program: LinearProgram,
    time_limit_s: float | None = None,
    most_work: int = UNLIMITED,
    interrupter: Interrupter | None = None,
) -> Answer:
    """Solve with GLOP. A program not finished within ``most_work``, as `Simplex` counts it, has ``solved`` False.

    So has one that was interrupted.
    """
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
        if time_limit_s is not None:
            solver.set_time_limit_in_seconds(time_limit_s)
        with nullcontext() if interrupter is None else interrupter.over(solver.interrupt_solve):
            solver.solve(helper)
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


class Certifier:
    """Exact lower bounds of one program, from any duals.

    Weak duality: y . lower + sum_j min(0, cost_j - (A^T y)_j) for any y >= 0, with y rounded to multiples of 2^-44.
    The sums are exact: in machine integers by limbs of 22 bits where nothing can overflow, in Python's otherwise.
    """

    def __init__(self, program: LinearProgram) -> None:
        from scipy.sparse import csr_matrix

        self.program = program
        shape = (len(program.cost), len(program.lower))
        data = np.array(program.coefficients, dtype=np.int64)
        self.transposed = csr_matrix((data, (program.columns, program.rows)), shape=shape, dtype=np.int64)
        self.cost = np.array(program.cost, dtype=np.int64)
        self.lower = np.array(program.lower, dtype=np.int64)
        magnitude = csr_matrix((np.abs(data.astype(np.float64)), (program.columns, program.rows)), shape=shape)
        self.magnitude = float((magnitude @ np.ones(shape[1])).max(initial=0.0))

    def certify(self, dual: Floats) -> int:
        """The least cost of any 0/1 point that satisfies the rows, as far as ``dual`` proves it, rounded up (ns)."""
        values = np.nan_to_num(np.minimum(np.maximum(dual, 0.0), float(1 << 40)), nan=0.0)
        whole = np.floor(values).astype(np.int64)
        part = np.floor((values - whole) * float(1 << _DUAL_BITS)).astype(np.int64)
        high, low = self._reduced(whole, part)
        at_one = high < 0
        total = sum(int(h) << _DUAL_BITS for h in high[at_one].tolist()) + int(low[at_one].sum())
        used = np.flatnonzero((values > 0) & (self.lower != 0))
        for w, p, limit in zip(whole[used].tolist(), part[used].tolist(), self.lower[used].tolist(), strict=True):
            total += ((w << _DUAL_BITS) + p) * limit
        return -(-total >> _DUAL_BITS)

    def _reduced(self, whole: Ints, part: Ints) -> tuple[Ints, Ints]:
        """cost - A^T y, as whole ns rounded down and a remainder in units of 2^-44 ns."""
        mask = (1 << _LIMB_BITS) - 1
        top = float(whole.max(initial=0)) * self.magnitude
        if self.magnitude * float(1 << _LIMB_BITS) >= _EXACT or top >= _EXACT:
            return self._reduced_slowly(whole, part)
        sums = [self.transposed @ limb for limb in (part & mask, part >> _LIMB_BITS, whole & mask, whole >> _LIMB_BITS)]
        carried = sums[1] + (sums[0] >> _LIMB_BITS)
        fraction = ((carried & mask) << _LIMB_BITS) | (sums[0] & mask)
        high = self.cost - (sums[2] + (carried >> _LIMB_BITS) + (sums[3] << _LIMB_BITS)) - (fraction > 0)
        return high, np.where(fraction > 0, (1 << _DUAL_BITS) - fraction, 0)

    def _reduced_slowly(self, whole: Ints, part: Ints) -> tuple[Ints, Ints]:
        program, one = self.program, 1 << _DUAL_BITS
        multipliers = [(w << _DUAL_BITS) + p for w, p in zip(whole.tolist(), part.tolist(), strict=True)]
        reduced = [cost * one for cost in program.cost]
        for row, column, coefficient in zip(program.rows, program.columns, program.coefficients, strict=True):
            if multipliers[row]:
                reduced[column] -= multipliers[row] * coefficient
        high = np.array([value >> _DUAL_BITS for value in reduced], dtype=object)
        return high, np.array([value & (one - 1) for value in reduced], dtype=np.int64)


def certified_bound(program: LinearProgram, dual: Floats) -> int:
    """A lower bound on every integer solution's cost, exact whatever ``dual`` holds; never below 0."""
    return max(0, Certifier(program).certify(dual))
