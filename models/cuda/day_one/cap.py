"""Training by a plan where the process may reserve the budget and not a byte more."""

from __future__ import annotations

import gc
from typing import Any

import torch
from ogc_plan.adapters.pytorch import plan_of
from ogc_plan.planner.errors import InfeasibleBudgetError

from models.cuda import card
from models.cuda.day_one.cases import Save, Subject, full_size, line_of
from models.cuda.peaks import Peaks, trained

STEPS = 3
SHARES = (0.6, 0.8)
"""Budgets as shares of what eager training reserves; the first that has a plan is run."""


def run(small: bool, save: Save) -> None:
    """For each network: the budget, and what planned and eager steps reserve under it, or that they do not fit."""
    rows: list[dict[str, Any]] = []
    for name, case in full_size(small).items():
        subject = Subject.of(case, "float32")
        row: dict[str, Any] = {"network": name}
        rows.append(row)
        try:
            free = trained(subject.module, subject.arguments, STEPS)
            assert free is not None
            row["eager_reserved_nbytes"] = free.reserved_nbytes
            for share in SHARES:
                try:
                    row |= _capped(subject, int(share * free.reserved_nbytes))
                    break
                except InfeasibleBudgetError:
                    if share == SHARES[-1]:
                        raise
        except Exception as error:
            row["error"] = line_of(error)
        torch.cuda.set_per_process_memory_fraction(1.0)
        save({"steps": STEPS, "rows": rows})
        del subject
        gc.collect()
        torch.cuda.empty_cache()


def _capped(subject: Subject, budget: int) -> dict[str, Any]:
    torch.cuda.empty_cache()
    card.limit(budget)
    bound = subject.planned(budget + card.context_nbytes(), scope=None)
    planned = trained(bound, subject.arguments, STEPS)
    eager = trained(subject.module, subject.arguments, 1)
    return {
        "budget_nbytes": budget,
        "predicted_nbytes": plan_of(bound).peak.total_nbytes,
        "overhead": plan_of(bound).time.overhead,
        "planned_reserved_nbytes": _reserved(planned),
        "eager_capped_reserved_nbytes": _reserved(eager),
    }


def _reserved(peaks: Peaks | None) -> int | None:
    return None if peaks is None else peaks.reserved_nbytes
