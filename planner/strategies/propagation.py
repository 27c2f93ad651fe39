"""What fixed 0/1 variables imply for the others: bounds propagation over integer rows, compiled.

A row ``sum(coefficient * x) >= lower`` whose largest value is below ``lower`` is a conflict; a variable without
whose better value the row cannot be met is fixed to it. All in integers: a conflict is a proof.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .kernels import compiled
from .linear_program import LinearProgram

Ints = NDArray[np.int64]
Bits = NDArray[np.int8]


class Rows(NamedTuple):
    """The rows of a program in both directions: terms of row r, and rows of column c, as CSR arrays."""

    start: Ints
    columns: Ints
    coefficients: Ints
    lower: Ints
    column_start: Ints
    column_rows: Ints


def rows_of(program: LinearProgram) -> Rows:
    """The program as arrays."""
    rows, columns = np.array(program.rows, dtype=np.int64), np.array(program.columns, dtype=np.int64)
    coefficients = np.array(program.coefficients, dtype=np.int64)
    by_row, by_column = np.argsort(rows, kind="stable"), np.argsort(columns, kind="stable")
    return Rows(
        np.searchsorted(rows[by_row], np.arange(len(program.lower) + 1)),
        columns[by_row],
        coefficients[by_row],
        np.array(program.lower, dtype=np.int64),
        np.searchsorted(columns[by_column], np.arange(len(program.cost) + 1)),
        rows[by_column],
    )


def propagate(rows: Rows, low: Bits, high: Bits, changed: Ints) -> bool:
    """Tighten the box ``low <= x <= high`` in place; False when it holds no point. ``changed``: columns to start from,
    every row when empty."""
    count = len(rows.lower)
    return bool(
        _tighten(rows, low, high, changed, np.zeros(count, dtype=np.bool_), np.zeros(count + 1, dtype=np.int64))
    )


@compiled
def _tighten(rows: Rows, low: Bits, high: Bits, changed: Ints, waiting: NDArray[np.bool_], queue: Ints) -> bool:
    """The work of `propagate`. Room: ``waiting``, False for every row, and ``queue``, an entry more than there are."""
    count = len(rows.lower)
    head, tail = 0, 0
    if len(changed) == 0:
        for row in range(count):
            queue[tail] = row
            waiting[row] = True
            tail += 1
    for column in changed:
        for position in range(rows.column_start[column], rows.column_start[column + 1]):
            row = rows.column_rows[position]
            if not waiting[row]:
                waiting[row] = True
                queue[tail] = row
                tail += 1
    while head != tail:
        row = queue[head]
        head = (head + 1) % (count + 1)
        waiting[row] = False
        slack = -rows.lower[row]
        for position in range(rows.start[row], rows.start[row + 1]):
            coefficient, column = rows.coefficients[position], rows.columns[position]
            slack += coefficient * (high[column] if coefficient > 0 else low[column])
        if slack < 0:
            return False
        for position in range(rows.start[row], rows.start[row + 1]):
            coefficient, column = rows.coefficients[position], rows.columns[position]
            if low[column] == high[column] or abs(coefficient) <= slack:
                continue
            if coefficient > 0:
                low[column] = 1
            else:
                high[column] = 0
            for other in range(rows.column_start[column], rows.column_start[column + 1]):
                touched = rows.column_rows[other]
                if not waiting[touched]:
                    waiting[touched] = True
                    queue[tail] = touched
                    tail = (tail + 1) % (count + 1)
    return True
