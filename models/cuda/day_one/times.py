"""Milliseconds of a step, by events: eager, checkpointing by block, and plans, one of them in a rival's memory."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from ogc_plan.adapters.pytorch import plan_of, predict
from ogc_plan.planner.problem import Scope
from torch import Tensor, nn

from models.alternatives.methods import per_block, restored
from models.cuda.day_one.cases import STORE_ALL, Save, Subject, full_size, line_of
from models.cuda.peaks import Peaks
from models.meters.step_meters import clear_gradients

ROUNDS = 15
WARM_UPS = 3
PRECISION = "bfloat16"
Rival = Callable[[Subject], nn.Module]
"""Another way to train in less memory: what to call in place of the module."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to train, and what results have of it."""

    name: str
    forward: Callable[..., Tensor]
    known: dict[str, Any]


def run(small: bool, save: Save) -> None:
    """Compare with `torch.utils.checkpoint` around each block."""

    def checkpointed(subject: Subject) -> nn.Module:
        return per_block(subject.case.blocks)(subject.module)

    compared(small, save, {"checkpoint by block": checkpointed}, (STORE_ALL, "60%"))


def compared(small: bool, save: Save, rivals: dict[str, Rival], budgets: tuple[str, ...]) -> None:
    """For each network: eager, plans within ``budgets``, and each rival with a plan that reserves no more."""
    rows: list[dict[str, Any]] = []
    for name, case in full_size(small).items():
        try:
            for row in _network(name, Subject.of(case, PRECISION), small, rivals, budgets):
                rows.append(row)
                save({"precision": PRECISION, "rows": rows})
        except Exception as error:
            rows.append({"network": name, "way": "eager", "error": line_of(error)})
            save({"precision": PRECISION, "rows": rows})
        gc.collect()
        torch.cuda.empty_cache()


def _network(
    name: str, subject: Subject, small: bool, rivals: dict[str, Rival], budgets: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """The rows of one network."""
    found = [Way("eager", subject.module, asdict(peaks(subject, subject.module)))]
    for way in budgets:
        made, why = _plan_or_reason(subject, way)
        found += [made] if made is not None else []
        if why:
            yield {"network": name, "way": way, "error": why}
    yield from _rows(name, found, _times(subject, found, small))
    for rival, make in rivals.items():
        way = rival
        try:
            with restored(subject.module):
                forward = make(subject)
                other = Way(rival, forward, asdict(peaks(subject, forward)))
                yield from _rows(name, [other], _times(subject, [other], small))
            way = f"plan in the memory of {rival}"
            ours = _in_memory_of(subject, way, other.known["reserved_nbytes"])
            yield from _rows(name, [ours], _times(subject, [ours], small))
        except Exception as error:
            yield {"network": name, "way": way, "error": line_of(error)}


def peaks(subject: Subject, forward: Callable[..., Tensor]) -> Peaks:
    """Those of one step, after a first step."""
    for _ in range(2):
        clear_gradients(subject.module, subject.arguments)
        gc.collect()
        Peaks.reset()
        subject.step(forward)()
    return Peaks.read()


def _in_memory_of(subject: Subject, name: str, nbytes: int) -> Way:
    """The plan for a card that holds what a rival reserves, and the CUDA context."""
    card = predict(subject.planned(STORE_ALL)).card
    assert card is not None
    return _plan(subject, name, nbytes + card.context_nbytes, scope=None)


def _plan_or_reason(subject: Subject, budget: str) -> tuple[Way | None, str]:
    """The plan within a budget, or why there is none."""
    try:
        return _plan(subject, budget, budget), ""
    except Exception as error:
        return None, line_of(error)


def _plan(subject: Subject, name: str, budget: str | int, scope: Scope | None = Scope.ACTIVATIONS) -> Way:
    """The plan as a way to train."""
    bound = subject.planned(budget, scope)
    return Way(name, bound, asdict(peaks(subject, bound)) | {"predicted_ratio": 1 + plan_of(bound).time.overhead})


def _times(subject: Subject, ways: list[Way], small: bool) -> dict[str, float]:
    """Medians in milliseconds, the ways in turn."""
    taken: dict[str, list[float]] = {way.name: [] for way in ways}
    for turn in range(2 if small else WARM_UPS + ROUNDS):
        for way in ways:
            clear_gradients(subject.module, subject.arguments)
            started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            started.record()
            subject.step(way.forward)()
            ended.record()
            torch.cuda.synchronize()
            if small or turn >= WARM_UPS:
                taken[way.name].append(started.elapsed_time(ended))
    clear_gradients(subject.module, subject.arguments)
    return {name: statistics.median(found) for name, found in taken.items()}


def _rows(network: str, ways: list[Way], taken: dict[str, float]) -> list[dict[str, Any]]:
    return [{"network": network, "way": way.name, "ms": taken[way.name], **way.known} for way in ways]
