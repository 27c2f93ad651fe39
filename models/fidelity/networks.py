"""Ten networks and an LSTM within five budgets each, bit for bit, and within ten falling ones.

For each network and budget: what the kind ``executor`` examines of a plan made in memory, without times. Then ten
budgets from the peak that stores everything down to the smallest found, evenly spaced, all planned on one graph with
one measurement of times, and after each a step: its peak may not rise as the budget falls, and its gradients are
eager's. ``--only`` takes some of the networks. The exit code is 1 where anything is not as it should be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from ogc_plan.adapters.pytorch import bind, export
from ogc_plan.planner import Scope, load_model, plan
from torch import nn

from models.fidelity import executor as fidelity
from models.fidelity.network_cases import NETWORKS
from models.fidelity.tables import report
from models.reporting.option_values import count
from models.reporting.result_record import versions, write
from models.training.cases import Case
from models.training.outcome import compare, train

FALLING = 10


def kernels(case: Case) -> AbstractContextManager[Any]:
    """oneDNN off where the case has it so."""
    return nullcontext() if case.onednn else torch.backends.mkldnn.flags(enabled=False)


def falling_budgets(store_all_nbytes: int, smallest_nbytes: int, count: int) -> list[int]:
    """``count`` budgets from the one peak down to the other, evenly spaced, in bytes."""
    width = store_all_nbytes - smallest_nbytes
    return [store_all_nbytes - width * step // (count - 1) for step in range(count)]


def falling(case: Case, eager: fidelity.Eager, folder: Path, count: int) -> list[fidelity.Row]:
    """One row for each of ``count`` falling budgets, all planned on one export; only the first step is compared."""
    path = folder / f"{case.name}.onnx"
    export(fidelity.fresh(case, "cpu"), case.arguments(0), path)
    model = load_model(path)
    smallest = plan(model, "min", scope=Scope.ACTIVATIONS).peak.activation_nbytes
    rows = []
    for nbytes in falling_budgets(model.store_all().peak_activation_nbytes, smallest, count):
        started = time.perf_counter()
        made = plan(model, f"{nbytes}B", scope=Scope.ACTIVATIONS)
        planned_s = time.perf_counter() - started
        module = fidelity.fresh(case, "cpu")
        bound = bind(module, made, case.arguments(0))
        measured = fidelity.measure(case, bound, "cpu")
        equal = {"step 1": compare(_first_step(case, bound), eager.outcomes["step 1"])}
        row = fidelity.Row(
            case.name, f"{nbytes}B", "export", planned_s, None, nbytes, made.time.overhead, len(made.recomputed)
        )
        row = replace(row, measured=measured, equal=equal)
        rows.append(replace(row, failures=tuple(fidelity.failures_of(row))))
    return rows


def _first_step(case: Case, bound: nn.Module) -> Any:
    """The outcome of one step from the case's own weights."""
    bound.load_state_dict(fidelity.fresh(case, "cpu").state_dict())
    first, _ = train(case, bound, bound, 1)
    return first


def peaks_rise(rows: Sequence[fidelity.Row]) -> tuple[str, ...]:
    """The budgets whose measured activation peak is above the peak at the larger budget before."""
    peaks = []
    for row in rows:
        assert row.measured is not None
        assert row.measured.allocator.activations is not None
        peaks.append((row.budget, row.measured.allocator.activations.measured_nbytes))
    return tuple(
        f"at {budget} the peak is {peak} B, above {before} B at {larger}"
        for (larger, before), (budget, peak) in pairwise(peaks)
        if peak > before
    )


def examined(
    case: Case, steps: int, *, budgets: Sequence[str] = fidelity.BUDGETS, count: int = FALLING
) -> dict[str, Any]:
    """Everything about one network, as the results file has it; ``count`` budgets fall."""
    started = time.perf_counter()
    with kernels(case), tempfile.TemporaryDirectory() as folder:
        eager = fidelity.run_eager(case, steps, "cpu")
        rows = [fidelity.examine(case, budget, eager, steps=steps, rounds=0, device="cpu") for budget in budgets]
        sweep = falling(case, eager, Path(folder), count)
    return fidelity.examined(case, rows, eager, steps) | {
        "versions": versions(),
        "falling": [asdict(row) for row in sweep],
        "rises": peaks_rise(sweep),
        "took_s": round(time.perf_counter() - started, 1),
    }


def failed(found: dict[str, Any]) -> bool:
    """Whether anything about a network is not as it should be."""
    return bool(found["rises"]) or any(row["failures"] for row in (*found["rows"], *found["falling"]))


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this kind."""
    parser.add_argument("--only", action="append", choices=NETWORKS, help="a network (may be given again)")
    parser.add_argument("--steps", type=count, default=fidelity.STEPS, help="steps of AdamW (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Examine the networks asked for, and write the results after each; 1 where anything is not as it should be."""
    made: dict[str, Any] = {}
    for name in options.only or NETWORKS:
        made[name] = examined(NETWORKS[name], options.steps)
        print(f"{name}: {'FAILED' if failed(made[name]) else 'ok'}", file=sys.stderr, flush=True)
        if options.output:
            write(
                options.output,
                report(made),
                script="models.fidelity",
                arguments=["networks", "-o", str(options.output)],
                device="cpu",
                quantity="activation and total peaks of one training step in bytes",
                networks=made,
            )
    print(report(made))
    return int(any(map(failed, made.values())))
