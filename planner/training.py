"""The training graph: what one training step computes, holds and lets go, with every rule already applied.

Derived from a forward graph (backward.py), read from a plan file (plan.py) or built by an adapter.
Only memory that a plan can move is listed storage by storage; parameters, buffers, inputs and
optimizer state are `Stationary`. Bytes everywhere; indices refer to the tuples of `TrainingGraph`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .graph import Storage


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient buffer of one tensor (bijective views of it share the buffer).

    ``parameter`` gradients live to the end of the step; the others until their producer's backward.
    """

    name: str
    nbytes: int
    parameter: bool = False


@dataclass(frozen=True, slots=True)
class GradientEdge:
    """A contribution to ``gradient`` made by a backward op.

    ``alias_of`` names the taken gradient whose memory the contribution shares (Add, Concat,
    ReduceSum); None means it allocates the gradient's size. ``position`` is the input it belongs
    to, -1 where that is not known (a plan file does not keep it).
    """

    gradient: int
    alias_of: int | None = None
    position: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class BackwardOp:
    """The backward of one op: the storages it reads, the gradients it takes (and ends), and those it gives."""

    reads: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    gives: tuple[GradientEdge, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingOp:
    """One op. ``reads``/``writes`` are storages; a re-run allocates all of ``writes``, hidden ones included.

    ``random_state_nbytes`` is the generator state saved at the first run of a random op that is re-run.
    ``forward`` is the index of the op in the forward graph, -1 when there is none.
    """

    name: str
    op_type: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    backward: BackwardOp | None = None
    random_state_nbytes: int = 0
    forward: int = -1


@dataclass(frozen=True, slots=True)
class Stationary:
    """Bytes that live through the whole step."""

    parameter_nbytes: int = 0
    buffer_nbytes: int = 0
    input_nbytes: int = 0
    optimizer_nbytes: int = 0
    accumulated_gradient_nbytes: int = 0

    @property
    def total_nbytes(self) -> int:
        """Sum of all parts."""
        return (
            self.parameter_nbytes + self.buffer_nbytes + self.input_nbytes
            + self.optimizer_nbytes + self.accumulated_gradient_nbytes
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """Ops in forward order; the default backward order is the reverse, over the ops that have a backward.

    ``outputs`` are storages the caller holds to the end of the step; ``seeds`` are the gradients the
    caller hands in before the backward. ``aliases[s]`` names the tensors that live in storage ``s``.
    """

    ops: tuple[TrainingOp, ...]
    storages: tuple[Storage, ...]
    gradients: tuple[Gradient, ...]
    outputs: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    stationary: Stationary = field(default_factory=Stationary)
    aliases: tuple[tuple[str, ...], ...] = ()
    fingerprint: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def producer(self) -> tuple[int, ...]:
        """For each storage the op that writes it."""
        made = [-1] * len(self.storages)
        for index, op in enumerate(self.ops):
            for storage in op.writes:
                made[storage] = index
        return tuple(made)

    @property
    def backward_order(self) -> tuple[int, ...]:
        """The default backward order: ops with a backward, last first."""
        return tuple(i for i in range(len(self.ops) - 1, -1, -1) if self.ops[i].backward is not None)

    def validate(self) -> None:
        """Check the conditions every later stage relies on.

        Raises ValueError naming the op: a storage is written once, read only after it is written,
        and a backward reads only storages of its own or earlier ops.
        """
        written: set[int] = set()
        for op in self.ops:
            for storage in op.reads:
                if storage not in written:
                    raise ValueError(
                        f"op {op.name!r} reads storage {self.storages[storage].name!r} before it is written"
                    )
            for storage in op.writes:
                if storage in written:
                    raise ValueError(f"op {op.name!r} writes storage {self.storages[storage].name!r} a second time")
                written.add(storage)
            if op.backward is not None and not written.issuperset(op.backward.reads):
                raise ValueError(f"the backward of {op.name!r} reads a storage of a later op")
            for edge in op.backward.gives if op.backward is not None else ():
                if edge.alias_of is not None and self.gradients[edge.gradient].parameter:
                    raise ValueError(f"the backward of {op.name!r} aliases a parameter gradient")
        if len(written) != len(self.storages):
            raise ValueError("a storage has no producer")


@dataclass(frozen=True, slots=True)
class OpCost:
    """Time in nanoseconds and workspace in bytes of one op, forward and backward."""

    forward_ns: int
    backward_ns: int = 0
    forward_workspace_nbytes: int = 0
    backward_workspace_nbytes: int = 0
