"""A memory timeline in Unicode blocks: one row for store-all, one for the plan, on a common scale."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..schedule import Schedule, StepKind

BLOCKS = " ▁▂▃▄▅▆▇█"


def backward_start(schedule: Schedule) -> int:
    """The number of steps up to the last forward: where the backward begins."""
    return max((i + 1 for i, step in enumerate(schedule) if step.kind is StepKind.FORWARD), default=0)


def binned(values: Sequence[int], width: int) -> list[int]:
    """``width`` maxima over equal ranges of ``values``, which keep every peak; short series are stretched."""
    if not values:
        return [0] * width
    count = len(values)
    edges = [i * count // width for i in range(width + 1)]
    return [max(values[start : max(start + 1, end)]) for start, end in itertools.pairwise(edges)]


def bars(values: Sequence[int], top: int) -> str:
    """One block per value, in eighths of ``top``; every value above zero is visible."""
    levels = [0 if value <= 0 else max(1, -(-8 * value // max(1, top))) for value in values]
    return "".join(BLOCKS[min(8, level)] for level in levels)


def row(values: Sequence[int], backward_at: int, widths: tuple[int, int], top: int) -> str:
    """The bars of one schedule: its forward in ``widths[0]`` columns, its backward in ``widths[1]``."""
    forward, backward = values[:backward_at], values[backward_at:]
    return bars(binned(forward, widths[0]), top) + bars(binned(backward, widths[1]), top)


def phase_widths(steps: int, backward_at: int, width: int) -> tuple[int, int]:
    """Columns of the forward and the backward part, in proportion to their steps, at least a fifth each."""
    share = backward_at / max(1, steps)
    forward = round(width * min(0.8, max(0.2, share)))
    return forward, width - forward


def axis(widths: tuple[int, int]) -> str:
    """The line below, which marks where the backward begins."""
    forward, backward = (
        f" {word} " if width > len(word) + 4 else ""
        for word, width in zip(("forward", "backward"), widths, strict=True)
    )
    return forward.center(widths[0] - 1, "─") + "┴" + backward.center(widths[1], "─")
