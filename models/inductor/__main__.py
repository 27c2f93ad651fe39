"""Byte budgets under torch.compile against torch's own ``activation_memory_budget``: bits, peaks, operations, times.

    python -m models.inductor -o models/results/inductor.json

Each network is compiled plainly, under one of torch's budgets, within the bytes that this was measured to hold, and
within shares of the plain step's bytes; it also trains uncompiled, plainly and within the rival's bytes. Uncompiled
gradients differ in the last bits, and with dropout by other masks.
Peaks are the CPU allocator's. Kernels are those of forward and backward. Times are medians of steps taken in turn, as
a share of the plain compiled step's: on a machine that others use they tell little; bytes, operations and kernels are
exact.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from ogc_plan.adapters.inductor import budget, planned_graphs
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.planner.errors import InfeasibleBudgetError
from torch import Tensor, nn

from models.inductor.networks import NETWORKS
from models.inductor.observed import Observed
from models.meters.step_meters import by_allocator, clear_gradients
from models.meters.step_times import Step, in_turn
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.result_record import publish
from models.reporting.result_table import table
from models.training.cases import Case

SHARE, SHARES = 0.5, (0.75, 0.6)
PLAIN = "compiled"
ROUNDS = 11
SEED = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One way to train a network; ``equal_gradients`` of ``gradients`` have the bits of the plain compiled step."""

    network: str
    way: str
    budget_nbytes: int | None
    peak_nbytes: int
    predicted_nbytes: int | None
    equal_gradients: int
    gradients: int
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
    ) -> None:
        self.name, self.options, self.nbytes = name, options, nbytes
        self.module = copy.deepcopy(module)
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

    def gradients(self, arguments: tuple[Tensor, ...]) -> list[Tensor]:
        """The gradients of the parameters."""
        clear_gradients(self.module, arguments)
        self.step(arguments)
        return [parameter.grad.clone() for parameter in self.module.parameters() if parameter.grad is not None]

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
        made = way.gradients(arguments)
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
    rival = add(_Way(f"torch's budget {SHARE}", module, Observed.options(), share=SHARE))
    budgets = {f"ours in the bytes of {SHARE}": rival.peak_nbytes}
    budgets |= {f"ours in {share:.0%} of the bytes": int(plain.peak_nbytes * share) for share in SHARES}
    for name, nbytes in budgets.items():
        add(_Way(name, module, budget(nbytes), nbytes=nbytes))
    add(_Way("uncompiled", module, None))
    add(_Way(f"ours uncompiled in the bytes of {SHARE}", module, None, nbytes=rival.peak_nbytes))
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
        "equal gradients",
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
    if not row.gradients:
        return [""] * 5
    equal = f"{row.equal_gradients} of {row.gradients}"
    flops = "" if row.recomputed_flops is None else f"{row.recomputed_flops:.2g}"
    kernels = "" if row.kernels is None else str(row.kernels)
    return [equal, f"{row.largest_difference:.1e}", flops, kernels, f"{row.time_ratio:.2f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the report after each network."""
    parser = command_parser("models.inductor", __doc__)
    add_names(parser, NETWORKS)
    add_output(parser)
    options = parser.parse_args(arguments)
    torch._dynamo.config.recompile_limit = 64
    rows: list[Row] = []
    for name in options.names or NETWORKS:
        rows += rows_of(NETWORKS[name])
        publish(
            report(rows),
            options.output,
            script="models.inductor",
            arguments=arguments,
            device="cpu",
            quantity="allocator peak of a compiled training step in bytes, operations that run again, time ratio",
            sizes={case.name: case.sizes for case in NETWORKS.values()},
            rows=[asdict(row) for row in rows],
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
