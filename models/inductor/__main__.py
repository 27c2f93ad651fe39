"""Byte budgets under torch.compile against torch's own ``activation_memory_budget``: bits, peaks, operations, times.

    python -m models.inductor -o models/results/inductor.json

Each network is compiled plainly, under torch's budgets down to the first whose gradients are wrong, with a checkpoint
around each block, and with one that saves products (SAC). It is compiled within the bytes that each of these with right
gradients was measured to hold, and within shares of the plain step's bytes; a step that was planned for more bytes and
takes no more than the next rival stands for both. It also trains uncompiled, plainly and within the bytes of the
smallest rival. Uncompiled gradients differ in the last bits, and with dropout by other masks.
What is compared is gradients and running statistics after the same number of steps. Peaks are the CPU allocator's.
Kernels are those of forward and backward. Times are medians of steps taken in turn, as a share of the plain compiled
step's: on a machine that others use they tell little; bytes, operations and kernels are exact. A network takes four to
fifteen minutes. One that is not named keeps its rows of an earlier report.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from ogc_plan.adapters.inductor import budget, planned_graphs
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.planner.errors import InfeasibleBudgetError
from torch import Tensor, nn

from models.alternatives.methods import Method, per_block, selective
from models.alternatives.methods import plain as unchanged
from models.inductor.each_network import write_each
from models.inductor.networks import blocks
from models.inductor.observed import Observed
from models.meters.step_meters import by_allocator, clear_gradients
from models.meters.step_times import Step, in_turn
from models.reporting.result_table import table
from models.training.cases import Case

TORCH_SHARES, SHARES = (0.8, 0.5, 0.2), (0.9, 0.75, 0.6, 0.5)
RIGHT = 1e-4  # gradients that differ more from the plain compiled step's are wrong, not rounded otherwise
PLAIN = "compiled"
ROUNDS = 11
SEED = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One way to train a network; ``equal`` of ``results`` have the bits of the plain compiled step."""

    network: str
    way: str
    budget_nbytes: int | None
    peak_nbytes: int
    predicted_nbytes: int | None
    equal: int
    results: int
    largest_difference: float
    recomputed_flops: int | None
    kernels: int | None
    compile_s: float
    time_ratio: float = 0.0


class _Way:
    """A copy of a network, compiled with ``options``; without them it trains uncompiled, within ``nbytes`` if given."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        options: dict[str, Any] | None,
        *,
        share: float = 1.0,
        nbytes: int | None = None,
        method: Method = unchanged,
    ) -> None:
        self.name, self.options, self.nbytes = name, options, nbytes
        self.module = method(copy.deepcopy(module))
        self.compiled: nn.Module = self.module
        if options is not None:
            self.compiled = torch.compile(self.module, options=options, dynamic=False)
        elif nbytes is not None:
            self.compiled = within_budget(self.module, budget=nbytes, optimizer="none", effort="fast")
        self._share = share

    def compile(self, arguments: tuple[Tensor, ...]) -> float:
        """Seconds until the first step is done."""
        started = time.perf_counter()
        with torch._functorch.config.patch(activation_memory_budget=self._share):
            self.step(arguments)
        return time.perf_counter() - started

    def step(self, arguments: tuple[Tensor, ...]) -> Tensor:
        """One training step from the same random state."""
        torch.manual_seed(SEED)
        loss: Tensor = self.compiled(*arguments)
        loss.backward()
        return loss.detach()

    def results(self, arguments: tuple[Tensor, ...]) -> list[Tensor]:
        """The gradients of the parameters, and the running statistics, after one more step."""
        clear_gradients(self.module, arguments)
        self.step(arguments)
        gradients = [parameter.grad for parameter in self.module.parameters() if parameter.grad is not None]
        return [made.clone() for made in [*gradients, *(it for it in self.module.buffers() if it.is_floating_point())]]

    def peak_nbytes(self, arguments: tuple[Tensor, ...]) -> int:
        """The allocator's peak of one step, with parameters and arguments."""
        clear_gradients(self.module, arguments)
        return by_allocator(lambda: self.step(arguments), self.module, arguments).total_nbytes


