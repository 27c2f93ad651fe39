"""Optimizers as ONNX graphs: one node sequence for each parameter, whose results overwrite parameter and state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from ...planner.errors import UsageError
from ...planner.onnx_import.document.protobuf import GraphProto, ModelProto
from ..onnx_step.nodes.writer import Tensor, Writer
from ..onnx_step.step_file import declared

RATE = "learning rate"
STEP_SCALES = ("first correction", "second correction")
DECAY = "share that decay leaves"


@dataclass(frozen=True, slots=True)
class SGD:
    """torch.optim.SGD: momentum without dampening, decay added to the gradient.

    Raises UsageError for a negative or infinite number.
    """

    lr: float = 1e-2
    momentum: float = 0.0
    weight_decay: float = 0.0
    kind: ClassVar[str] = "SGD"

    def __post_init__(self) -> None:
        _to_floats(self, "lr", "momentum", "weight_decay")

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states of each parameter."""
        return ("momentum",) if self.momentum else ()

    def scalars(self, step: int) -> dict[str, float]:
        """What changes from step to step; the first one is 1."""
        return {RATE: self.lr}

    def update(self, p: Tensor, g: Tensor, states: list[Tensor], scalars: Mapping[str, Tensor]) -> list[Tensor]:
        """The new parameter and states. A state of zeros makes the first momentum the gradient, as torch does."""
        if self.weight_decay:
            g = g + p * self.weight_decay
        if states:
            g = states[0] * self.momentum + g
        return [p - g * scalars[RATE], *([g] if states else [])]


@dataclass(frozen=True, slots=True)
class AdamW:
    """torch.optim.AdamW. Raises UsageError for a negative or infinite number, or a beta that is not below 1."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    kind: ClassVar[str] = "AdamW"

    def __post_init__(self) -> None:
        _to_floats(self, "lr", "eps", "weight_decay")
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2:
            raise UsageError(f"AdamW: betas {self.betas!r} are no pair", remedy="pass betas=(0.9, 0.999)")
        object.__setattr__(self, "betas", tuple(_number(self.kind, "beta", beta, 1.0) for beta in self.betas))

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states of each parameter."""
        return ("mean", "variance")

    def scalars(self, step: int) -> dict[str, float]:
        """The rate by the correction of the mean, the root of the correction of the variance, and the decay."""
        first, second = (1 - beta**step for beta in self.betas)
        decay = 1 - self.lr * self.weight_decay
        return {STEP_SCALES[0]: self.lr / first, STEP_SCALES[1]: second**0.5, DECAY: decay}

    def update(self, p: Tensor, g: Tensor, states: list[Tensor], scalars: Mapping[str, Tensor]) -> list[Tensor]:
        """The new parameter and states."""
        one, two = self.betas
        mean = states[0] * one + g * (1 - one)
        variance = states[1] * two + g * g * (1 - two)
        kept = p * scalars[DECAY] if self.weight_decay else p  # one product, as an infinite weight stays infinite
        divisor = variance.apply("Sqrt") / scalars[STEP_SCALES[1]] + self.eps
        return [kept - mean / divisor * scalars[STEP_SCALES[0]], mean, variance]


Optimizer = SGD | AdamW


def _to_floats(optimizer: Optimizer, *names: str) -> None:
    """Make Python's floats of numbers, those of numpy too, which JSON does not take."""
    for name in names:
        object.__setattr__(optimizer, name, _number(optimizer.kind, name, getattr(optimizer, name), inf))


def _number(kind: str, name: str, value: Any, end: float) -> float:
    try:
        number = -1.0 if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < end:
        raise UsageError(
            f"{kind}: {name} {value!r} is no number from 0 to below {end}", remedy="pass one, or leave it out"
        )
    return number


def state_names(optimizer: Optimizer, parameter: str) -> list[str]:
    """The inputs of a parameter's states."""
    return [f"{state} of {parameter}" for state in optimizer.states]


def optimizer_graph(optimizer: Optimizer, parameters: Iterable[tuple[str, str, tuple[int, ...], str]]) -> bytes:
    """A model that updates parameters, each given as its name, that of its gradient, its shape and type.

    Inputs are the scalars, parameters, gradients and states; the output for an input NAME is ``new NAME``.
    """
    listed = list(parameters)
    writer = Writer(name for name, gradient, _, _ in listed for name in (name, gradient))
    made = ModelProto(ir_version=10, producer_name="ogc-plan", graph=GraphProto(name=optimizer.kind))
    made.opset_import.add(domain="", version=21)
    scalars: dict[tuple[str, str], Tensor] = {}

    def scalar(key: str, dtype: str) -> Tensor:
        if (key, dtype) not in scalars:
            scalars[key, dtype] = writer.tensor(writer.fresh(f"{key} ({dtype})"), (), dtype)
        return scalars[key, dtype]

    for name, gradient, shape, dtype in listed:
        p, g = writer.tensor(name, shape, dtype), writer.tensor(gradient, shape, dtype)
        states = [writer.tensor(writer.fresh(state), shape, dtype) for state in state_names(optimizer, name)]
        writer.scope = name
        now = {key: scalar(key, dtype) for key in optimizer.scalars(1)}
        results = optimizer.update(p, g, states, now)
        for before, after in zip((p, *states), results, strict=True):
            writer.several("Identity", (after,), [(shape, dtype)], names=(f"new {before.name}",))
            made.graph.output.append(declared(f"new {before.name}", after))
        made.graph.input.extend(declared(tensor.name, tensor) for tensor in (p, g, *states))
    made.graph.input.extend(declared(tensor.name, tensor) for tensor in scalars.values())
    made.graph.node.extend(writer.nodes)
    made.graph.initializer.extend(writer.constants.values())
    content: bytes = made.SerializeToString()
    return content
