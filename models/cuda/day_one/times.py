"""Milliseconds of a step, by events: eager, checkpointing by block, and plans, one of them in a rival's memory."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
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
        subject = Subject.of(case, PRECISION)
        found = [Way("eager", subject.module, asdict(peaks(subject, subject.module)))]
        for budget in budgets:
            found += _plan(subject, budget, budget, rows, name)
        rows += _rows(name, found, _times(subject, found, small))
        save({"precision": PRECISION, "rows": rows})
        for rival, make in rivals.items():
            try:
                with restored(subject.module):
                    forward = make(subject)
                    other = Way(rival, forward, asdict(peaks(subject, forward)))
                    rows += _rows(name, [other], _times(subject, [other], small))
            except Exception as error:
                rows.append({"network": name, "way": rival, "error": line_of(error)})
                continue
            finally:
                save({"precision": PRECISION, "rows": rows})
            ours = _at_peak(subject, f"plan at the peak of {rival}", other.known["reserved_nbytes"], rows, name)
            rows += _rows(name, ours, _times(subject, ours, small))
            save({"precision": PRECISION, "rows": rows})
        del subject, found
        gc.collect()
        torch.cuda.empty_cache()


def peaks(subject: Subject, forward: Callable[..., Tensor]) -> Peaks:
    """Those of one step, after a first step."""
    for _ in range(2):
        clear_gradients(subject.module, subject.arguments)
        gc.collect()
        Peaks.reset()
        subject.step(forward)()
    return Peaks.read()


def _at_peak(subject: Subject, name: str, nbytes: int, rows: list[dict[str, Any]], network: str) -> list[Way]:
    """The plan for a card that holds what a rival reserves, and the CUDA context."""
    context = predict(subject.planned(STORE_ALL)).card
    assert context is not None
    return _plan(subject, name, nbytes + context.context_nbytes, rows, network, scope=None)


def _plan(
    subject: Subject,
    name: str,
    budget: str | int,
    rows: list[dict[str, Any]],
    network: str,
    scope: Scope | None = Scope.ACTIVATIONS,
) -> list[Way]:
    """The plan as a way; none where there is none, with a row that says why."""
    try:
        bound = subject.planned(budget, scope)
    except Exception as error:
        rows.append({"network": network, "way": name, "error": line_of(error)})
        return []
    return [Way(name, bound, asdict(peaks(subject, bound)) | {"predicted_ratio": 1 + plan_of(bound).time.overhead})]


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
