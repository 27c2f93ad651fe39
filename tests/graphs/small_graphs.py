"""Forward graphs of one op, made by hand: what the costs of an op type are tried on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.costs.devices import DEVICES, Device
from ogc_plan.planner.costs.roofline import roofline
from ogc_plan.planner.graph import Graph, Op, Role, Storage, Tensor
from ogc_plan.planner.training_graph import OpCost

Shape = tuple[int, ...]


def one_op(
    op_type: str,
    inputs: Sequence[Shape | None],
    outputs: Sequence[Shape],
    *,
    dtype: str = "float32",
    trained: Sequence[int] | None = None,
    integers: Sequence[int] = (),
    **attributes: Any,
) -> Graph:
    """A graph of one op. ``trained`` inputs are parameters (all floating ones by default), the others inputs."""
    tensors, used = [], []
    for position, shape in enumerate(inputs):
        if shape is None:
            used.append(None)
            continue
        whole = position in integers
        role = Role.PARAMETER if not whole and (trained is None or position in trained) else Role.INPUT
        used.append(len(tensors))
        tensors.append(Tensor(f"i{position}", shape, "int64" if whole else dtype, len(tensors), role))
    made = []
    for position, shape in enumerate(outputs):
        made.append(len(tensors))
        tensors.append(Tensor(f"o{position}", shape, dtype, len(tensors), Role.ACTIVATION))
    op = Op("op", op_type, "", tuple(used), tuple(made), tuple(sorted(attributes.items())))
    storages = tuple(Storage(tensor.name, tensor.nbytes) for tensor in tensors)
    given = tuple(i for i, tensor in enumerate(tensors) if tensor.role is Role.INPUT)
    return Graph("one", storages, tuple(tensors), (op,), given, tuple(made))


def cost(graph: Graph, device: Device = DEVICES["h200"]) -> OpCost:
    """What the only op of a graph costs."""
    (found,) = roofline(graph, derive_backward(graph), device)
    return found
