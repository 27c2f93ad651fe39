"""Whether a plan trains under a hard cap: the CUDA allocator gets the budget and not a byte more.

    PYTORCH_ALLOC_CONF=expandable_segments:True \
        python -m models.fidelity cap --arch resnet50 --budget 4GB

A network of the zoo at its full batch is planned for the budget, which bounds everything (parameters, gradients,
inputs, activations, workspace); then torch.cuda.set_per_process_memory_fraction caps what the process may reserve at
the budget, and plain eager training and the plan each run some steps of SGD. The run passes when the plan's steps do.
Eager is expected to run out of memory; the report says whether it did. ``--headroom`` is taken off the budget for what
the allocator adds: sizes are rounded up, and without expandable segments freed memory of the wrong size stays reserved.
"""

from __future__ import annotations

import argparse
import gc
import sys

import torch
from ogc_plan.adapters.pytorch import plan_of, within_budget
from ogc_plan.planner.errors import OgcPlanError, UsageError
from ogc_plan.planner.units import format_nbytes
from torch import Tensor, nn

from models.meters.step_meters import clear_gradients
from models.reporting.option_values import count
from models.reporting.result_record import publish
from models.reporting.result_table import table
from models.zoo import ZOO

OUT_OF_MEMORY = "out of memory"


def steps_run(module: nn.Module, arguments: tuple[Tensor, ...], steps: int) -> str:
    """Run steps of SGD on the sum of the outputs: the peaks of the allocator, or that it ran out of memory."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        for _ in range(steps):
            module(*arguments).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    except torch.OutOfMemoryError:
        return OUT_OF_MEMORY
    finally:
        clear_gradients(module, arguments)
    torch.cuda.synchronize()
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return f"allocated {format_nbytes(peaks[0])}, reserved {format_nbytes(peaks[1])}"


def allocator_settings() -> str:
    """What ``PYTORCH_ALLOC_CONF``, ``PYTORCH_CUDA_ALLOC_CONF`` or the program has set, as the allocator tells it."""
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return settings["PYTORCH_CUDA_ALLOC_CONF"] or "default settings"


def capped(arch: str, budget: str, headroom: str, steps: int) -> list[tuple[str, str]]:
    """Rows of the report: the cap, then what eager and the plan did under it. Needs a CUDA device."""
    if not torch.cuda.is_available():
        raise UsageError(
            f"--arch {arch} --budget {budget}: there is no CUDA device to cap",
            remedy="run it on a machine with an NVIDIA GPU",
        )
    entry = ZOO[arch]
    torch.manual_seed(0)
    with torch.device("cuda"):
        module = entry.build(entry.extent).train()
        arguments = entry.inputs(entry.batch, entry.extent)
    trained = within_budget(module, arguments, budget=budget, headroom=headroom)
    plan = plan_of(trained)
    limit = plan.budget.nbytes + plan.budget.headroom_nbytes
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / torch.cuda.get_device_properties(0).total_memory))
    return [
        ("cap", format_nbytes(limit)),
        ("allocator", allocator_settings()),
        ("predicted", format_nbytes(plan.peak.total_nbytes)),
        ("eager", steps_run(module, arguments, steps)),
        ("planned", steps_run(trained, arguments, steps)),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this kind."""
    parser.add_argument("--arch", choices=ZOO, default="resnet50")
    parser.add_argument("--budget", default="4GB", help="bytes for everything a step holds (default %(default)s)")
    parser.add_argument("--headroom", default="5%", help="of the budget, for the allocator (default %(default)s)")
    parser.add_argument("--steps", type=count, default=3, help="of SGD under the cap (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    """0 when the plan trained under the cap, 1 when it ran out of memory, 2 where it could not be tried."""
    try:
        rows = capped(options.arch, options.budget, options.headroom, options.steps)
    except OgcPlanError as error:
        print(f"models.fidelity cap: {error.message}; {error.remedy}", file=sys.stderr)
        return 2
    publish(
        table(["run", "result"], [list(row) for row in rows]),
        options.output,
        script="models.fidelity",
        arguments=options.arguments,
        device="cuda",
        quantity="peaks of the CUDA allocator under a hard cap",
        rows=dict(rows),
    )
    return int(rows[-1][1] == OUT_OF_MEMORY)
