"""Predicted bytes of a step, and those that the allocator was asked for, allocated and reserved."""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import Any

import torch
from ogc_plan.adapters.pytorch import binding_peak, plan_of, predict

from models.cuda.day_one.cases import STORE_ALL, Save, Subject, full_size, line_of, precisions
from models.cuda.peaks import Peaks
from models.meters.step_meters import clear_gradients

PLANS = (STORE_ALL, "60%", "40%", "min")


def run(small: bool, save: Save) -> None:
    """Two steps of each plan, and of eager training."""
    rows: list[dict[str, Any]] = []
    for precision in precisions(small):
        for name, case in full_size(small).items():
            subject = Subject.of(case, precision)
            for way in ("eager", *(PLANS[:2] if small else PLANS)):
                try:
                    found = _row(subject, way)
                except Exception as error:
                    found = {"error": line_of(error)}
                rows.append({"network": name, "precision": precision, "way": way, **found})
                save({"sizes": {name: case.sizes for name, case in full_size(small).items()}, "rows": rows})
            del subject
            gc.collect()
            torch.cuda.empty_cache()


def _row(subject: Subject, way: str) -> dict[str, Any]:
    module = subject.module if way == "eager" else subject.planned(way)
    clear_gradients(subject.module, subject.arguments)
    gc.collect()
    Peaks.reset()
    row: dict[str, Any] = {}
    if way != "eager":
        expected, binding = predict(module), binding_peak(module)
        row = {
            "predicted": {"plan_nbytes": expected.total_nbytes, **(asdict(expected.card) if expected.card else {})},
            "binding": binding._asdict() if binding else None,
            "recomputed_ops": len(plan_of(module).recomputed),
        }
    for _ in range(2):
        subject.step(module)()
        clear_gradients(subject.module, subject.arguments)
    return row | {"measured": asdict(Peaks.read())}
