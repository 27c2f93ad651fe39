"""Proven lower bounds on the peak: the largest amount that any single forward or backward step needs.

During a step these bytes are alive: what it uses, the outputs of ops that run only once if a later backward reads them,
and the gradients that have been begun and are still used. Under one backward order all of them are known
(`Problem.floor_of_order`). `Problem.forced_floor` counts only what the dependences force: a gradient begun by a
backward that must precede the step and used by one that cannot precede it. That bound is valid for every legal forward
order, every legal backward order and any recomputation. order_floor.py raises it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..training_graph import TrainingGraph


@dataclass(frozen=True, slots=True)
class Floor:
    """A proven lower bound on the peak, the step that sets it, and the storages alive there, largest first."""

    nbytes: int
    step: str
    storages: tuple[str, ...]

    def describe(self) -> str:
        """The step that sets the floor, and the tensors alive there."""
        shown = ", ".join(repr(name) for name in self.storages[:3])
        more = f" and {len(self.storages) - 3} more" if len(self.storages) > 3 else ""
        return f"{self.step} (holds {shown}{more})" if shown else self.step


@dataclass(frozen=True, slots=True)
class StepNeeds:
    """What steps need besides the storages that they read and write; sequences have one entry per op of the graph.

    Attributes:
        forward_nbytes: Stationary bytes and workspace during the forward of an op.
        backward_nbytes: Stationary bytes, workspace and the least possible gradients during its backward.
        start_nbytes: Stationary bytes and seeds, at the start of the backward.
        ahead: As a bitmask, the backwards that cannot precede that of the op, itself included.
    """

    forward_nbytes: Sequence[int]
    backward_nbytes: Sequence[int]
    start_nbytes: int
    ahead: Sequence[int]


def floor_of(graph: TrainingGraph, needs: StepNeeds) -> Floor:
    """The largest amount that any step of ``graph`` needs."""
    size = [storage.nbytes for storage in graph.storages]
    pinned = set(graph.outputs)
    lasting = lasting_of(graph)
    most, step, binding = needs.start_nbytes + sum(size[s] for s in pinned), "the start of the backward", pinned
    for index, op in enumerate(graph.ops):
        held = set(op.reads) | set(op.writes) | {s for s, (made, _) in lasting.items() if made <= index}
        nbytes = needs.forward_nbytes[index] + sum(size[s] for s in held)
        if nbytes > most:
            most, step, binding = nbytes, f"the forward of {op.op_type} {op.name!r}", held
    for index in graph.backward_order:
        op = graph.ops[index]
        assert op.backward is not None
        held = set(op.backward.reads) | pinned | {s for s, (_, users) in lasting.items() if users & needs.ahead[index]}
        nbytes = needs.backward_nbytes[index] + sum(size[s] for s in held)
        if nbytes > most:
            most, step, binding = nbytes, f"the backward of {op.op_type} {op.name!r}", held
    largest = sorted(binding, key=lambda s: (-size[s], s))
    return Floor(most, step, tuple(graph.storages[s].name for s in largest))


def lasting_of(graph: TrainingGraph) -> dict[int, tuple[int, int]]:
    """Storages that cannot be recomputed -> (the op that makes it, a bitmask of the backwards that read it).

    Every op that follows its producer in the default order follows it in every legal order.
    """
    producer = graph.producer
    lasting: dict[int, tuple[int, int]] = {}
    for index, op in enumerate(graph.ops):
        for storage in op.backward.reads if op.backward is not None else ():
            made = producer[storage]
            if graph.ops[made].once:
                lasting[storage] = (made, lasting.get(storage, (made, 0))[1] | 1 << index)
    return lasting
