"""How long training steps take against each other, fairly: interleaved in one process, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.meters.step_meters import clear_gradients


@dataclass(frozen=True, slots=True)
class Step:
    """A training step to time: ``forward`` takes the inputs and returns the loss of ``module``."""

    forward: Callable[..., Tensor]
    module: nn.Module


def seconds(step: Step, arguments: tuple[Tensor, ...]) -> float:
    """One forward and backward without ``.grad`` before it."""
    clear_gradients(step.module, arguments)
    _synchronise()
    started = time.perf_counter()
    step.forward(*arguments).backward()
    _synchronise()
    return time.perf_counter() - started


def time_ratios(
    reference: Step, others: Sequence[Step], arguments: tuple[Tensor, ...], rounds: int
) -> tuple[float, list[float]]:
    """The median of the reference in milliseconds, and the median of each other step as a multiple of it.

    One warm-up each, then ``rounds`` times one of each in turn.
    """
    steps = (reference, *others)
    for step in steps:
        seconds(step, arguments)
    times = [[seconds(step, arguments) for step in steps] for _ in range(rounds)]
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    return 1e3 * medians[0], [median / medians[0] for median in medians[1:]]


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
