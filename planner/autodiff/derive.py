"""Graph -> TrainingGraph: which ops have a backward, what it reads, and how gradients flow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction

from ..errors import BudgetSyntaxError, UsageError
from ..graph import Graph, Op, Role, Storage, View
from ..training_graph import MAX_NBYTES, BackwardOp, Gradient, GradientEdge, Stationary, TrainingGraph, TrainingOp
from ..units import parse_headroom
from .rule_table import (
    ESTIMATED,
    call_of,
    is_known,
    is_read_densely,
    passes_gradient,
    saved_for_backward,
    shares_gradient,
)
from .rules.cpu_kernels import saved_on_cpu

CPU_GENERATOR_STATE_NBYTES = 5056  # torch.get_rng_state().numel()
OPTIMIZER_STATES = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""The optimizers whose states are known, as multiples of the bytes of what they train."""


class _Slots:
    """Gradient buffers: constants have one per storage, bijective views share that of their base."""

    def __init__(self, graph: Graph) -> None:
        self.gradients: list[Gradient] = []
        self._known: dict[int, int] = {}
        self._slot: dict[int, int] = {}
        self._leaf: dict[int, int] = {}
        self._graph = graph
        self._base = {
            output: op.inputs[0]
            for op in graph.ops
            if op.view is View.WHOLE
            for output in op.outputs
            if op.inputs and op.inputs[0] is not None
        }
        self._made = {output for op in graph.ops for output in op.outputs}

    def of(self, tensor: int) -> int:
        """The gradient buffer of a tensor, created at first use."""
        known = self._known.get(tensor)
        if known is None:
            known = self._known[tensor] = self._found(tensor)
        return known

    def _found(self, tensor: int) -> int:
        while self._base.get(tensor) is not None:
            base = self._base[tensor]
            assert base is not None
            tensor = base
        value = self._graph.tensors[tensor]
        if tensor in self._made:
            table, key, nbytes = self._slot, tensor, value.nbytes
        else:
            table, key, nbytes = self._leaf, value.storage, self._graph.storages[value.storage].nbytes
        if key not in table:
            table[key] = len(self.gradients)
            parameter = tensor not in self._made and value.role is Role.PARAMETER
            owner = value.name if tensor in self._made else self._graph.storages[value.storage].name
            self.gradients.append(Gradient(f"gradient of {value.name}", nbytes, parameter, owner))
        return table[key]


def trainable_parameters(graph: Graph, frozen: tuple[str, ...]) -> frozenset[int]:
    """Storages of the parameters that get a gradient; raises UsageError for a glob in ``frozen`` that matches none.

    A glob after ``!`` takes out again what the globs before it froze. A parameter that the file only reads transposed
    also has the name of what is transposed.
    """
    made = {output for op in graph.ops for output in op.outputs}  # a slice of a parameter is not the parameter
    parameters = [t for i, t in enumerate(graph.tensors) if t.role is Role.PARAMETER and t.is_float and i not in made]

    def named(glob: str) -> set[int]:
        names = ((t.storage, name) for t in parameters for name in (t.name, graph.storages[t.storage].name))
        return {storage for storage, name in names if fnmatchcase(name, glob.removeprefix("!"))}

    for glob in frozen:
        if not named(glob):
            raise UsageError(
                f"--frozen {glob!r} matches no parameter", remedy="list parameters with: ogc-plan show MODEL -v"
            )
    trained = {t.storage for t in parameters}
    for glob in frozen:
        trained = trained | named(glob) if glob.startswith("!") else trained - named(glob)
    return frozenset(trained)


def _needs_gradient(graph: Graph, trainable: frozenset[int]) -> tuple[list[bool], list[frozenset[int]]]:
    """Whether each tensor needs a gradient, and the input positions to which each op passes one on."""
    needs = [t.role is Role.PARAMETER and t.is_float and t.storage in trainable for t in graph.tensors]
    passed: list[frozenset[int]] = []
    for op in graph.ops:
        passed.append(passes_gradient(op, needs))
        for output in op.outputs:
            needs[output] = bool(passed[-1]) and graph.tensors[output].is_float
    return needs, passed


