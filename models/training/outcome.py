"""What training leaves behind, bit by bit: losses, gradients, buffers, parameters and the generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from models.meters.step_meters import clear_gradients
from models.training.cases import Case

Forward = Callable[..., Tensor]
LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Outcome:
    """Copies of everything that a run of training steps produced; the names are the module's.

    ``loss`` holds the loss of every step so far; gradients are those of the last step, parameters are as
    that step's update left them.
    """

    loss: Mapping[str, Tensor]
    input_gradients: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]
    random_state: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Equality:
    """Which parts of two outcomes are equal in every bit, and how far apart the gradients are at most.

    ``gradient_difference`` is, over all parameters, the largest |a - b| of a tensor relative to its largest |b|.
    """

    loss: bool
    input_gradients: bool
    gradients: bool
    buffers: bool
    parameters: bool
    random_state: bool
    gradient_difference: float = 0.0

    @property
    def everything(self) -> bool:
        """Whether all parts are."""
        return not self.unequal

    @property
    def unequal(self) -> tuple[str, ...]:
        """The parts that are not, by name."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is False)


def _copies(named: Iterable[tuple[str, Tensor | None]]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named if tensor is not None}


def random_state() -> dict[str, Tensor]:
    """The states of the default generators, of the CPU and of the current CUDA device where there is one."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def outcome(module: nn.Module, arguments: tuple[Tensor, ...], losses: Iterable[Tensor]) -> Outcome:
    """Everything as it stands now."""
    return Outcome(
        {str(step): loss.detach().clone() for step, loss in enumerate(losses)},
        _copies((str(position), tensor.grad) for position, tensor in enumerate(arguments)),
        _copies((name, parameter.grad) for name, parameter in module.named_parameters()),
        _copies(module.named_buffers()),
        _copies(module.named_parameters()),
        random_state(),
    )


def train(
    case: Case, module: nn.Module, forward: Forward, steps: int, *, device: str = "cpu", accumulate: bool = False
) -> tuple[Outcome, Outcome]:
    """Train with AdamW from a fixed seed, on inputs of their own for each step; the outcomes of first and last step.

    ``forward`` is called with the inputs and returns the loss; ``module`` owns the parameters. With
    ``accumulate`` there is no optimizer and ``.grad`` is never cleared.
    """
    clear_gradients(module, ())
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)
    torch.manual_seed(0)
    losses: list[Tensor] = []
    first: Outcome | None = None
    for step in range(steps):
        arguments = case.arguments(step, device)
        loss = forward(*arguments)
        loss.backward()
        losses.append(loss.detach())
        del loss
        if not accumulate:
            optimizer.step()
        if step in (0, steps - 1):
            last = outcome(module, arguments, losses)
            first = first or last
        if not accumulate:
            optimizer.zero_grad()
    assert first is not None
    return first, last


def equal_bits(one: Tensor, other: Tensor) -> bool:
    """Whether type, shape and every bit are equal, so a NaN equals itself and -0.0 differs from 0.0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(equal_bits(first[name], second[name]) for name in first)


def _largest_difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    if first.keys() != second.keys():
        return float("inf")
    worst = 0.0
    for name, expected in second.items():
        scale = float(expected.abs().max())
        difference = float((first[name] - expected).abs().max())
        if difference:
            worst = max(worst, difference / scale if scale else float("inf"))
    return worst


def compare(found: Outcome, expected: Outcome) -> Equality:
    """Compare an outcome with the one it should be."""
    parts = (field.name for field in fields(Outcome))
    same = {part: _same(getattr(found, part), getattr(expected, part)) for part in parts}
    return Equality(**same, gradient_difference=_largest_difference(found.gradients, expected.gradients))
