"""How long `within_budget` takes for a first plan of a network and for plans of other sizes, stage by stage.

    python -m models.pytorch_planning_time -o models/results/pytorch_planning_time.json

Each round of a network and budget runs in a process of its own: the module is planned for its first batch, then meets
the other sizes. Seconds are medians of the rounds. The search's kernels are compiled before. On a CPU, with as many
threads as PyTorch takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from ogc_plan.adapters.pytorch import plans_of, within_budget
from ogc_plan.adapters.pytorch.binding import make_executor, plans
from ogc_plan.adapters.pytorch.capture import joint_graph
from ogc_plan.adapters.pytorch.execution import card_memory
from ogc_plan.adapters.pytorch.memory import workspace_meter
from ogc_plan.planner.strategies.optimal.warm_up import prepare_kernels
from torch import Tensor

from models.networks.gpt2 import GPT2Config
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.option_values import count
from models.reporting.process import answer_of
from models.reporting.result_record import publish
from models.reporting.result_table import table
from models.training.cases import Case, gpt_case, resnet_case

LIMIT_S = 600
OTHER = "other"
STAGES = (
    "trace", "passes", "step", "workspace", "times", "annotate", "replay", "search", "generate", "executor", OTHER,
)  # fmt: skip
"""Where the time goes, in order: ``annotate`` is without the measuring of calls, ``executor`` without its code."""

_STAGE_OF: tuple[tuple[Any, str, str], ...] = (
    (plans, "planned", OTHER),
    (make_executor, "capture", "trace"),
    (joint_graph, "run_passes", "passes"),
    (make_executor, "TracedStep", "step"),
    (make_executor, "annotate", "annotate"),
    (workspace_meter.WorkspaceMeter, "measure", "workspace"),
    (workspace_meter, "call_time", "times"),
    (make_executor, "from_annotation", "annotate"),
    (make_executor.pipeline, "plan", "search"),
    (make_executor, "replan", "replay"),
    (make_executor, "Executor", "executor"),
    (card_memory, "generate", "generate"),
)
"""What `within_budget` calls -> the stage that its time, without that of the calls inside, belongs to."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A network with the case of its first plan, those of other sizes, and a budget in bytes for all of them."""

    first: Case
    others: Mapping[str, Case]
    budget_nbytes: int

    def budget(self, name: str) -> str | int:
        """The share of that name, or the budget in bytes."""
        return self.budget_nbytes if name == BYTES else name


BYTES = "bytes"
BUDGETS = ("60%", BYTES)


def _gpt(batch: int, context: int, dropout: float = 0.1) -> Case:
    return gpt_case(batch, GPT2Config(context=context, dropout=dropout))


NETWORKS = {
    "gpt": Planned(_gpt(2, 256), {"batch 3": _gpt(3, 256), "2 x 200 tokens": _gpt(2, 200)}, 1_250_000_000),
    "resnet50": Planned(
        resnet_case(2, 96), {"batch 3": resnet_case(3, 96), "batch 1": resnet_case(1, 96)}, 222_000_000
    ),
    "small_gpt": Planned(
        gpt_case(2, GPT2Config(64, 16, 2, 2, 16)), {"batch 3": gpt_case(3, GPT2Config(64, 16, 2, 2, 16))}, 400_000
    ),
}
SMALL = ("small_gpt",)
"""Networks for tests."""


class StageClock:
    """Adds up wall-clock and processor seconds of stages; a stage inside another one is not part of the outer one's."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {}
        self._stages: list[str] = []
        self._since = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def _charge(self) -> None:
        now = self._now()
        if self._stages:
            totals = self.taken.setdefault(self._stages[-1], [0.0, 0.0])
            for kind, (before, after) in enumerate(zip(self._since, now, strict=True)):
                totals[kind] += after - before
        self._since = now

    def timed(self, call: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """The ``call``, whose time is charged to ``stage``."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._charge()
            self._stages.append(stage)
            try:
                return call(*args, **kwargs)
            finally:
                self._charge()
                self._stages.pop()

        return run

    @contextmanager
    def running(self) -> Iterator[None]:
        """Charge what `within_budget` calls inside to the stages."""
        with ExitStack() as stack:
            for owner, name, stage in _STAGE_OF:
                stack.enter_context(patch.object(owner, name, self.timed(getattr(owner, name), stage)))
            yield


def _taken(act: Callable[[], Any]) -> tuple[Any, dict[str, list[float]]]:
    clock = StageClock()
    with clock.running():
        result = act()
    return result, clock.taken


