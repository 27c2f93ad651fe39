"""Builds an ONNX graph op by op, weights declared without data.

Weights, statistics of norms and masks are references to an external file that is never written, so a file
of any network has a few hundred KB. Every value in between carries its declared shape, which the official
checker compares with its own inference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 21  # the first whose GroupNormalization has a scale per channel
IR_VERSION = 10
WEIGHTS_FILE = "weights.not.stored"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph: its name, static shape and ONNX element type."""

    name: str
    shape: tuple[int, ...]
    dtype: int = TensorProto.FLOAT


class Builder:
    """A graph that grows; `model` closes it. The shape of what an op makes is the caller's to say."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[Value] = []
        self._inner: list[Value] = []
        self._initializers: list[onnx.TensorProto] = []
        self._offset = 0
        self._scope = ""
        self._counts: dict[str, int] = {}
        self._numbers: dict[str, Value] = {}

    # Names

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Everything made inside belongs to the module ``name`` of the module around it."""
        outer = self._scope
        self._scope = f"{outer}.{name}" if outer else name
        try:
            yield
        finally:
            self._scope = outer

    def _fresh(self, stem: str) -> str:
        path = f"{self._scope}.{stem}" if self._scope else stem
        count = self._counts.get(path, 0)
        self._counts[path] = count + 1
        return f"{path}_{count}" if count else path

    # Leaves

    def input(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> Value:
        """An input of the graph."""
        self._inputs.append(Value(name, tuple(shape), dtype))
        return self._inputs[-1]

    def weight(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> Value:
        """A leaf without data: a parameter where a layer or arithmetic reads it, a buffer elsewhere."""
        value = Value(self._fresh(name), tuple(shape), dtype)
        nbytes = prod(value.shape) * helper.tensor_dtype_to_np_dtype(dtype).itemsize
        tensor = TensorProto(name=value.name, data_type=dtype, dims=value.shape, data_location=TensorProto.EXTERNAL)
        for key, entry in (("location", WEIGHTS_FILE), ("offset", self._offset), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(entry))
        self._offset += nbytes
        self._initializers.append(tensor)
        return value

    def constant(self, numbers: Any, dtype: type[np.generic]) -> Value:
        """A small constant with its data; equal ones are stored once."""
        array = np.asarray(numbers, dtype=dtype)
        key = f"{array.dtype}{array.shape}{array.tobytes().hex()}"
        if key not in self._numbers:
            name = f"constant_{len(self._numbers)}"
            self._initializers.append(numpy_helper.from_array(array, name))
            onnx_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            self._numbers[key] = Value(name, array.shape, onnx_type)
        return self._numbers[key]

    def number(self, number: float) -> Value:
        """A float of rank 0."""
        return self.constant(number, np.float32)

    # Any op

    def op(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        shape: Sequence[int],
        *,
        dtype: int = TensorProto.FLOAT,
        **attributes: object,
    ) -> Value:
        """One op with one output of the given shape."""
        return self.ops(op_type, inputs, [(tuple(shape), dtype)], **attributes)[0]

    def ops(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[tuple[tuple[int, ...], int]],
        **attributes: object,
    ) -> list[Value]:
        """One op with an output for each (shape, element type) of ``outputs``."""
        name = self._fresh(op_type.lower())
        made = [Value(f"{name}:{i}", shape, dtype) for i, (shape, dtype) in enumerate(outputs)]
        read = ["" if value is None else value.name for value in inputs]
        node = helper.make_node(op_type, read, [value.name for value in made], name, **attributes)
        if self._scope:
            node.metadata_props.add(key="namespace", value=f"{self._scope}/{op_type}")
        self._nodes.append(node)
        self._inner += made
        return made

    # The whole

    def by_hand(self, made: Value) -> Value:
        """Record, as torch's exporter does, that the code multiplies here: the ops before stay the ops they are."""
        record = "%mul : = call_function[target=torch.ops.aten.mul.Tensor](args = (), kwargs = {})"
        self._nodes[-1].metadata_props.add(key="pkg.torch.onnx.fx_node", value=record)
        return made

    def model(self, *outputs: Value) -> onnx.ModelProto:
        """The finished model."""
        names = {value.name for value in outputs}
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [_declared(value) for value in self._inputs],
            [_declared(value) for value in outputs],
            self._initializers,
            value_info=[_declared(value) for value in self._inner if value.name not in names],
        )
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="ogc-plan-graphs")


def _declared(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, value.dtype, value.shape)
