"""Which nodes of a file each op and view of a training graph stands for, and the constants that they read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import isfinite

from ..autodiff.rule_table import call_of
from ..autodiff.rules.hidden_buffers import hidden_buffers
from ..graph import Constant, Execution, NodePath, OpNodes, Replaced, StorageForm
from ..onnx_import.reader import ForwardCalls
from ..onnx_import.values.values import Call, Value
from ..training_graph import TrainingGraph

MAX_GIVEN = 64
"""Most numbers of a constant that a plan gives: sizes and what follows from them, which no node of the file knows."""
_WRITTEN = frozenset({"bool", "int32", "int64", "float32", "float64"})


def execution_of(read: ForwardCalls, training: TrainingGraph) -> Execution | None:
    """What ties ``training`` to the nodes of the file it was derived from.

    Args:
        read: the file.
        training: the graph that `derive_backward` made of it.

    Returns:
        One entry for each op, storage and gradient; None where the nodes of the file cannot be told.
    """
    if read.places is None:
        return None
    return _Nodes(read, read.places, training).found()


class _Nodes:
    """One walk against the order of the calls, from the ops of the step to the constants that they read."""

    def __init__(self, read: ForwardCalls, places: tuple[NodePath, ...], training: TrainingGraph) -> None:
        self.read, self.places, self.training = read, places, training
        self.wanted = {id(value) for value in read.outputs}
        self.constants: dict[str, Constant] = {}
        self.replaced: dict[NodePath, list[Replaced]] = {}
        self.prepare: list[NodePath] = []
        self.views: dict[int, list[NodePath]] = {}

    def found(self) -> Execution:
        training, graph = self.training, self.read.graph
        names = [graph.ops[op.forward].name for op in training.ops]
        writing = {name for name, op in zip(names, training.ops, strict=True) if op.writes}
        of_tensor = {name: index for index, names in enumerate(training.aliases) for name in names}
        calls = {call.name: call for call in self.read.calls}
        for value in self.read.outputs:
            self._given(value)
        nodes: dict[str, tuple[NodePath, ...]] = {}
        for call in reversed(self.read.calls):
            if call.name in writing:
                nodes[call.name] = self._run(call)
            elif any(id(output) in self.wanted for output in call.outputs):
                homes = [of_tensor[output.name] for output in call.outputs if output.name in of_tensor]
                if not self._all_given(call):
                    listed = self.views.setdefault(homes[0], []) if homes else self.prepare
                    listed.extend(reversed(self._run(call)))
        ops = []
        tensors = {tensor.name: tensor for tensor in graph.tensors}
        buffers: dict[str, StorageForm] = {}
        for name, op in zip(names, training.ops, strict=True):
            forward = graph.ops[op.forward]
            gives = () if op.backward is None else op.backward.gives
            inputs = (forward.inputs[edge.position] for edge in gives)
            own = nodes[name] if name in writing else self._nodes(calls[name])
            ops.append(OpNodes(own, tuple([graph.tensors[i].name for i in inputs if i is not None])))
            written = [training.storages[storage] for storage in op.writes]
            hidden = [storage for storage in written if storage.name not in tensors]
            if hidden:
                made = hidden_buffers(call_of(forward, graph, frozenset()), [storage.nbytes for storage in hidden])
                buffers.update(zip((storage.name for storage in hidden), made, strict=True))
        storages = []
        for index, storage in enumerate(training.storages):
            form = buffers.get(storage.name) or StorageForm(tensors[storage.name].shape, tensors[storage.name].dtype)
            views = tuple(dict.fromkeys(reversed(self.views.get(index, ()))))
            storages.append(replace(form, views=views) if views else form)
        return Execution(
            tuple(ops),
            tuple(storages),
            tuple(gradient.tensor for gradient in training.gradients),
            tuple(dict.fromkeys(reversed(self.prepare))),
            tuple(self.constants[name] for name in sorted(self.constants)),
            tuple(entry for node in sorted(self.replaced, key=str) for entry in self.replaced[node]),
        )

    def _place(self, node: NodePath) -> NodePath:
        first, *inner = node
        assert isinstance(first, int)
        return (*self.places[first], *inner)

    def _nodes(self, call: Call) -> tuple[NodePath, ...]:
        return tuple(dict.fromkeys([self._place(node) for leaf in call.leaves for node in leaf.nodes]))

    def _run(self, call: Call) -> tuple[NodePath, ...]:
        """The nodes of a call that runs, whose operands are then wanted."""
        for leaf in call.leaves:
            for position, value in enumerate(leaf.inputs):
                if value is not None and position not in leaf.replaced:
                    self.wanted.add(id(value))
                    self._given(value)
            if leaf.replaced and leaf.node:
                place = self._place(leaf.node)
                self.replaced[place] = [
                    Replaced(
                        place, position if position >= 0 else "shape", tuple(int(number) for number in array.ravel())
                    )
                    for position, array in leaf.replaced.items()
                ]
        return self._nodes(call)

    def _all_given(self, call: Call) -> bool:
        return all(output.name in self.constants for output in call.outputs if id(output) in self.wanted)

    def _given(self, value: Value) -> None:
        """Enter a constant that a node reads and that no node can make of what the file holds."""
        name, dtype, shape, known = value.name, value.dtype, value.shape, value.known
        if name in self.constants or not (value.constant or isinstance(value.source, Call)):
            return
        if isinstance(value.source, Call):  # a ConstantOfShape, also for parameters of files without weights
            fill = value.source.attributes.get("value", (0,))
            assert isinstance(fill, tuple)
            self.constants[name] = Constant(name, dtype, shape, (fill[0],))
        elif value.is_leaf and value.source is not None:
            if tuple(getattr(value.source, "dims", shape)) != shape:
                self.constants[name] = Constant(name, dtype, shape, None)
        elif (
            known is not None
            and known.size <= MAX_GIVEN
            and dtype in _WRITTEN
            and (value.is_leaf or not value.from_file)
        ):
            numbers = tuple(known.ravel().tolist())
            if all(isfinite(number) for number in numbers):
                self.constants[name] = Constant(name, dtype, shape, numbers)


def recorded_nodes(names: Iterable[str], ops: Iterable[str]) -> Execution:
    """The nodes of a file with annotations: ``names`` has the op that each node records, "" for none."""
    found: dict[str, list[NodePath]] = {}
    for index, name in enumerate(names):
        found.setdefault(name, []).append((index,))
    return Execution(tuple(OpNodes(tuple(found.get(op, ()))) for op in ops))