def rows_of(case: Case) -> list[Row]:
    """Every way to train one network."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, arguments = case.build(), case.inputs(SEED)
    ways: list[_Way] = []
    rows: list[Row] = []
    expected: list[Tensor] = []

    def add(way: _Way) -> Row:
        nbytes = way.nbytes
        try:
            compile_s = way.compile(arguments)
        except (torch._dynamo.exc.BackendCompilerFailed, InfeasibleBudgetError) as error:
            cause = getattr(error, "inner_exception", error)
            if not isinstance(cause, InfeasibleBudgetError):
                raise
            smallest = cause.smallest_known_nbytes or 0
            rows.append(Row(case.name, f"{way.name}: none found", nbytes, smallest, None, 0, 0, 0.0, None, None, 0.0))
            return rows[-1]
        made = way.results(arguments)
        expected.extend([] if expected else made)
        pairs = list(zip(made, expected, strict=True))
        flops, kernels, predicted = None, None, None
        if way.options is not None and nbytes is not None:
            planned = planned_graphs(way.options)[-1]
            flops, kernels, predicted = planned.recomputed_flops, planned.kernels, planned.peak_nbytes
        elif way.options is not None:
            flops, kernels = Observed.of(way.options)
        largest = max(float((one - other).abs().max() / other.abs().max().clamp_min(1e-30)) for one, other in pairs)
        rows.append(
            Row(
                case.name, way.name, nbytes, way.peak_nbytes(arguments), predicted,
                sum(torch.equal(one, other) for one, other in pairs), len(pairs), largest, flops, kernels, compile_s,
            )
        )  # fmt: skip
        ways.append(way)
        print(rows[-1], file=sys.stderr, flush=True)
        return rows[-1]

    plain = add(_Way(PLAIN, module, Observed.options()))
    rivals: dict[str, int] = {}
    for share in TORCH_SHARES:
        rival = add(_Way(f"torch's budget {share}", module, Observed.options(), share=share))
        if rival.largest_difference > RIGHT:
            break
        rivals[str(share)] = rival.peak_nbytes
    for name, method in (("checkpoint", per_block(blocks)), ("SAC", selective(blocks))):
        rival = add(_Way(name, module, Observed.options(), method=method))
        if rival.largest_difference <= RIGHT:
            rivals[name] = rival.peak_nbytes
    budgets = {f"the bytes of {name}": nbytes for name, nbytes in rivals.items()}
    budgets |= {f"{share:.0%} of the bytes": int(plain.peak_nbytes * share) for share in SHARES}
    ours: int | None = None  # the last step planned for more bytes
    for name, nbytes in sorted(budgets.items(), key=lambda item: -item[1]):
        if ours is not None and ours <= nbytes:
            rows[-1] = replace(rows[-1], way=f"{rows[-1].way}, {name}")
            ways[-1].name = rows[-1].way
        else:
            ours = add(_Way(f"ours in {name}", module, budget(nbytes), nbytes=nbytes)).peak_nbytes
    add(_Way("uncompiled", module, None))
    for name, nbytes in sorted(rivals.items(), key=lambda item: item[1])[:1]:
        add(_Way(f"ours uncompiled in the bytes of {name}", module, None, nbytes=nbytes))
    taken = in_turn([Step(_seeded(way), way.module) for way in ways], arguments, ROUNDS)
    ratio = {way.name: found.wall_s / taken[0].wall_s for way, found in zip(ways, taken, strict=True)}
    return [Row(**(asdict(row) | {"time_ratio": ratio.get(row.way, 0.0)})) for row in rows]


def _seeded(way: _Way) -> Any:
    def forward(*arguments: Tensor) -> Tensor:
        torch.manual_seed(SEED)
        loss: Tensor = way.compiled(*arguments)
        return loss

    return forward


def report(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    header = [
        "network",
        "way",
        "peak, MB",
        "predicted",
        "equal results",
        "largest difference",
        "FLOP again",
        "kernels",
        "time",
    ]
    lines = [
        [
            row.network, row.way, f"{row.peak_nbytes / 1e6:.3f}",
            "" if row.predicted_nbytes is None else f"{row.predicted_nbytes / 1e6:.3f}",
            *_measured(row),
        ]
        for row in rows
    ]  # fmt: skip
    return table(header, lines)


def _measured(row: Row) -> list[str]:
    """The columns of a step that ran; blank where no step was found, and the peak is the smallest found."""
    if not row.results:
        return [""] * 5
    equal = f"{row.equal} of {row.results}"
    flops = "" if row.recomputed_flops is None else f"{row.recomputed_flops:.2g}"
    kernels = "" if row.kernels is None else str(row.kernels)
    return [equal, f"{row.largest_difference:.1e}", flops, kernels, f"{row.time_ratio:.2f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the report after each network; networks that are not named keep their rows of a report."""
    torch._dynamo.config.recompile_limit = 64
    return write_each(
        "models.inductor", __doc__, arguments, Row, rows_of, report,
        "allocator peak of a compiled training step in bytes, operations that run again, time ratio",
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
