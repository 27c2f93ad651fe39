"""The peaks of compiled steps from 95% of the plain step's bytes down to the smallest that is found.

    python -m models.inductor.sweep -o models/results/inductor_sweep.json

Nothing is compiled but the last step of each network: peaks are read from the code that Inductor would compile, beyond
parameters, buffers and arguments. `models.inductor` shows that these are the allocator's. Bytes, operations and kernels
are the same in each run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from ogc_plan.adapters.inductor import budget, torch_private
from ogc_plan.adapters.inductor.joint_graph import JointGraph
from ogc_plan.adapters.inductor.search import Candidate, Search
from ogc_plan.adapters.inductor.workspace import WorkspaceMeter
from torch import fx

from models.inductor.each_network import write_each
from models.reporting.result_table import table
from models.training.cases import Case

PERCENT = range(95, 0, -5)
SEED = 3


@dataclass(frozen=True, slots=True)
class Row:
    """The step found for a share of the plain step's peak; without a share it is the smallest found.

    ``lowered`` steps were lowered for it beyond those for larger shares.
    """

    network: str
    percent: int | None
    plain_nbytes: int
    peak_nbytes: int
    recomputed_flops: int
    kernels: int
    source: str
    lowered: int


class Sweep(torch_private.Partitioner):
    """Searches a joint graph for each share; the step with the smallest peak is compiled."""

    def __init__(self, network: str) -> None:
        self.network = network
        self.rows: list[Row] = []

    def __call__(
        self, graph_module: fx.GraphModule, joint_inputs: object, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward."""
        static = options.get("static_lifetime_input_indices") or ()
        search = Search(JointGraph(graph_module, num_fwd_outputs, static), WorkspaceMeter())
        plain = search.plain.peak.nbytes
        for percent in PERCENT:
            before = search.lowerings
            found = search.within(plain * percent // 100)
            if found is None:
                break
            self._add(percent, plain, found, search.lowerings - before)
        smallest = search.smallest()
        self._add(None, plain, smallest, search.lowerings - before)
        return smallest.forward, smallest.backward

    def _add(self, percent: int | None, plain: int, step: Candidate, lowered: int) -> None:
        self.rows.append(
            Row(
                self.network, percent, plain, step.peak.nbytes, step.recomputed_flops,
                step.kernels, step.source, lowered,
            )
        )  # fmt: skip


def rows_of(case: Case) -> list[Row]:
    """The sweep of one network."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, arguments, sweep = case.build(), case.inputs(SEED), Sweep(case.name)
    options = budget("min") | {"custom_partitioner_fn": sweep}
    torch.compile(module, options=options, dynamic=False, fullgraph=True)(*arguments)
    return sweep.rows


def report(rows: Sequence[Row]) -> str:
    """The rows as Markdown; budgets under which the same step is found are one row."""
    lines: list[list[str]] = []
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if following is not None and _same(row, following) and row.network == following.network:
            continue
        lines.append(
            [
                row.network, "smallest" if row.percent is None else f"{row.percent}%", f"{row.peak_nbytes / 1e6:.3f}",
                f"{100 * row.peak_nbytes / row.plain_nbytes:.1f}%", f"{row.recomputed_flops:.2g}", str(row.kernels),
            ]
        )  # fmt: skip
    return table(["network", "budgets down to", "peak, MB", "of the plain step's", "FLOP again", "kernels"], lines)


def _same(row: Row, other: Row) -> bool:
    return (row.peak_nbytes, row.recomputed_flops) == (other.peak_nbytes, other.recomputed_flops)


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, and write the report after each network; networks that are not named keep their rows of a report."""
    return write_each(
        "models.inductor.sweep", __doc__, arguments, Row, rows_of, report,
        "predicted peak of a compiled training step in bytes, operations that run again",
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
