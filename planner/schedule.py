"""Decisions become steps: the schedule that a runtime executes, with every free stated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from .solution import Decisions
from .training_graph import TrainingGraph


class StepKind(Enum):
    """FORWARD is an op's first run, RECOMPUTE any later one, FREE drops one storage."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Step:
    """One step; ``index`` is an op, or a storage for FREE. ``random_state`` frees the generator state of an op."""

    kind: StepKind
    index: int
    random_state: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps in execution order."""

    steps: tuple[Step, ...]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


def lower(graph: TrainingGraph, decisions: Decisions) -> Schedule:
    """Turn an order of computations into steps that free every value as early as possible.

    A value is freed after its last use before its next computation, or at once if nothing uses it. Storages that the
    caller holds (``graph.outputs``) are never freed. A random op that is recomputed saves its generator state from
    its first run to its last.
    """
    pinned = set(graph.outputs)
    wanted = [False] * len(graph.storages)  # scanning backwards: is the present copy used later?
    remaining = Counter(decisions.sequence)
    states_freed: set[int] = set()
    reversed_steps: list[list[Step]] = []
    for entry in reversed(decisions.sequence):
        frees: list[Step] = []
        if entry >= 0:
            op = graph.ops[entry]
            kind = StepKind.FORWARD if remaining[entry] == 1 else StepKind.RECOMPUTE
            remaining[entry] -= 1
            frees += [Step(StepKind.FREE, s) for s in op.writes if not wanted[s] and s not in pinned]
            for storage in op.writes:
                wanted[storage] = False
            if kind is StepKind.RECOMPUTE and op.random_state_nbytes and entry not in states_freed:
                frees.append(Step(StepKind.FREE, entry, random_state=True))
                states_freed.add(entry)
            step, uses = Step(kind, entry), op.reads
        else:
            backward = graph.ops[~entry].backward
            assert backward is not None
            step, uses = Step(StepKind.BACKWARD, ~entry), backward.reads
        for storage in uses:
            if not wanted[storage]:
                wanted[storage] = True
                if storage not in pinned:
                    frees.append(Step(StepKind.FREE, storage))
        reversed_steps.append([step, *frees])
    return Schedule(tuple(step for group in reversed(reversed_steps) for step in group))
