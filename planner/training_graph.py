"""The training graph: what one training step computes, saves and frees, with every rule already applied.

It is derived from a forward graph (autodiff/derive.py), read from a plan file or built by an adapter. Only memory that
a plan can move is listed storage by storage; parameters, buffers, inputs and optimizer state are `Stationary`. Sizes
are in bytes; indices refer to the tuples of `TrainingGraph`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from .graph import Execution, Storage

MAX_NBYTES = 2**60
"""All bytes of a training graph together stay below this, so that no sum over them leaves 64 bits."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient buffer of one tensor; bijective views of the tensor share it.

    It lives until the last backward that takes it or adds it to a sum. A gradient that nothing takes lives to the end.
    The gradient of a parameter lives to the end unless a backward ends it. ``parameter`` marks the final gradient of a
    parameter, which a budget on activations does not count.
    ``tensor`` is the tensor of an ONNX file that it belongs to.
    """

    name: str
    nbytes: int
    parameter: bool = False
    tensor: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class GradientEdge:
    """A contribution of a backward op to ``gradient``.

    ``alias_of`` is the taken gradient whose memory the contribution shares (Add, Concat, ReduceSum); None for a
    contribution that allocates the gradient's size. ``position`` is the input that it belongs to, -1 if that is not
    known: a plan file does not keep it.
    """

    gradient: int
    alias_of: int | None = None
    position: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class GradientSum:
    """A sum that the framework's graph spells out: ``result`` is the sum of ``operands``.

    It allocates ``result`` and then releases the operands; a sum without operands is a copy of something that stays
    alive. The graph of a bare ONNX file has none: there, contributions to one gradient are added up implicitly, in the
    order in which they are made.
    """

    result: int
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BackwardOp:
    """The backward of one op: the storages it reads, the gradients it takes, those it gives, and its sums.

    First every given gradient is allocated, with the workspace on top. Then the taken ones are released; a gradient
    that several ops take is released by the last of them. Then the sums run one by one.

    ``ends`` are gradients of parameters. The runtime adds such a gradient into the accumulated one as soon as every
    backward that makes, takes, adds up or ends it has run. Only a step that accumulates gradients has any.
    """

    reads: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    gives: tuple[GradientEdge, ...] = ()
    sums: tuple[GradientSum, ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingOp:
    """One op; ``reads`` and ``writes`` are storages. A recomputation allocates all of ``writes``, hidden ones too.

    ``random_state_nbytes`` is the size of the generator state, which a random op that is recomputed saves at its first
    run. ``forward`` is the index of the op in the forward graph, -1 if there is none. An op that runs ``once`` must
    never be recomputed: it reads a buffer that the step overwrites.
    """

    name: str
    op_type: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    backward: BackwardOp | None = None
    random_state_nbytes: int = 0
    forward: int = -1
    once: bool = False


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
    """Ops in forward order. The default backward order is the reverse, over the ops that have a backward.

    The caller holds the storages in ``outputs`` to the end of the step, and hands in the gradients in ``seeds`` before
    the backward. ``aliases[s]`` names the tensors that live in storage ``s``. ``assumed`` are sentences for people:
    they do not count when graphs are compared. ``execution`` ties the graph to the nodes of an ONNX file.
    """

    ops: tuple[TrainingOp, ...]
    storages: tuple[Storage, ...]
    gradients: tuple[Gradient, ...]
    outputs: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    stationary: Stationary = field(default_factory=Stationary)
    aliases: tuple[tuple[str, ...], ...] = ()
    fingerprint: str = ""
    assumed: tuple[str, ...] = field(default=(), compare=False)
    execution: Execution | None = field(default=None, compare=False)

    @property
    def parameter_gradient_nbytes(self) -> int:
        """Bytes of one full set of parameter gradients."""
        return sum(gradient.nbytes for gradient in self.gradients if gradient.parameter)

    def without_ends(self) -> TrainingGraph:
        """The same step where the parameters' gradients live to its end."""
        ops = (
            op if op.backward is None or not op.backward.ends else replace(op, backward=replace(op.backward, ends=()))
            for op in self.ops
        )
        return replace(self, ops=tuple(ops))

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

    @property
    def sizes_nbytes(self) -> int:
        """The sum of all sizes, with one gradient for each contribution: more than any step can hold."""
        given = (edge.gradient for op in self.ops if op.backward is not None for edge in op.backward.gives)
        return (
            self.stationary.total_nbytes
            + sum(storage.nbytes for storage in self.storages)
            + sum(gradient.nbytes for gradient in self.gradients)
            + sum(self.gradients[gradient].nbytes for gradient in given)
            + sum(op.random_state_nbytes for op in self.ops)
        )

    def validate(self) -> None:
        """Check the conditions that every later stage relies on; raises ValueError, which names the op.

        Names are unique. A storage is written once, and read only after it is written. A backward reads only storages
        of its own or of earlier ops. In the default backward order no gradient is taken or summed before it is
        complete.
        """
        for what, named in (("storage", self.storages), ("gradient", self.gradients), ("op", self.ops)):
            twice = _twice([entry.name for entry in named])
            if twice is not None:
                raise ValueError(f"{what} {twice!r} is listed twice")
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
        if len(written) != len(self.storages):
            raise ValueError("a storage has no producer")
        if self.sizes_nbytes >= MAX_NBYTES:
            raise ValueError(f"its sizes add up to {self.sizes_nbytes} bytes")
        self._validate_gradients()

    def _validate_gradients(self) -> None:
        """The part of `validate` that follows the gradients through the default backward order."""
        begun = set(self.seeds)
        if len(begun) < len(self.seeds):
            raise ValueError("a gradient is handed in twice")
        backwards = [(op.name, op.backward) for op in reversed(self.ops) if op.backward is not None]
        missing = Counter(edge.gradient for _, backward in backwards for edge in backward.gives)
        summed = Counter(total.result for _, backward in backwards for total in backward.sums)
        for result, count in summed.items():
            if count > 1 or missing[result] or result in begun:
                raise ValueError(
                    f"gradient {self.gradients[result].name!r} is the result of a sum and made elsewhere too"
                )
        missing += summed
        for name, backward in backwards:
            where, taken = f"the backward of {name!r}", set(backward.takes)
            for gradient in backward.ends:
                if not self.gradients[gradient].parameter:
                    raise ValueError(f"{where} ends {self.gradients[gradient].name!r}, which is no parameter's")
            for gradient in backward.takes:
                if missing[gradient]:
                    raise ValueError(f"{where} takes {self.gradients[gradient].name!r} before it is complete")
            for edge in backward.gives:
                if edge.alias_of is not None and self.gradients[edge.gradient].parameter:
                    raise ValueError(f"{where} aliases a parameter gradient")
                if edge.alias_of is not None and edge.alias_of not in taken:
                    raise ValueError(f"{where} shares the memory of a gradient that it does not take")
                missing[edge.gradient] -= 1
                begun.add(edge.gradient)
            for total in backward.sums:
                for operand in total.operands:
                    if missing[operand] or operand not in begun:
                        raise ValueError(f"{where} sums {self.gradients[operand].name!r} before it is complete")
                missing[total.result] -= 1
                begun.add(total.result)


def _twice(names: list[str]) -> str | None:
    """A name that occurs more than once, None if there is none."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


@dataclass(frozen=True, slots=True)
class OpCost:
    """Time in nanoseconds and workspace in bytes of one op, forward and backward.

    Workspace is memory that an op needs for a moment beyond what it writes (forward) or gives (backward).
    ``backward_activation_workspace_nbytes`` is the backward's workspace beyond the given gradients that are not a
    parameter's, for budgets on activations; None means that it equals ``backward_workspace_nbytes``. The two differ if
    that moment is over before the parameter's gradient is allocated.
    """

    forward_ns: int
    backward_ns: int = 0
    forward_workspace_nbytes: int = 0
    backward_workspace_nbytes: int = 0
    backward_activation_workspace_nbytes: int | None = None
