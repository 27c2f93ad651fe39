"""What one step of the VGG16 tutorial holds at its own size: plain, by checkpoint_sequential, and planned.

The programs that would run on a GPU run on tensors without memory (FakeTensorMode), and the meter counts those as
it counts real ones; nothing is computed. What kernels take and give back inside one call does not show, nor what an
allocator or a context adds. Work is counted in floating-point operations of matmuls and convolutions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from ogc_plan.adapters.pytorch.binding.bound_module import bound
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.execution.executor import Executor
from ogc_plan.adapters.pytorch.step.annotate import annotate
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from ogc_plan.planner import pipeline
from ogc_plan.planner.model import from_annotation
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from models.alternatives.methods import restored
from models.meters.step_meters import by_storages, clear_gradients
from models.reporting.result_table import table
from models.training.cases import Supervised
from models.training.recipe import Recipe, in_segments

ROOFLINE = "rtx2080ti"
TIGHT = "53%"
"""A second budget, close above the smallest there is."""
PUBLISHED_MB = (14222, 10550)
"""Device memory of the tutorial, plain and with checkpoint_sequential."""
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Held:
    """One way's step: its peaks in bytes, momentum included in the total, its work, what gets a gradient."""

    way: str
    total_nbytes: int
    activation_nbytes: int
    flops: int
    parameters_with_gradient: int


def steps_held(recipe: Recipe, parts: Callable[[nn.Module], nn.Sequential], budgets: tuple[str, ...]) -> Iterator[Held]:
    """Each way at the recipe's batch and size, the planned ones at ``budgets``."""
    with FakeTensorMode() as fake:
        batch = torch.zeros(recipe.batch, 3, recipe.size, recipe.size), torch.zeros(recipe.batch, dtype=torch.int64)
        module = Supervised(recipe.build(recipe.classes)).train()
        yield _held("plain", module, module, batch)
        chain = parts(module.network)
        layers = nn.Sequential(
            *(layer for part in chain for layer in (part if isinstance(part, nn.Sequential) else [part]))
        )
        for name, split, reentrant in (
            ("checkpoint_sequential, 2 segments, as written", chain, False),
            ("the same, reentrant", chain, True),
            ("checkpoint_sequential, 2 segments of single layers", layers, False),
        ):
            with restored(module):
                yield _held(name, module, in_segments(lambda _, split=split: split, reentrant=reentrant)(module), batch)
        step = TracedStep(capture(module, batch))
        annotated = annotate(step, measure=False)
    model = from_annotation(annotated.annotation, name=recipe.name, device=ROOFLINE)
    for budget in budgets:
        plan = pipeline.plan(model, budget)
        planned = bound(module, Executor(module, plan, annotated))
        with fake:
            yield _held(f"planned, budget {budget}", module, planned, batch)


def _held(name: str, module: Supervised, forward: Callable[..., Tensor], batch: tuple[Tensor, Tensor]) -> Held:
    def step() -> Tensor:
        loss = forward(*batch)
        loss.backward()
        return loss

    clear_gradients(module, ())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")  # the finding itself
        found = by_storages(step, module, batch)
        trained = [parameter for parameter in module.parameters() if parameter.grad is not None]
        momentum = sum(parameter.untyped_storage().nbytes() for parameter in trained)
        clear_gradients(module, ())
        with FlopCounterMode(display=False) as counter:
            step()
    clear_gradients(module, ())
    total = found.total_nbytes + momentum
    return Held(name, total, found.activation_nbytes, counter.get_total_flops(), sum(p.numel() for p in trained))


def held_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each way, the plain one first."""
    plain = rows[0]
    header = ["one step", "everything MiB", "of plain", "activations MiB", "work", "parameters that get a gradient"]
    lines = [
        [
            row["way"],
            f"{row['total_nbytes'] / MIB:,.0f}",
            f"{row['total_nbytes'] / plain['total_nbytes']:.0%}",
            f"{row['activation_nbytes'] / MIB:,.0f}",
            f"{row['flops'] / plain['flops']:.3f}",
            f"{row['parameters_with_gradient']:,}",
        ]
        for row in rows
    ]
    return table(header, lines)


def memory_section(recipe: Recipe, parts: Callable[[nn.Module], nn.Sequential]) -> tuple[str, list[Held]]:
    """The table with what its figures mean, as Markdown, and its rows."""
    rows = list(steps_held(recipe, parts, (recipe.budget, TIGHT)))
    lines = held_table([asdict(row) for row in rows])
    text = (
        f"Memory of one step at the tutorial's size, batch {recipe.batch} of {recipe.size}x{recipe.size}, counted "
        "tensor by tensor on the programs that run, without a GPU. Everything: parameters, momentum, images, "
        "gradients and activations at their peak. Work: floating-point operations, plain = 1.\n\n"
        f"{lines}\n\n"
        "As written, one of the two segments holds the whole convolution trunk, which is recomputed and then held "
        "as a whole: nothing is saved. Reentrant checkpointing, torch's older default, gives the trunk no "
        "gradient where the images take none: it saves by not training it. The tutorial counts something else, "
        f"what the device reports in use, context and unused cache included: "
        f"published {PUBLISHED_MB[0]:,} -> {PUBLISHED_MB[1]:,} MB."
    )
    return text, rows