def derive_backward(
    graph: Graph,
    *,
    frozen: tuple[str, ...] = (),
    optimizer: str | None = None,
    grad_accumulation: bool = False,
    on_cpu: bool = False,
) -> TrainingGraph:
    """Apply the training rules to a forward graph.

    ``optimizer`` is None or what `states_nbytes` takes.
    ``grad_accumulation`` keeps a second full set of parameter gradients alive all step. ``on_cpu`` charges what torch
    saves on a CPU.
    """
    trainable = trainable_parameters(graph, frozen)
    needs, passed = _needs_gradient(graph, trainable)
    slots = _Slots(graph)
    seeds = tuple(dict.fromkeys(slots.of(t) for t in graph.outputs if needs[t] and graph.tensors[t].is_float))
    differentiated = _ops_with_backward(graph, needs, passed, slots, set(seeds))
    handed_in = _shared_outputs(graph, needs, slots)
    densely = _densely_read(graph, needs, slots, differentiated, seeds)

    storages: list[Storage] = []
    index: dict[int, int] = {}  # graph storage -> training storage
    aliases: list[list[str]] = []
    ops: list[TrainingOp] = []
    taken = {tensor.name for tensor in graph.tensors}
    made_by_op = {graph.tensors[o].storage for op in graph.ops if op.view is View.NONE for o in op.outputs}

    def moved(tensor: int) -> int | None:
        storage = graph.tensors[tensor].storage
        return index[storage] if storage in made_by_op else None

    for position, op in enumerate(graph.ops):
        for output in op.outputs:
            storage = graph.tensors[output].storage
            if storage in made_by_op and storage not in index:
                index[storage] = len(storages)
                storages.append(Storage(graph.tensors[output].name, graph.storages[storage].nbytes))
                aliases.append([])
            if storage in made_by_op:
                aliases[index[storage]].append(graph.tensors[output].name)
        if op.view is View.WHOLE or (op.view is View.PART and position not in differentiated):
            continue
        backward: BackwardOp | None = None
        hidden: tuple[int, ...] = ()
        if position in differentiated:
            backward, hidden = _backward_op(
                graph, op, needs, passed[position], slots, densely, moved, len(storages), on_cpu
            )
            more = tuple([seed for gradient in backward.takes for seed in handed_in.get(gradient, ())])
            if more:
                backward = replace(backward, takes=backward.takes + more)
        reads: tuple[int, ...] = ()
        writes: tuple[int, ...] = ()
        if op.view is View.NONE:
            reads = tuple(dict.fromkeys(s for i in op.inputs if i is not None and (s := moved(i)) is not None))
            writes = tuple(index[graph.tensors[o].storage] for o in op.outputs)
            for number, nbytes in enumerate(hidden):
                name = f"{op.name}#{number}"
                while name in taken:
                    name += "_"
                taken.add(name)
                storages.append(Storage(name, nbytes))
                aliases.append([name])
                writes += (len(storages) - 1,)
        state = 0 if op.deterministic else CPU_GENERATOR_STATE_NBYTES
        ops.append(TrainingOp(op.name, op.op_type, reads, writes, backward, state, position))
    outputs = tuple(dict.fromkeys(s for t in graph.outputs if (s := moved(t)) is not None))
    return TrainingGraph(
        tuple(ops),
        tuple(storages),
        tuple(slots.gradients),
        outputs,
        seeds + tuple(seed for more in handed_in.values() for seed in more),
        _stationary(graph, trainable, optimizer, grad_accumulation),
        tuple(tuple(names) for names in aliases),
        graph.fingerprint,
        (*graph.assumed, *_assumed(graph, differentiated)),
    )


def _shared_outputs(graph: Graph, needs: list[bool], slots: _Slots) -> dict[int, tuple[int, ...]]:
    """Gradients that the caller hands in for several outputs that are bijective views of one tensor, by its buffer.

    The buffer then has their sum. All are charged from the start to the backward of the op that made the tensor; torch
    adds them up as they arrive.
    """
    outputs: dict[int, list[str]] = {}
    for tensor in dict.fromkeys(graph.outputs):
        if needs[tensor] and graph.tensors[tensor].is_float:
            outputs.setdefault(slots.of(tensor), []).append(graph.tensors[tensor].name)
    handed_in: dict[int, tuple[int, ...]] = {}
    for slot, names in outputs.items():
        if len(names) > 1:
            first = len(slots.gradients)
            nbytes = slots.gradients[slot].nbytes
            slots.gradients += [Gradient(f"gradient of output {name}", nbytes, tensor=name) for name in names]
            handed_in[slot] = tuple(range(first, len(slots.gradients)))
    return handed_in


def _ops_with_backward(
    graph: Graph, needs: list[bool], passed: list[frozenset[int]], slots: _Slots, arriving: set[int]
) -> frozenset[int]:
    """The ops that receive a gradient and pass one on, found by walking the graph backwards."""
    reached: set[int] = set()
    for position in range(len(graph.ops) - 1, -1, -1):
        op, wanted = graph.ops[position], passed[position]
        if not wanted or op.view is View.WHOLE:
            continue
        if any(needs[o] and slots.of(o) in arriving for o in op.outputs):
            reached.add(position)
            arriving.update(slots.of(i) for p in wanted if (i := op.inputs[p]) is not None)
    return frozenset(reached)


