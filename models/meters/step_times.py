"""How long training steps take against each other, fairly: interleaved in one process, medians."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.meters.step_meters import clear_gradients


@dataclass(frozen=True, slots=True)
class Step:
    """A training step to time: ``forward`` takes the inputs and returns the loss of ``module``."""

    forward: Callable[..., Tensor]
    module: nn.Module


class Taken(NamedTuple):
    """What one step took: processor and wall-clock seconds, and pages that the system had to provide."""

    processor_s: float
    wall_s: float
    faults: float


def once(step: Step, arguments: tuple[Tensor, ...]) -> Taken:
    """One forward and backward without ``.grad`` before it."""
    clear_gradients(step.module, arguments)
    _synchronise()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    wall, processor = time.perf_counter(), time.process_time()
    step.forward(*arguments).backward()
    _synchronise()
    taken = time.process_time() - processor, time.perf_counter() - wall
    return Taken(*taken, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)


def in_turn(steps: Sequence[Step], arguments: tuple[Tensor, ...], rounds: int, *, second: bool = False) -> list[Taken]:
    """Medians of each step, taken once in each turn or, with ``second``, the second of two; one turn is a warm-up."""
    found = []
    for _ in range(1 + rounds):
        taken = []
        for step in steps:
            if second:
                once(step, arguments)
            taken.append(once(step, arguments))
        found.append(taken)
    columns = zip(*found[1:], strict=True)
    return [Taken(*(statistics.median(part) for part in zip(*column, strict=True))) for column in columns]


def time_ratios(
    reference: Step, others: Sequence[Step], arguments: tuple[Tensor, ...], rounds: int
) -> tuple[float, list[float]]:
    """The median of the reference in milliseconds, and the median of each other step as a multiple of it."""
    first, *rest = (taken.wall_s for taken in in_turn((reference, *others), arguments, rounds))
    return 1e3 * first, [median / first for median in rest]


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
