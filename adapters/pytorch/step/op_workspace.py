"""The workspace of each op: memory beyond its results, in temporaries between its calls and inside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import fx

from ..memory.allocations import elements, ranks
from ..memory.rng_state import generator_of, state_nbytes
from .step_graph import TracedStep
from .step_ops import StepOp

KernelPeak = Callable[[fx.Node, frozenset[int]], int]
"""Bytes inside a node's call at its worst moment, without some of its outputs (allocations.ranks)."""


class Workspace(NamedTuple):
    """Bytes of one op, as `planner.training_graph.OpCost` defines them."""

    forward_nbytes: int
    backward_nbytes: int
    backward_activation_nbytes: int


def workspaces(step: TracedStep, kernel_peak: KernelPeak | None) -> tuple[Workspace, ...]:
    """The workspace of every op.

    Without ``kernel_peak`` only temporaries between the calls of one backward count, which is what a meter of tensors
    sees.
    """
    gradients = step.graph.gradients
    parameter = frozenset(allocation for allocation, g in step.gradient_of.items() if gradients[g].parameter)
    lasting = frozenset(step.gradient_of)
    found = []
    for op in step.ops:
        forward = 0
        if op.runs and kernel_peak is not None:
            outputs = peak = 0
            for node in op.runs:
                peak = max(peak, outputs + kernel_peak(node, frozenset()))
                outputs += sum(
                    step.allocations.entries[allocation].nbytes for allocation in step.allocations.made[node]
                )
            forward = max(0, peak - outputs)
            forward += state_nbytes(generator_of(op.runs[0])) if op.random else 0
        backward = _backward(op, step, lasting, kernel_peak, frozenset())
        found.append(Workspace(forward, backward, _backward(op, step, lasting, kernel_peak, parameter)))
    return tuple(found)


def _backward(
    op: StepOp, step: TracedStep, lasting: frozenset[int], kernel_peak: KernelPeak | None, left_out: frozenset[int]
) -> int:
    """The most that the main part holds beyond the ``lasting`` gradients it makes, neither counting ``left_out``."""
    allocations, overwrites = step.allocations, step.reuse.overwrites
    last_use: dict[int, int] = {}
    for position, node in enumerate(op.main):
        last_use.update(dict.fromkeys((*allocations.made[node], *allocations.reads(node)), position))
    alive: dict[int, int] = {}
    peak = 0
    for position, node in enumerate(op.main):
        before = sum(alive.values())
        fresh = [b for b in allocations.made[node] if b not in left_out]
        # A result that takes over memory keeps it alive if it was made here; otherwise a gradient that came in has it.
        alive.update(
            {b: alive.pop(overwrites[b], 0) if b in overwrites else allocations.entries[b].nbytes for b in fresh}
        )
        inside = sum(alive.values()) - before
        if kernel_peak is not None:
            placed = zip(elements(node), allocations.of[node], strict=True)
            without = ranks(node, {element for element, allocation in placed if allocation in left_out})
            inside = max(inside, kernel_peak(node, without))
        peak = max(peak, before + inside)
        for allocation in [b for b in alive if b not in lasting and last_use[b] <= position]:
            del alive[allocation]
    return peak - sum(alive.values())