def _densely_read(
    graph: Graph, needs: list[bool], slots: _Slots, differentiated: frozenset[int], seeds: tuple[int, ...]
) -> frozenset[int]:
    """The operands of a ReduceSum whose gradient, an expanded view, a later backward copies."""
    given = Counter(seeds)
    for position in differentiated:
        given.update(slots.of(i) for i in graph.ops[position].inputs if i is not None and needs[i])
    makers = {output: op for op in graph.ops for output in op.outputs}
    sums = (graph.ops[position] for position in differentiated if graph.ops[position].op_type == "ReduceSum")
    operands = {i for op in sums for i in op.inputs[:1] if i is not None and needs[i]}
    return frozenset(
        i for i in operands if is_read_densely(graph, i, makers, lambda t: not needs[t] or given[slots.of(t)] > 1)
    )


def _backward_op(
    graph: Graph,
    op: Op,
    needs: list[bool],
    positions: frozenset[int],
    slots: _Slots,
    densely: frozenset[int],
    moved: Callable[[int], int | None],
    next_storage: int,
    on_cpu: bool,
) -> tuple[BackwardOp, tuple[int, ...]]:
    """The backward of one op, and the sizes of its hidden buffers; their storages start at ``next_storage``.

    ``positions`` are the inputs to which it passes a gradient on.
    """
    saved = saved_for_backward(op, graph, positions)
    if on_cpu:
        saved = saved_on_cpu(call_of(op, graph, positions)) or saved
    tensors = [op.inputs[p] for p in saved.inputs if p < len(op.inputs)] + [op.outputs[p] for p in saved.outputs]
    reads = tuple(dict.fromkeys(s for t in tensors if t is not None and (s := moved(t)) is not None))
    hidden = saved.hidden_nbytes
    if op.view is not View.NONE:
        reads, hidden = (), ()
    takes = tuple(dict.fromkeys(slots.of(o) for o in op.outputs if needs[o]))
    gives = []
    for position in sorted(positions):
        tensor = op.inputs[position]
        assert tensor is not None
        slot = slots.of(tensor)
        shared = shares_gradient(op, graph, position) and not slots.gradients[slot].parameter
        if tensor in densely and op.op_type == "ReduceSum":
            shared = False  # the dense copy is charged here and not where it is made
        gives.append(GradientEdge(slot, takes[0] if shared else None, position))
    hidden_reads = tuple(range(next_storage, next_storage + len(hidden)))
    return BackwardOp(reads + hidden_reads, takes, tuple(gives)), hidden


def states_nbytes(optimizer: str, trained_nbytes: int) -> int:
    """Bytes of an optimizer's states: a key of OPTIMIZER_STATES, or its name and their size, ``Lion:340MB``.

    Raises UsageError for anything else.
    """
    if optimizer in OPTIMIZER_STATES:
        return trained_nbytes * OPTIMIZER_STATES[optimizer]
    name, _, size = optimizer.rpartition(":")
    try:
        nbytes, share = parse_headroom(size)
    except BudgetSyntaxError:
        nbytes, share = -1, Fraction(0)
    if name and not share and 0 <= nbytes < MAX_NBYTES // 4:
        return nbytes
    known = ", ".join(sorted(OPTIMIZER_STATES))
    raise UsageError(
        f"optimizer {optimizer!r} is unknown",
        remedy=f"choose one of {known}, or write its name and the size of its states, such as Lion:340MB",
    )


def with_options(fixed: Stationary, trained_nbytes: int, optimizer: str | None, grad_accumulation: bool) -> Stationary:
    """``fixed`` with the bytes that the options of a plan add. Raises UsageError for an unknown optimizer."""
    return replace(
        fixed,
        optimizer_nbytes=0 if optimizer is None else states_nbytes(optimizer, trained_nbytes),
        accumulated_gradient_nbytes=trained_nbytes if grad_accumulation else 0,
    )


def _stationary(graph: Graph, trainable: frozenset[int], optimizer: str | None, grad_accumulation: bool) -> Stationary:
    by_role = {role: {tensor.storage for tensor in graph.tensors if tensor.role is role} for role in Role}
    claimed = by_role[Role.PARAMETER]
    size = [storage.nbytes for storage in graph.storages]
    fixed = Stationary(
        parameter_nbytes=sum(size[s] for s in claimed),
        buffer_nbytes=sum(size[s] for s in by_role[Role.BUFFER] - claimed),
        input_nbytes=sum(size[s] for s in by_role[Role.INPUT] - claimed - by_role[Role.BUFFER]),
    )
    return with_options(fixed, sum(size[s] for s in trainable), optimizer, grad_accumulation)


def _assumed(graph: Graph, differentiated: frozenset[int]) -> tuple[str, ...]:
    unknown = sorted({op.op_type for i, op in enumerate(graph.ops) if i in differentiated and not is_known(op)})
    notes = [
        f"{name}: no rule, its backward is charged with all inputs and outputs, hidden buffers unknown"
        for name in unknown
    ]
    kinds = sorted({op.op_type for i, op in enumerate(graph.ops) if i in differentiated and is_known(op)})
    notes += [f"{kind}: {ESTIMATED[kind]}" for kind in kinds if kind in ESTIMATED]
    return tuple(notes)
