"""The tensors of a step while it is written: what stays all step, the copies that are alive now, and their views."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...planner.graph import View
from ...planner.onnx_import.reader import ForwardCalls
from ...planner.onnx_import.values.stored_values import stored_array
from ...planner.onnx_import.values.values import Call, Value
from .forward.forward_table import forward
from .forward.upgrade import view_of
from .nodes.call_view import CallView
from .nodes.writer import Tensor, Writer


class StepValues:
    """Finds the tensor that a value of the file has now.

    A view is written anew in each step of the schedule that reads it: ONNX copies, where torch shares the memory, and
    a copy that is read once is gone at once.
    """

    def __init__(self, read: ForwardCalls, folder: Path) -> None:
        self._read, self._folder, self.opset = read, folder, read.graph.opset
        self.makers: dict[str, Call] = {output.name: call for call in read.calls for output in call.outputs}
        leaves = {v.name: v for call in read.calls for v in call.inputs if v is not None and v.is_leaf}
        self.writer = Writer({*leaves, *(value.name for value in read.inputs)})
        self.stored: dict[str, tuple[Tensor, np.ndarray]] = {}
        self._fixed: dict[str, Tensor] = {}
        self._current: dict[str, Tensor] = {}
        self._views: dict[str, Tensor] = {}
        for value in read.inputs:
            self._fixed[value.name] = self.writer.tensor(value.name, value.shape, value.dtype)

    def next_step(self, scope: str) -> None:
        """Begin a step of the schedule."""
        self.writer.scope = scope
        self._views.clear()

    def enter(self, outputs: Iterable[tuple[Value, Tensor]]) -> None:
        """Note the present copies of computed values."""
        self._current.update((value.name, tensor) for value, tensor in outputs)

    def free(self, names: Iterable[str]) -> None:
        """Forget copies."""
        for name in names:
            self._current.pop(name, None)

    def base(self, value: Value) -> Value:
        """The value whose bijective view this is."""
        call = self.makers.get(value.name)
        while call is not None and call.view is View.WHOLE and call.inputs[0] is not None:
            value = call.inputs[0]
            call = self.makers.get(value.name)
        return value

    def at_hand(self, value: Value) -> Tensor | None:
        """The tensor of a value, if no node has to be written for it."""
        return self._current.get(value.name) or self._views.get(value.name) or self._fixed.get(value.name)

    def of(self, value: Value) -> Tensor:
        """The tensor of a value; views and constants are written where they are needed first."""
        found = self.at_hand(value)
        if found is not None:
            return found
        if value.is_leaf or (value.constant and value.known is not None):
            self._fixed[value.name] = self._leaf(value)
            return self._fixed[value.name]
        call = self.makers.get(value.name)
        if call is not None and call.view is not View.NONE and call.inputs[0] is not None:
            source = self.of(call.inputs[0])
            self._views[value.name] = view_of(CallView(call, self.opset), source, value, self.writer, value.name)
            return self._views[value.name]
        if call is None or not (value.constant or self._of_shapes(call)):
            raise AssertionError(f"{self.writer.scope}: {value.name!r} is read, but no copy of it is alive")
        made = forward(call, self.opset, self.writer, self.of)
        self._fixed.update((output.name, tensor) for output, tensor in zip(call.outputs, made.outputs, strict=True))
        return self._fixed[value.name]

    @staticmethod
    def _of_shapes(call: Call) -> bool:
        return call.deterministic and not call.data_inputs

    def _leaf(self, value: Value) -> Tensor:
        array = np.asarray(stored_array(value, self._folder))
        if not value.is_leaf:
            return self.writer.constant(array, value.dtype)
        tensor = self.writer.tensor(value.name, value.shape, value.dtype)
        self.stored[value.name] = (tensor, array)
        return tensor
