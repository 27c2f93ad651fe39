"""The backward of a step in parts: after each part, the gradients that are final go to autograd.

Autograd accumulates what it is given before it goes on, so that a gradient need not live to the end of the step. A
gradient goes only when no later step of the schedule reads it or the tensor it belongs to: a hook may overwrite both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import fx

from ....planner.schedule import Schedule, StepKind
from ....planner.simulate import simulate
from ....planner.training_graph import OpCost, TrainingGraph
from .gradient_release import groups_of
from .step_graph import TracedStep
from .step_ops import GradientCopy


@dataclass(frozen=True, slots=True)
class Part:
    """The steps of a schedule's backward up to the step at position ``end``.

    ``gradients`` are indices into the joint graph's gradients, ``nbytes`` the size of the parameters' gradients among
    them, ``primals`` what they are gradients of; ``reads`` are the primals that the steps read.
    """

    end: int
    gradients: tuple[int, ...]
    nbytes: int
    primals: tuple[int, ...]
    reads: tuple[int, ...]


def parts_of(step: TracedStep, schedule: Schedule) -> tuple[Part, ...]:
    """The parts of the backward, at least one. The last one ends with the schedule.

    A group of gradients goes after the last backward that it waits for, as the planner assumes; later if a
    recomputation that nothing needs still reads one of its tensors.
    """
    reads, ready = primals_read(step, schedule), _ready(step, schedule)
    runs = {each.index: position for position, each in enumerate(schedule) if each.kind is StepKind.BACKWARD}
    last = len(schedule) - 1
    released: dict[int, list[int]] = {last: []}  # position in the schedule -> gradients that go after it
    nbytes = {last: 0}
    for group in groups_of(step):
        waits = [*(runs[op] for op in group.ops), *(ready[gradient] for gradient in group.gradients)]
        end = max(waits) if group.ops else last
        released.setdefault(end, []).extend(group.gradients)
        nbytes[end] = nbytes.get(end, 0) + group.nbytes
    begin, found = 0, []
    for end in sorted(released):
        found.append(_part(step, end, released[end], nbytes[end], reads[begin : end + 1]))
        begin = end + 1
    return tuple(found)


def accumulating_nbytes(
    graph: TrainingGraph, costs: tuple[OpCost, ...], schedule: Schedule, parts: Sequence[Part]
) -> int:
    """The total peak of a step that adds its gradients, part by part, to a full set of existing ones."""
    stationary = replace(graph.stationary, accumulated_gradient_nbytes=graph.parameter_gradient_nbytes)
    held = simulate(replace(graph.without_ends(), stationary=stationary), costs, schedule).total_nbytes
    gone = [0, *accumulate(part.nbytes for part in parts)]
    ends = [part.end for part in parts]
    return max(nbytes - gone[bisect_left(ends, position)] for position, nbytes in enumerate(held))


def _part(step: TracedStep, end: int, gradients: list[int], nbytes: int, reads: Iterable[set[int]]) -> Part:
    primals = tuple(step.joint.gradients[gradient][0] for gradient in gradients)
    return Part(end, tuple(gradients), nbytes, primals, tuple(sorted(set().union(*reads))))


def _nodes(step: TracedStep, schedule: Schedule) -> list[list[fx.Node | GradientCopy]]:
    """What each step of the backward function runs; nothing for steps of the forward function."""
    steps = list(schedule)
    split = 1 + max((position for position, each in enumerate(steps) if each.kind is StepKind.FORWARD), default=-1)
    found: list[list[fx.Node | GradientCopy]] = [[] for _ in steps]
    for position, each in enumerate(steps[split:], split):
        if each.kind is StepKind.BACKWARD:
            found[position] = [*step.ops[each.index].backward]
        elif each.kind is StepKind.RECOMPUTE:
            found[position] = [*step.ops[each.index].runs]
    return found


def primals_read(step: TracedStep, schedule: Schedule) -> list[set[int]]:
    """The primals that each step of the backward function reads."""
    owners: dict[int, list[int]] = {}
    for position, primal in enumerate(step.joint.primals):
        for allocation in step.allocations.of[primal.node]:
            owners.setdefault(allocation, []).append(position)
    return [
        {primal for node in nodes for allocation in step.reads(node) for primal in owners.get(allocation, ())}
        for nodes in _nodes(step, schedule)
    ]


def _ready(step: TracedStep, schedule: Schedule) -> list[int]:
    """For each gradient of the joint graph the position of the last step that reads it or its tensor."""
    last: dict[int, int] = {}  # allocation -> the last step that makes or reads it
    copied: dict[int, int] = {}  # primal whose gradient is a copy -> the step that makes it
    for position, nodes in enumerate(_nodes(step, schedule)):
        for node in nodes:
            last.update(dict.fromkeys(step.reads(node), position))
            last.update(dict.fromkeys(step.made(node), position))
            if isinstance(node, GradientCopy):
                copied[node.primal] = position
    found = []
    for primal, node in step.joint.gradients:
        own = step.allocations.of[step.joint.primals[primal].node]
        allocations = own if primal in step.copied else (*own, *step.allocations.of[node])
        found.append(max(copied.get(primal, -1), *(last.get(allocation, -1) for allocation in allocations)))
    return found
