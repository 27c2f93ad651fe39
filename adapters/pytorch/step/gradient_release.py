"""Which gradients go to autograd together, and after which backwards: decided before there is a plan.

A gradient may go when nothing reads it, or the tensor it belongs to, any more. The backwards that do are known. The
recomputations are not, but a recomputation that reads a tensor serves a backward that reads what is computed from it.
So a gradient waits for all of these backwards, in whatever order they run, and no plan needs to hold it longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ....planner.dependencies import backward_predecessors, closure
from ....planner.training_graph import TrainingGraph
from .step_graph import TracedStep
from .step_ops import GradientCopy

PARTS = 8
LEAST_NBYTES = 2**20
LEAST_SHARE = 1 / 256
"""A group is full with LEAST_NBYTES of parameters' gradients, 1/PARTS of all, or LEAST_SHARE of what the step's tensors
take, whichever is most: smaller parts would not save enough to pay for an autograd node each.
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Gradients, as indices into the joint graph's, that go after the last of the backwards of ``ops``.

    Without ``ops`` they go at the end of the step. ``nbytes`` is the size of the parameters' gradients among them.
    """

    gradients: tuple[int, ...]
    nbytes: int
    ops: tuple[int, ...]


def groups_of(step: TracedStep) -> tuple[Group, ...]:
    """The groups of a step, at least one, in the order in which they go under the default backward order."""
    before = closure(backward_predecessors(step.graph), step.graph.backward_order)
    ready: dict[int, list[int]] = {}  # op whose backward comes last in the default order -> gradients that wait for it
    waits = _waits(step)
    for gradient, mask in enumerate(waits):
        ready.setdefault(_lowest(mask), []).append(gradient)
    sizes = [_parameter_nbytes(step, gradient) for gradient in range(len(waits))]
    tensors_nbytes = sum(storage.nbytes for storage in step.graph.storages)
    enough = max(LEAST_NBYTES, sum(sizes) / PARTS, LEAST_SHARE * tensors_nbytes)
    found: list[Group] = []
    waiting: list[int] = []
    left = len(sizes)
    for op in sorted(ready, reverse=True):
        waiting += ready[op]
        nbytes, left = sum(sizes[gradient] for gradient in waiting), left - len(ready[op])
        if left and nbytes >= enough:
            found.append(Group(tuple(waiting), nbytes, _last(before, (waits[gradient] for gradient in waiting))))
            waiting = []
    return (*found, Group(tuple(waiting), sum(sizes[gradient] for gradient in waiting), ()))


def with_ends(step: TracedStep) -> TrainingGraph:
    """The graph of a step in which the parameters' gradients end when their groups go."""
    ends: list[list[int]] = [[] for _ in step.ops]
    for group in groups_of(step):
        gone = [step.gradient_at(position) for position in group.gradients if _parameter_nbytes(step, position)]
        for op in group.ops:
            ends[op] += gone
    ops = (
        replace(op, backward=op.backward and replace(op.backward, ends=tuple(gone)))
        for op, gone in zip(step.graph.ops, ends, strict=True)
    )
    return replace(step.graph, ops=tuple(ops))


def _waits(step: TracedStep) -> list[int]:
    """For each gradient of the joint graph the ops whose backwards it waits for, as bits of an integer."""
    touching: dict[int, int] = {}  # allocation -> ops whose backward makes it, or reads it or what is computed from it
    copied: dict[int, int] = {}  # primal whose gradient is a copy -> the op that makes it
    for index, op in enumerate(step.ops):
        for node in op.backward:
            for allocation in (*step.made(node), *step.reads(node)):
                touching[allocation] = touching.get(allocation, 0) | 1 << index
            if isinstance(node, GradientCopy):
                copied[node.primal] = 1 << index
    served = _served(step.graph)
    for index, op in enumerate(step.ops):
        for node in op.runs:
            for allocation in step.allocations.reads(node):
                touching[allocation] = touching.get(allocation, 0) | served[index]
    found = []
    for primal, node in step.joint.gradients:
        own = step.allocations.of[step.joint.primals[primal].node]
        allocations = own if primal in step.copied else (*own, *step.allocations.of[node])
        mask = copied.get(primal, 0)
        for allocation in allocations:
            mask |= touching.get(allocation, 0)
        found.append(mask)
    return found


def _served(graph: TrainingGraph) -> list[int]:
    """For each op the backwards that read its results, or values computed from them, as bits of an integer."""
    served = [0] * len(graph.ops)
    below = [0] * len(graph.storages)  # of each storage
    for index, op in enumerate(graph.ops):
        for storage in op.backward.reads if op.backward is not None else ():
            below[storage] |= 1 << index
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        for storage in op.writes:
            served[index] |= below[storage]
        for storage in op.reads:
            below[storage] |= served[index]
    return served


def _last(before: list[int], masks: Iterable[int]) -> tuple[int, ...]:
    """The ops, given as bits, whose backward precedes none of the others'."""
    left, found = 0, []
    for mask in masks:
        left |= mask
    while left:
        index = _lowest(left)
        found.append(index)
        left &= ~(before[index] | 1 << index)
    return tuple(found)


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _parameter_nbytes(step: TracedStep, gradient: int) -> int:
    primal, node = step.joint.gradients[gradient]
    if step.joint.primals[primal].kind == "input":
        return 0
    if primal in step.copied:
        return step.copied[primal].nbytes
    return sum(step.allocations.entries[allocation].nbytes for allocation in step.allocations.of[node])
