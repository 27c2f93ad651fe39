"""Charts as SVG that stretches to any width; all text stands in HTML beside it and keeps its size."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from ...problem import Scope
from ...schedule import StepKind
from ...units import format_nbytes
from .markup import Texts, shown
from .memory_stack import KINDS, StepMemory, binned, highest

MOST_BINS = 800
"""A chart has at most so many columns; a column shows the highest of its computations."""
_HEIGHT = 1000


def ticks(top: float, about: int = 4) -> list[float]:
    """Round numbers from zero up to ``top``."""
    if top <= 0:
        return [0.0]
    rough = top / about
    power = 10.0 ** floor(log10(rough))
    step = next(power * unit for unit in (1, 2, 5, 10) if power * unit >= rough * 0.999)
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def share(value: float, top: float) -> str:
    """A position along an axis, as CSS."""
    return f"{100 * value / top:.2f}%" if top else "0%"


class MemoryChart:
    """The stacked memory of one schedule, in columns."""

    def __init__(self, memory: StepMemory, scope: Scope) -> None:
        self.memory, self.stack = memory, memory.stack(scope)
        self.bins = binned(self.stack, MOST_BINS)
        self.at = [highest(self.stack, within) for within in self.bins]

    @property
    def backward_at(self) -> int:
        """The first column of the backward."""
        starts = (i for i, within in enumerate(self.bins) if self.stack.steps[within[-1]] >= self.memory.backward_at)
        return next(starts, len(self.bins))

    def html(self, key: str, label: str, top: int, budget: int | None) -> str:
        """The chart with its axes and the place where its script writes.

        ``top`` is the height in bytes that charts side by side share; ``budget`` draws a line.
        """
        stack, count = self.stack, len(self.stack.steps)
        peak = stack.peak
        column = self.at.index(peak)
        marks = "".join(
            f'<span class="tick" style="bottom:{share(value, top)}">{format_nbytes(round(value))}</span>'
            for value in ticks(top)
        )
        line = f'<span class="budget" style="bottom:{share(budget, top)}">budget</span>' if budget is not None else ""
        caption = f"peak {format_nbytes(stack.peak_nbytes)} at step {peak + 1:,} of {count:,}"
        forward = 100 * self.backward_at / len(self.bins)
        return (
            f'<figure class="chart" data-chart="{key}"><figcaption><b>{shown(label)}</b>: {caption}</figcaption>\n'
            f'<div class="frame">{marks}<div class="plot" tabindex="0" role="slider" '
            f'aria-label="{shown(label)}: memory along the step" aria-valuemin="1" aria-valuemax="{count}" '
            f'aria-valuenow="{peak + 1}" aria-valuetext="{caption}">\n{self._svg(top, budget)}\n{line}'
            f'<i class="peak" style="left:{share(column + 0.5, len(self.bins))};'
            f'bottom:{share(stack.peak_nbytes, top)}"></i><i class="cursor" hidden></i></div></div>\n'
            f'<div class="phases"><span style="width:{forward:.2f}%">forward</span><span>backward</span></div>\n'
            f'<div class="readout"></div></figure>\n'
        )

    def _svg(self, top: int, budget: int | None) -> str:
        def height(nbytes: float) -> int:
            return round(_HEIGHT * (1 - nbytes / max(1, top)))

        width = len(self.bins)
        lines = "".join(f'<path class="grid" d="M0 {height(value)}H{width}"/>' for value in ticks(top)[1:])
        layers = []
        for position in range(len(self.stack.kinds) - 1, -1, -1):  # each is filled to the floor; lower ones cover it
            sums = [sum(self.stack.nbytes[at][: position + 1]) for at in self.at]
            if any(self.stack.nbytes[at][position] for at in self.at):
                kind = KINDS.index(self.stack.kinds[position])
                layers.append(f'<path class="k{kind}" d="{_steps([height(total) for total in sums])}"/>')
        marks = f'<path class="turn" d="M{self.backward_at} 0V{_HEIGHT}"/>'
        if budget is not None:
            marks += f'<path class="limit" d="M0 {height(budget)}H{width}"/>'
        view = f'viewBox="0 0 {width} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true"'
        return f"<svg {view}>{lines}{''.join(layers)}{marks}</svg>"

    def data(self, texts: Texts, described: Sequence[tuple[str, str, str]]) -> dict[str, object]:
        """What the script shows of each column; ``described`` has name, type and module of each op."""
        graph, known, columns = self.memory.graph, texts.number, []
        for within, at in zip(self.bins, self.at, strict=True):
            step = self.memory.schedule.steps[self.stack.steps[at]]
            op = graph.ops[step.index]
            if step.kind is StepKind.BACKWARD:
                gradients = [] if op.backward is None else [graph.gradients[e.gradient] for e in op.backward.gives]
                made = [(gradient.name, gradient.nbytes) for gradient in gradients]
            else:
                made = [(graph.storages[s].name, graph.storages[s].nbytes) for s in op.writes]
            columns.append([
                within[0] + 1, within[-1] + 1, at + 1, known(step.kind.value), *map(known, described[step.index]),
                [[known(name), nbytes] for name, nbytes in sorted(made, key=lambda entry: -entry[1])[:4]], len(made),
                self.stack.nbytes[at],
            ])  # fmt: skip
        return {
            "count": len(self.stack.steps),
            "peak": self.at.index(self.stack.peak),
            "kinds": [KINDS.index(kind) for kind in self.stack.kinds],
            "columns": columns,
        }


def _steps(heights: Sequence[int]) -> str:
    """A path of columns one wide; equal neighbours are one line."""
    parts = [f"M0 {_HEIGHT}"]
    for column, height in enumerate(heights):
        if column == 0 or height != heights[column - 1]:
            parts.append(f"V{height}")
        if column == len(heights) - 1 or heights[column + 1] != height:
            parts.append(f"H{column + 1}")
    return "".join((*parts, f"V{_HEIGHT}Z"))
