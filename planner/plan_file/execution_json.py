"""The key `execution` of a plan of version 2: how its ops, storages and gradients follow from an ONNX file."""

from __future__ import annotations

from typing import Any

from ..errors import PlanFormatError
from ..graph import ITEM_BITS, Constant, Execution, NodePath, OpNodes, Replaced, StorageForm
from ..training_graph import TrainingGraph

_KEY = "plan.execution"


def execution_data(execution: Execution) -> dict[str, Any]:
    """The JSON data; what is empty in an entry is left out."""
    return {
        "ops": [
            {"nodes": [_place(node) for node in op.nodes], **({"inputs": list(op.inputs)} if op.inputs else {})}
            for op in execution.ops
        ],
        "storages": [
            {
                "shape": list(form.shape),
                "dtype": form.dtype,
                **({"views": [_place(node) for node in form.views]} if form.views else {}),
                **({"hidden": form.hidden} if form.hidden else {}),
            }
            for form in execution.storages
        ],
        "gradients": list(execution.gradients),
        "prepare": [_place(node) for node in execution.prepare],
        "constants": [
            {
                "name": entry.name, "dtype": entry.dtype, "shape": list(entry.shape),
                "data": None if entry.data is None else list(entry.data),
            }
            for entry in execution.constants
        ],
        "replaced": [
            {"node": _place(entry.node), "input": entry.input, "data": list(entry.data)} for entry in execution.replaced
        ],
    }  # fmt: skip


def _place(node: NodePath) -> int | str | list[int | str]:
    return node[0] if len(node) == 1 else list(node)


def read_execution(data: object, graph: TrainingGraph, remedy: str) -> Execution:
    """The execution of an untrusted plan, one entry for each op, storage and gradient of ``graph``.

    Raises PlanFormatError, which names the entry, for a value of another type or form.
    """
    part = _Part(data, _KEY, remedy)
    found = Execution(
        tuple(OpNodes(_nodes(entry, "nodes"), entry.names("inputs", [])) for entry in part.entries("ops")),
        tuple(
            StorageForm(
                entry.sizes("shape"), entry.dtype(), _nodes(entry, "views", []), entry.get("hidden", str, "")
            )
            for entry in part.entries("storages")
        ),
        part.names("gradients"),
        _nodes(part, "prepare"),
        tuple(
            Constant(entry.get("name", str), entry.dtype(), entry.sizes("shape"), entry.numbers())
            for entry in part.entries("constants")
        ),
        tuple(
            Replaced(
                entry.place(entry.get("node", (int, list))),
                entry.get("input", (int, str)),
                entry.sizes("data", -(2**63)),
            )
            for entry in part.entries("replaced")
        ),
    )  # fmt: skip
    for key, listed, wanted in (
        ("ops", found.ops, graph.ops),
        ("storages", found.storages, graph.storages),
        ("gradients", found.gradients, graph.gradients),
    ):
        if len(listed) != len(wanted) and (listed or key == "ops"):
            raise PlanFormatError(f"{_KEY}: key {key!r} has {len(listed)} entries for {len(wanted)}", remedy=remedy)
    return found


class _Part:
    """Typed access to one object of the key."""

    def __init__(self, data: object, where: str, remedy: str) -> None:
        self.where, self.remedy = where, remedy
        if not isinstance(data, dict):
            raise self.wrong("is not an object")
        self.data = data

    def wrong(self, what: str) -> PlanFormatError:
        return PlanFormatError(f"{self.where} {what}", remedy=self.remedy)

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
        value = self.data.get(key, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(f"has an impossible {key!r}")
        return value

    def entries(self, key: str) -> list[_Part]:
        return [_Part(entry, f"{self.where}.{key}[{i}]", self.remedy) for i, entry in enumerate(self.get(key, list))]

    def names(self, key: str, default: Any = ...) -> tuple[str, ...]:
        found = self.get(key, list, default)
        if not all(isinstance(name, str) for name in found):
            raise self.wrong(f"has no list of names in {key!r}")
        return tuple(found)

    def sizes(self, key: str, least: int = 0) -> tuple[int, ...]:
        found = self.get(key, list)
        if not all(type(size) is int and least <= size < 2**63 for size in found):
            raise self.wrong(f"has no list of integers in {key!r}")
        return tuple(found)

    def dtype(self) -> str:
        found: str = self.get("dtype", str)
        if found not in ITEM_BITS:
            raise self.wrong(f"has the unknown type {found[:40]!r}")
        return found

    def numbers(self) -> tuple[int | float | bool, ...] | None:
        if self.data.get("data", 0) is None:
            return None
        found = self.get("data", list)
        if not all(isinstance(number, (int, float)) for number in found):
            raise self.wrong("has no list of numbers in 'data'")
        return tuple(found)

    def place(self, listed: object) -> NodePath:
        place = listed if isinstance(listed, list) else [listed]
        kinds = [(int, str)[position % 2] for position in range(len(place))]
        if len(place) % 2 == 0 or any(type(one) is not kind for one, kind in zip(place, kinds, strict=True)):
            raise self.wrong(f"names the impossible node {str(listed)[:40]}")
        return tuple(place)


def _nodes(part: _Part, key: str, default: Any = ...) -> tuple[NodePath, ...]:
    return tuple(part.place(node) for node in part.get(key, list, default))
