"""The least cost of a small 0/1 program, by trying all points."""

from __future__ import annotations

from itertools import product

from ogc_plan.planner.strategies.relaxation.linear_program import LinearProgram


def cheapest(program: LinearProgram) -> int | None:
    """The least cost of a point that satisfies every row; None where there is none."""
    rows = list(zip(program.by_row(), program.lower, strict=True))
    costs = [
        sum(cost * bit for cost, bit in zip(program.cost, point, strict=True))
        for point in product((0, 1), repeat=len(program.cost))
        if all(sum(coefficient * point[variable] for coefficient, variable in row) >= low for row, low in rows)
    ]
    return min(costs, default=None)
