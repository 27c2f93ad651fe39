"""From the steps of the dynamic programme to a legal order of single computations."""

from __future__ import annotations

import numpy as np

from ..evaluation.evaluator import Array, Evaluation, Evaluator, scratch_of
from ..evaluation.prune_sequence import prune
from .block_cuts import Crossing
from .blocks import Blocks
from .dynamic_program import Backward, Forward
from .option_cost import block_events
from .options import Option

OptionSets = tuple[tuple[Option, ...], ...]


class Lowering:
    """Turns steps over ``blocks`` into sequences; a block run again leaves out the ops whose results nothing uses.

    ``options[u]`` are those of unique block u, ``ends[u]`` those for the end of a range of recomputations.
    """

    def __init__(
        self, evaluator: Evaluator, crossing: Crossing, blocks: Blocks, options: OptionSets, ends: OptionSets
    ) -> None:
        self.evaluator, self.fixed, self.blocks = evaluator, crossing.fixed, blocks
        self._sets = options, ends
        self._rows = [
            [(piece, number) for piece in blocks.pieces for number in range(len(chosen[piece.which]))]
            for chosen in self._sets
        ]
        self._backwards: dict[tuple[int, int, bool], Array] = {}

    def lowered(self, steps: list[Forward | Backward]) -> tuple[Array, Evaluation]:
        """The sequence of the steps and its evaluation."""
        bounds = self.blocks.positions
        parts = []
        for step in steps:
            if isinstance(step, Forward):
                parts.append(np.arange(bounds[step.first], bounds[step.last + 1], dtype=np.int64))
            else:
                piece, number = self._rows[step.end][step.row]
                low, local = int(bounds[piece.first]), self._backward(piece.which, number, step.end)
                parts.append(np.where(local >= 0, local + low, local - low))
        sequence = prune(self.evaluator, self.fixed, np.concatenate(parts))
        return sequence, self.evaluator.evaluate_sequence(sequence)

    def _backward(self, which: int, number: int, end: bool) -> Array:
        """The backward of a unique block under an option: its local computations after the forward."""
        key = which, number, end
        if key not in self._backwards:
            block = self.blocks.unique[which]
            w = scratch_of(block.arrays)
            labels = self._sets[end][which][number].labels
            count, _ = block_events(block.arrays, labels, w, np.zeros(len(labels), dtype=np.bool_))
            self._backwards[key] = w.events[block.op_count : count].copy()
        return self._backwards[key]
