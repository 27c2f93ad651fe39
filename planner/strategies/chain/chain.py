"""Plans from a chain of blocks: cuts, options per unique block, one dynamic programme, many budgets.

The programme works with rounded sizes and with peaks that are sometimes too high, so it is asked for several
amounts of memory around the budget and the evaluator picks the cheapest sequence that really fits. No single
granularity is best on every network, so the blocks between the finest cuts are also joined into pieces between
coarser ones (`SPACINGS`, in ops), and the programme decides piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Array, Evaluation, Evaluator
from ..evaluation.labels import Label
from ..evaluation.prune_sequence import hold
from ..relaxation.parametric_min_cut import MinCut
from .block_cuts import Crossing, crossing_of, nested_positions
from .blocks import Blocks, blocks_of
from .dynamic_program import Floats, Units, table, trace, units_of
from .lowering import Lowering, OptionSets
from .options import PRICES, ROWS, BlockSearch

SPACINGS = (6, 20, 40, 80, 160, 320)
_MOST_BLOCKS = 260
_UNITS, _PRICE_UNITS = 2000, 500
"""Units of memory of the tables that plans come from, and of those that only tell the price of memory."""

_INFLATION = 1.25
_PROBES = 9
_CUTS = 12
"""Budgets for which the relaxation of one stage says what to keep: where the search for options starts."""

_LEAST_PROBES = 8
_SWEEP_WORK, _REFINE_WORK = 4_000_000, 4_000_000
"""Ops evaluated while options of unique blocks are searched, over a whole chain: in the first place, and per price."""

_LEAST_ITERATIONS = 30
_SLOPE = 0.03
"""The price of memory is measured over this share of the budget to either side."""

_PRICE_FACTORS = (0.6, 1.0, 1.7)


@dataclass(frozen=True)
class _Table:
    """D for memory in units of ``unit`` bytes."""

    unit: float
    units: Units
    best: Floats


@dataclass
class Chain:
    """The chain of one problem cut at several spacings; built once, asked for any number of budgets."""

    evaluator: Evaluator
    spacings: tuple[int, ...] = SPACINGS
    effort: float = 1.0
    crossing: Crossing = field(init=False)
    blocks: Blocks = field(init=False)
    options: OptionSets = field(init=False)
    ends: OptionSets = field(init=False)
    _searches: tuple[tuple[BlockSearch, ...], ...] = field(init=False)
    _ops: int = field(init=False)
    _tables: dict[tuple[int, int], _Table] = field(init=False, default_factory=dict)
    lowering: Lowering = field(init=False)

    def __post_init__(self) -> None:
        evaluator, n = self.evaluator, self.evaluator.problem.op_count
        self.crossing = crossing_of(evaluator)
        finest = -(-n // _MOST_BLOCKS)
        spacings = sorted({max(finest, spacing) for spacing in self.spacings}, reverse=True)
        self.blocks = blocks_of(evaluator, self.crossing, nested_positions(evaluator, self.crossing, spacings))
        self._searches = tuple(
            tuple(BlockSearch(block, last=last) for block in self.blocks.unique) for last in (False, True)
        )
        self._ops = sum(block.op_count for block in self.blocks.unique)  # those of equal blocks once
        self._tell(self._relaxed())
        for search in self._all_searches():
            search.sweep(max(_LEAST_ITERATIONS, int(self.effort * _SWEEP_WORK) // (ROWS * max(1, self._ops))))
        self._collect()

    def _relaxed(self) -> NDArray[np.bool_]:
        """What the relaxation of one stage keeps under a range of budgets (shape [k, S])."""
        evaluator, problem = self.evaluator, self.evaluator.problem
        cut, floor = MinCut(problem), problem.floor_nbytes
        room = evaluator.evaluate(evaluator.labels(Label.KEEP)).peak_nbytes - floor
        budgets = [floor + room * share // _CUTS for share in range(1, _CUTS)]
        return np.array([kept.kept for budget in budgets for kept in cut.bracket(budget)])

    def _tell(self, kept: NDArray[np.bool_]) -> None:
        """Tell the searches what to keep of their blocks (shape [k, S])."""
        a, bounds = self.evaluator.arrays, self.blocks.positions
        for piece in self.blocks.pieces:
            low, high = bounds[piece.first], bounds[piece.last + 1]
            made = a.writes[a.writes_start[low] : a.writes_start[high]]
            made = made[~self.crossing.fixed[made]]
            for kind in self._searches:
                kind[piece.which].know(kept[:, made])

    def _all_searches(self) -> Iterator[BlockSearch]:
        return (search for kind in self._searches for search in kind if not search.enumerated)

    def _collect(self) -> None:
        """Take the options that the searches know now; tables made of fewer are forgotten."""
        self.options, self.ends = (tuple(search.options() for search in kind) for kind in self._searches)
        self._tables = {}
        self.__dict__.pop("_everything_nbytes", None)
        self.lowering = Lowering(self.evaluator, self.crossing, self.blocks, self.options, self.ends)

    def refined(self, budget_nbytes: int, times: int) -> Chain:
        """A copy, refined around this budget: other budgets still find this chain as it was."""
        copied = copy(self)
        copied._searches = tuple(tuple(search.copy() for search in kind) for kind in self._searches)
        for _ in range(times):
            copied.refine(budget_nbytes)
        return copied

    def refine(self, budget_nbytes: int) -> None:
        """Search every block again at the price that memory has around this budget: better plans there."""
        table = self._table(budget_nbytes, _PRICE_UNITS)
        least, time = self._least(table), table.best[0, -1]
        at = min(len(time) - 1, max(least, int(budget_nbytes / table.unit)))
        low, high = max(least, int(at * (1 - _SLOPE))), min(len(time) - 1, int(at * (1 + _SLOPE)) + 1)
        if least >= high:
            return
        price = max(0.0, float(time[low] - time[high])) / ((high - low) * table.unit)
        prices = price * np.array(_PRICE_FACTORS)
        rows = len(prices) * (ROWS // PRICES)
        iterations = max(_LEAST_ITERATIONS, int(self.effort * _REFINE_WORK) // (rows * max(1, self._ops)))
        for search in self._all_searches():
            search.refine(prices, iterations)
        self._collect()

    def best(self, budget_nbytes: int) -> tuple[Array, Evaluation] | None:
        """The cheapest sequence found whose peak is within the budget, and its evaluation; None if none is."""
        best: tuple[Array, Evaluation] | None = None
        for sequence, _ in self.sequences(budget_nbytes):
            shorter = hold(self.evaluator, self.crossing.fixed, sequence, budget_nbytes)
            found = self.evaluator.evaluate_sequence(shorter)
            if found.peak_nbytes <= budget_nbytes and (best is None or found.recompute_ns < best[1].recompute_ns):
                best = shorter, found
        return best

    def sequences(self, budget_nbytes: int) -> list[tuple[Array, Evaluation]]:
        """Sequences within the budget for several amounts of memory around it, cheapest first."""
        table = self._table(budget_nbytes)
        limit = min(table.best.shape[2] - 1, int(budget_nbytes * _INFLATION / table.unit))
        low, high = self._least(table), limit + 1
        found: list[tuple[Array, Evaluation]] = []
        probe = min(limit, max(low, int(budget_nbytes / table.unit)))
        for _ in range(_PROBES):
            if not low <= probe < high:
                break
            sequence, evaluation = self._lowered(table, probe)
            if evaluation.peak_nbytes <= budget_nbytes:
                found.append((sequence, evaluation))
                low = probe + 1
            else:
                high = probe
            probe = (low + high) // 2
        return sorted(found, key=lambda pair: (pair[1].recompute_ns, pair[1].peak_nbytes))

    def smallest(self) -> tuple[Array, Evaluation]:
        """The sequence of lowest peak that the chain reaches."""
        found: list[tuple[Array, Evaluation]] = []
        table, finer = None, self._table(self._everything_nbytes)
        while finer is not table:
            table = finer  # finer units until the budget of the best plan so far needs none finer
            columns, least = table.best.shape[2], self._least(table)
            found += [self._lowered(table, m) for m in range(least, min(least + _LEAST_PROBES, columns))]
            finer = self._table(min(evaluation.peak_nbytes for _, evaluation in found))
        return min(found, key=lambda pair: (pair[1].peak_nbytes, pair[1].recompute_ns))

    def _least(self, table: _Table) -> int:
        """The fewest units with a plan, the number of columns if there is none."""
        finite = np.flatnonzero(np.isfinite(table.best[0, -1]))
        return int(finite[0]) if len(finite) else table.best.shape[2]

    @cached_property
    def _everything_nbytes(self) -> int:
        """Memory in which the programme surely finds the plan that recomputes nothing."""
        blocks, options = self.blocks, self.options
        held = sum(max(o.held_nbytes for o in options[p.which]) for p in blocks.pieces if p.first == p.last)
        peak = max(
            max(
                int(blocks.again_nbytes[p.last]) + o.backward_nbytes,
                int(blocks.first_nbytes[p.first : p.last + 1].max()) + o.forward_nbytes,
            )
            for p in blocks.pieces
            for o in options[p.which]
        )
        return (
            max(1, held + peak) * _PRICE_UNITS // (_PRICE_UNITS - len(blocks) - 3) + 1
        )  # rounding up costs a unit per block

    def _table(self, budget_nbytes: int, most: int = _UNITS) -> _Table:
        """D in units of which the budget, inflated, has between a half and all of ``most``."""
        wanted = max(1, min(self._everything_nbytes, int(budget_nbytes * _INFLATION)))
        level = (self._everything_nbytes // wanted).bit_length() - 1
        if (level, most) not in self._tables:
            unit = self._everything_nbytes / 2**level / most
            units = units_of(self.blocks, self.options, self.ends, unit)
            self._tables[level, most] = _Table(unit, units, table(units, most))
        return self._tables[level, most]

    def _lowered(self, table: _Table, m: int) -> tuple[Array, Evaluation]:
        return self.lowering.lowered(trace(table.units, table.best, m))
