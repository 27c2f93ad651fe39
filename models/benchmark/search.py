"""Plans of one network at chosen points: within a memory, within a time, the smallest, and a published strategy's."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from ogc_plan.planner.pipeline import replay
from ogc_plan.planner.problem import Problem
from ogc_plan.planner.solution import Solution
from ogc_plan.planner.solver import Solver

NEAR = 1.02
"""A search for the smallest memory within a time ends when it is known to this factor."""


@dataclass(frozen=True, slots=True)
class Point:
    """A plan and the seconds it took to find; ``overhead`` is a share of a step that stores everything."""

    solution: Solution
    overhead: float
    seconds: float

    @property
    def peak_nbytes(self) -> int:
        """The activation peak."""
        return self.solution.peak_nbytes


class Tradeoff:
    """`optimal` on one problem; every plan found serves every later question that it answers."""

    def __init__(self, problem: Problem, solver: Solver) -> None:
        self.problem, self.solver = problem, solver
        self._prepared = solver.prepared(problem)
        self.points: list[Point] = []
        self._failed: list[int] = []  # budgets without a plan
        self._smallest: Point | None = None

    def within(self, nbytes: int) -> Point | None:
        """A plan of at most so many bytes, None where none was found."""
        found = self._solve(nbytes)
        return min((p for p in self.points if p.peak_nbytes <= nbytes), key=_cheapest, default=found)

    def smallest(self) -> Point:
        """The plan of the smallest peak found."""
        if self._smallest is None:
            found = self._solve(None)
            assert found is not None
            self._smallest = found
        return min(self.points, key=_smallest)

    def least_memory(self, overhead: float, solves: int, *, smallest: bool = True) -> Point:
        """The smallest peak found whose plan adds at most ``overhead``, with at most so many new plans.

        Bisects over budgets, between the smallest peak (without ``smallest``, which is costly on deep networks, the
        proven floor) and a step that stores everything; where it asks next is interpolated over the logarithm of
        the memory.
        """
        if smallest:
            self.smallest()
        else:
            self._failed.append(self.problem.floor_nbytes - 1)
        for _ in range(solves):
            fits = [point for point in self.points if point.overhead <= overhead]
            best = min(fits, key=_smallest, default=None)
            upper, paid = (best.peak_nbytes, best.overhead) if best else (self._keep_all().peak_nbytes, 0.0)
            below = [p for p in self.points if p.overhead > overhead and p.peak_nbytes < upper]
            lower = max(below, key=lambda point: point.peak_nbytes, default=None)
            floor = max([nbytes for nbytes in self._failed if nbytes < upper], default=0)
            low = max(floor, lower.peak_nbytes if lower else 0)
            if not low or upper <= low * NEAR:
                break
            steep = lower.overhead if lower is not None and low == lower.peak_nbytes else 2 * overhead
            share = (overhead - paid) / (steep - paid) if steep > paid else 0.5
            share = min(0.85, max(0.15, 0.97 * share))
            self._solve(int(math.exp(math.log(upper) + share * (math.log(low) - math.log(upper)))))
        fits = [point for point in self.points if point.overhead <= overhead]
        return min(fits, key=_smallest, default=None) or self._keep_all()

    def _keep_all(self) -> Point:
        return strategy(self.problem, "keep-all")

    def _solve(self, nbytes: int | None) -> Point | None:
        started = time.perf_counter()
        solution = self.solver.solve(self._prepared, nbytes)
        if solution.decisions is None:
            if nbytes is not None:
                self._failed.append(nbytes)
            return None
        point = _point(self.problem, solution, time.perf_counter() - started)
        self.points.append(point)
        return point


def _cheapest(point: Point) -> tuple[float, int]:
    return point.overhead, point.peak_nbytes


def _smallest(point: Point) -> tuple[int, float]:
    return point.peak_nbytes, point.overhead


def _point(problem: Problem, solution: Solution, seconds: float) -> Point:
    return Point(solution, solution.objective_ns / problem.store_all_ns, seconds)


def strategy(problem: Problem, name: str) -> Point:
    """The one plan of a strategy that takes no budget (`ogc`, `sqrt`, `keep-all`), replayed on this problem."""
    started = time.perf_counter()
    solution = Solver(name).solve(problem, None)
    replay(problem, solution)
    return _point(problem, solution, time.perf_counter() - started)
