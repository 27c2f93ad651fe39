"""The types that a file declares for its values; the only source for ops that the onnx library does not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from json import dumps as quoted
from typing import TYPE_CHECKING

from ...errors import UnsupportedOpError
from ...graph import ITEM_BITS
from ...units import counted, is_or_are
from ..values.consistency import shape_text
from ..values.values import Call, Partial, Value
from .derived_dimensions import formula

if TYPE_CHECKING:
    from ..document.protobuf import GraphProto, ValueInfoProto


class DeclaredTypes:
    """Element types and shapes by name, with the values of bound dimensions.

    ``rebatch`` is (old, new) if a static batch was changed.
    """

    def __init__(self, dims: Mapping[str, int], rebatch: tuple[int, int] | None) -> None:
        self._dims = dict(dims)
        self._rebatch = rebatch
        self._types: dict[str, ValueInfoProto] = {}
        self._contradicted: list[str] = []
        self._guessed: Counter[tuple[str, str]] = Counter()

    def add(self, graph: GraphProto, names: Mapping[str, str]) -> None:
        """Enter the declarations of a graph, whose values may have been renamed by ``names``."""
        entries: Iterable[ValueInfoProto] = (*graph.value_info, *graph.output)
        for entry in entries:
            if entry.type.HasField("tensor_type"):
                self._types.setdefault(names.get(entry.name, entry.name), entry)

    def element_type(self, name: str) -> int:
        """The ONNX element type of a value, 0 if the file does not declare it."""
        entry = self._types.get(name)
        return 0 if entry is None else int(entry.type.tensor_type.elem_type)

    def dims(self, name: str, *, batched: bool) -> Partial:
        """The declared shape; with ``batched``, the new batch replaces a leading old one."""
        entry = self._types.get(name)
        if entry is None or not entry.type.tensor_type.HasField("shape"):
            return None
        sizes: list[int | None] = []
        for dim in entry.type.tensor_type.shape.dim:
            if dim.WhichOneof("value") == "dim_value":
                sizes.append(dim.dim_value if dim.dim_value > 0 else None)
            else:
                derived = formula(dim.dim_param, self._dims)
                sizes.append(self._dims.get(dim.dim_param) if derived is None else derived.value(self._dims))
        if batched and self._rebatch is not None and sizes and sizes[0] == self._rebatch[0]:
            sizes[0] = self._rebatch[1]
        return tuple(sizes)

    def compare(self, output: Value, name: str) -> None:
        """Note where the file declares an output with another rank or another fixed size; its ops are followed."""
        entry = self._types.get(name)
        if entry is None or not entry.type.tensor_type.HasField("shape"):
            return
        dims = entry.type.tensor_type.shape.dim
        if len(dims) != len(output.shape) or any(
            0 < dim.dim_value != size for dim, size in zip(dims, output.shape, strict=True)
        ):
            shown = ", ".join(str(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or "?" for dim in dims)
            self._contradicted.append(f"{quoted(name)} as [{shown}], its ops make {shape_text(output.shape)}")

    def guess(self, name: str, call: Call, where: str) -> str:
        """The widest floating type among the inputs of an unknown op, for an output that the file does not declare."""
        floats = [value.dtype for value in call.inputs if value is not None and value.is_float]
        if not floats:
            raise UnsupportedOpError(
                f"{where} cannot be charged: the file does not declare the element type of its output "
                f"{quoted(name)}, and none of its inputs is floating-point",
                remedy="save the model with the types of its values (value_info), as a tool that knows the op does",
            )
        dtype = max(floats, key=lambda each: ITEM_BITS[each])
        self._guessed[call.op_type, dtype] += 1
        return dtype

    def assumed(self) -> Iterable[str]:
        """A sentence for each output whose type is not as declared, or was taken from an input."""
        for contradiction in self._contradicted:
            yield f"the file declares output {contradiction}, which is followed"
        for (op_type, dtype), count in sorted(self._guessed.items()):
            told = f"{counted(count, 'output')} of {op_type} that the file does not declare {is_or_are(count)}"
            yield f"{told} taken as {dtype}, as its inputs are"