def _built(case: Case) -> tuple[Any, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return case.build(), case.inputs(0)


def measured(network: Planned, budget: str) -> list[dict[str, Any]]:
    """One round: the rows of the first plan and of each other size, with wall-clock and processor seconds by stage."""
    module, arguments = _built(network.first)
    bound, taken = _taken(lambda: within_budget(module, arguments, budget=network.budget(budget)))
    rows = [{"plan": "first", "sizes": network.first.sizes, "taken": taken}]
    for name, case in network.others.items():
        arguments = case.inputs(0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "planned .* again")
            _, taken = _taken(lambda given=arguments: bound(*given))
        rows.append({"plan": name, "sizes": case.sizes, "taken": taken})
    for row, plan in zip(rows, plans_of(bound), strict=True):
        row |= {
            "budget_nbytes": plan.budget.nbytes,
            "peak_nbytes": plan.peak.total_nbytes,
            "overhead": plan.time.overhead,
            "strategy": plan.certificate.strategy,
        }
    return rows


def medians(rounds: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of the last round with the medians over all rounds in place of its seconds."""
    found = []
    for rows in zip(*rounds, strict=True):
        stages = [stage for stage in STAGES if any(stage in row["taken"] for row in rows)]
        taken = {
            stage: [statistics.median(row["taken"].get(stage, (0.0, 0.0))[kind] for row in rows) for kind in (0, 1)]
            for stage in stages
        }
        sums = [[sum(part[kind] for part in row["taken"].values()) for row in rows] for kind in (0, 1)]
        found.append(rows[-1] | {"taken": taken, "total": [statistics.median(totals) for totals in sums]})
    return found


def report(rows: Sequence[dict[str, Any]]) -> str:
    """One row a plan: seconds in all, processor seconds in all, and wall-clock seconds of each stage."""
    lines = []
    for row in rows:
        wall, processor = row["total"]
        parts = (row["taken"].get(stage) for stage in STAGES)
        cells = ("-" if part is None else f"{part[0]:.2f}" for part in parts)
        lines.append([f"{row['name']}, {row['budget']}, {row['plan']}", f"{wall:.1f}", f"{processor:.1f}", *cells])
    return table(["plan", "seconds", "of processors", *STAGES], lines)


TITLES = {"gpt": "GPT, 12 layers, vocabulary 50,257, 2 x 256 tokens", "resnet50": "ResNet-50, 2 x 3 x 96 x 96"}


def before_and_after(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """One row a plan: wall-clock seconds and processor seconds of planning, before and after, and how it was made."""
    lines = []
    for old, new in zip(before, after, strict=True):
        first = new["plan"] == "first"
        budget = new["budget"] if new["budget"] != BYTES else f"{new['budget_nbytes'] / 1e9:g} GB"
        made = "search" if "search" in new["taken"] else "decisions kept"
        seconds = (f"{row['total'][kind]:.1f}" for kind in (0, 1) for row in (old, new))
        lines.append([TITLES[new["name"]] if first else f"then {new['plan']}", budget, *seconds, made])
    header = ["plan", "budget", "seconds before", "after", "processor seconds before", "after", "made by"]
    return table(header, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the networks asked for, all large ones by default, and print the report."""
    parser = command_parser("models.pytorch_planning_time", __doc__)
    add_names(parser, NETWORKS, [name for name in NETWORKS if name not in SMALL])
    add_output(parser)
    parser.add_argument("--rounds", type=count, default=3, metavar="N", help="processes for each median (default: 3)")
    parser.add_argument("--here", choices=BUDGETS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        (name,) = options.names
        print(json.dumps({"rows": measured(NETWORKS[name], options.here)}))
        return
    prepare_kernels()
    rows = []
    for name in options.names or [name for name in NETWORKS if name not in SMALL]:
        for budget in BUDGETS:
            rounds = []
            for _ in range(options.rounds):
                found = answer_of("models.pytorch_planning_time", name, "--here", budget, limit_s=LIMIT_S)
                if "error" in found:
                    raise SystemExit(f"{name} {budget}: {found['error']}")
                rounds.append(found["rows"])
            rows += [{"name": name, "budget": budget} | row for row in medians(rounds)]
            print(f"{name} {budget}: done", file=sys.stderr, flush=True)
    publish(
        report(rows),
        options.output,
        script="models.pytorch_planning_time",
        arguments=arguments,
        device="cpu",
        quantity="seconds of planning, wall clock and of processors",
        rows=rows,
    )


if __name__ == "__main__":
    main()
