"""Exact lower bounds from the approximate duals of a linear program.

The bound is recomputed from the dual values in integer arithmetic; weak duality makes it valid whatever they are.
"""

from __future__ import annotations

import numpy as np

from .linear_program import Floats, Ints, LinearProgram

_DUAL_BITS = 44
_LIMB_BITS = 22
_EXACT = float(1 << 62)


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
