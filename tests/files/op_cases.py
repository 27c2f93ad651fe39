"""One op under torch's saved-tensor hooks, and the same op as the planner sees it.

A `Case` pairs an ONNX op with the torch call of its meaning. Every saved tensor's storage is looked for among the
inputs and outputs; the rest is hidden. Parameters and constants are stationary, so only activations are compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from ogc_plan.planner.autodiff.rule_table import Saved, saved_for_backward
from ogc_plan.planner.graph import Graph, Op, Role, Storage, Tensor

ROLES = {"x": Role.ACTIVATION, "w": Role.PARAMETER, "c": Role.BUFFER}


@dataclass(frozen=True)
class Case:
    """An ONNX op and the torch call with its meaning.

    ``roles`` has one letter per input: x activation, w parameter, c constant, - absent. ``call`` takes the
    inputs in ONNX order (None where absent).
    """

    op_type: str
    roles: str
    inputs: tuple[Any, ...]
    call: Callable[..., Any]
    attributes: dict[str, object] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        return f"{self.op_type}-{self.note}" if self.note else self.op_type


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def positive(*shape: int) -> torch.Tensor:
    return randn(*shape).abs() * 0.5 + 0.2


def constant(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def quiet(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call without the warnings that torch gives for it."""

    def without_warnings(*operands: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call(*operands)

    return without_warnings


def unary(op_type: str, call: Callable[..., Any], *, note: str = "", **attributes: object) -> Case:
    return Case(op_type, "x", (positive(4, 6),), call, attributes, note)


def on_image(op_type: str, call: Callable[..., Any], *, note: str = "", **attributes: object) -> Case:
    return Case(op_type, "x", (randn(2, 8, 6, 6),), call, attributes, note)


def reduction(op_type: str, call: Callable[..., Any], note: str = "") -> Case:
    return Case(op_type, "xc", (positive(4, 6), constant(1)), lambda x, axes: call(x), {"keepdims": 0}, note)


def binary(op_type: str, call: Callable[..., Any], *, other: tuple[int, ...] = (4, 6), roles: str = "xx") -> Case:
    return Case(op_type, roles, (positive(4, 6), positive(*other)), call, {}, "" if other == (4, 6) else "broadcast")


def gradient_choices(case: Case) -> list[frozenset[int]]:
    """Which inputs need a gradient: all, all but the parameters, only the parameters, and each one alone."""
    floats = [
        i for i, (role, value) in enumerate(zip(case.roles, case.inputs, strict=True))
        if role in "xw" and value is not None and value.is_floating_point()
    ]  # fmt: skip
    parameters = frozenset(i for i in floats if case.roles[i] == "w")
    choices = [frozenset(floats), frozenset(floats) - parameters, parameters]
    if not parameters:
        choices += [frozenset([i]) for i in floats]
    return [choice for choice in dict.fromkeys(choices) if choice]


def leaves_of(case: Case, needs: frozenset[int]) -> list[Any]:
    return [
        value if value is None else value.detach().clone().requires_grad_(i in needs)
        for i, value in enumerate(case.inputs)
    ]


def outputs_of(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def measured(case: Case, needs: frozenset[int]) -> Saved:
    """What torch saves, by storage; only activations, and hidden buffers that are not empty."""
    leaves, saved = leaves_of(case, needs), []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = outputs_of(case.call(*leaves))
    inputs = {address(value): i for i, value in enumerate(leaves) if value is not None}
    results = {address(value): i for i, value in enumerate(outputs) if address(value) not in inputs}
    hidden = {
        address(tensor): tensor.untyped_storage().nbytes()
        for tensor in saved
        if address(tensor) not in inputs and address(tensor) not in results
    }
    found = {inputs[address(tensor)] for tensor in saved if address(tensor) in inputs}
    return Saved(
        tuple(sorted(i for i in found if case.roles[i] == "x")),
        tuple(sorted({results[address(tensor)] for tensor in saved if address(tensor) in results})),
        tuple(sorted(nbytes for nbytes in hidden.values() if nbytes)),
    )


def graph_of(case: Case) -> Graph:
    """The planner's graph of the one op; every tensor has its own storage."""
    with torch.no_grad():
        outputs = outputs_of(case.call(*leaves_of(case, frozenset())))
    tensors: list[Tensor] = []
    inputs: list[int | None] = []
    for role, value in zip(case.roles, case.inputs, strict=True):
        inputs.append(None if value is None else len(tensors))
        if value is not None:
            tensors.append(planner_tensor(value, len(tensors), ROLES[role]))
    first = len(tensors)
    for value in outputs:
        tensors.append(planner_tensor(value, len(tensors), Role.ACTIVATION))
    op = Op("op", case.op_type, "", tuple(inputs), tuple(range(first, len(tensors))), tuple(case.attributes.items()))
    storages = tuple(Storage(tensor.name, tensor.nbytes) for tensor in tensors)
    return Graph("one op", storages, tuple(tensors), (op,), (), op.outputs)


def planner_tensor(value: torch.Tensor, index: int, role: Role) -> Tensor:
    return Tensor(f"t{index}", tuple(value.shape), str(value.dtype).removeprefix("torch."), index, role)


def ruled(case: Case, needs: frozenset[int]) -> Saved:
    """What the planner says, in the same terms."""
    graph = graph_of(case)
    saved = saved_for_backward(graph.ops[0], graph, needs)
    inputs = tuple(sorted(i for i in saved.inputs if case.roles[i] == "x"))
    return Saved(inputs, tuple(sorted(saved.outputs)), tuple(sorted(saved.hidden_nbytes)))


def saved_nbytes(case: Case, saved: Saved) -> int:
    """Everything that is kept, in bytes."""
    graph = graph_of(case)
    op = graph.ops[0]
    held = [op.inputs[i] for i in saved.inputs] + [op.outputs[i] for i in saved.outputs]
    return sum(graph.tensors[i].nbytes for i in held if i is not None) + sum(saved.hidden_nbytes)
