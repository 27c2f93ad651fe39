"""The last stage of reading a file: the role of each value in a training step, and the calls that remain."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph import Graph, Op, Role, Storage, Tensor, View
from ..values.values import Call, Value
from .parameter_detection import find_parameters
from .straight_through import straight_through


def assemble(
    name: str, leaves: Sequence[Value], calls: Sequence[Call], inputs: Sequence[Value], outputs: Sequence[Value],
    producer: str, trained: Sequence[str],
) -> tuple[Graph, int, list[Call]]:  # fmt: skip
    """Assign roles, drop calls on constants and bijective views of constants, and number what is left.

    ``producer`` is the program that wrote the file; ``trained`` are globs on constants that are parameters in any case.
    The number is that of the dropped calls, which reach no output; the calls are all of them, those on constants too.
    """
    calls, quantised = straight_through(calls, outputs)
    parameters, doubts = find_parameters(leaves, calls, producer, trained)
    for value in leaves:
        value.constant = id(value) not in parameters
    remaining = _remaining(calls)
    live = _live(remaining, outputs)
    numbering = _Numbering(parameters)
    numbered_inputs = tuple(numbering.tensor(value) for value in inputs)
    ops = tuple(numbering.op(call) for call in live)
    numbered_outputs = tuple(numbering.tensor(value) for value in outputs)
    storages, tensors = tuple(numbering.storages), tuple(numbering.tensors)
    made = Graph(name, storages, tensors, ops, numbered_inputs, numbered_outputs, assumed=doubts + quantised)
    return made, len(remaining) - len(live), calls


def _remaining(calls: Sequence[Call]) -> list[Call]:
    """The calls that compute something in a training step; outputs of calls on constants become constants."""
    remaining: list[Call] = []
    for call in calls:
        constant = call.deterministic and all(value.constant for value in call.data_inputs)
        source = call.inputs[0] if call.inputs else None
        for output in call.outputs:
            output.constant = constant
        if constant:
            continue
        if call.view is View.WHOLE and source is not None and source.producer is None and not source.is_input:
            for output in call.outputs:
                output.producer = None  # a bijective view of a constant replaces it
            continue
        remaining.append(call)
    return remaining


def _live(calls: Sequence[Call], outputs: Sequence[Value]) -> list[Call]:
    """The calls that reach an output, in their order."""
    wanted = {id(value) for value in outputs}
    live: list[Call] = []
    for call in reversed(calls):
        if any(id(output) in wanted for output in call.outputs):
            live.append(call)
            wanted.update(id(value) for value in call.inputs if value is not None)
    return live[::-1]


class _Numbering:
    """Indices of tensors and storages, in the order of their first use."""

    def __init__(self, parameters: frozenset[int]) -> None:
        self.storages: list[Storage] = []
        self.tensors: list[Tensor] = []
        self._parameters = parameters
        self._tensor: dict[int, int] = {}
        self._storage: dict[int, int] = {}

    def tensor(self, value: Value) -> int:
        index = self._tensor.get(id(value))
        if index is not None:
            return index
        owner = value.owner
        storage = self._storage.setdefault(id(owner), len(self.storages))
        if storage == len(self.storages):
            self.storages.append(Storage(owner.name, owner.nbytes))
        index = self._tensor[id(value)] = len(self.tensors)
        self.tensors.append(Tensor(value.name, value.shape, value.dtype, storage, self._role(owner)))
        return index

    def op(self, call: Call) -> Op:
        return Op(
            call.name,
            call.op_type,
            call.domain,
            tuple(None if value is None else self.tensor(value) for value in call.inputs),
            tuple(self.tensor(value) for value in call.outputs),
            tuple(sorted(call.attributes.items())),
            call.view,
            call.deterministic,
            call.scope,
            call.copied,
        )

    def _role(self, owner: Value) -> Role:
        if owner.is_input:
            return Role.INPUT
        if id(owner) in self._parameters:
            return Role.PARAMETER
        return Role.BUFFER if owner.constant else Role.ACTIVATION
