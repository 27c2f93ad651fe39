"""Whether a plan takes the time that its profile predicts.

For each case one profile is measured, and plans are made by it at several budgets. Then eager steps, steps that
store everything and steps by the plans take turns in one process. Measured is the median of a plan's steps
over the median of the store-all ones: where PyTorch has one thread (the default here) in processor time, which
other processes of the machine do not lengthen, with several threads by the wall clock, each thread bound to a
core. Predicted is 1 + recomputation / step, by the profile and by each distinct call measured alone.

Both are done twice, in processes of their own: with an allocator that keeps the memory that is freed
("kept", as a caching allocator does, here glibc's by MALLOC_ settings), and, at two budgets, with glibc's
default, which gives much of it back to the system and has every page of it faulted in again ("returned").
There each way runs twice a turn and the second step counts, since what the allocator has depends on the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from ogc_plan.adapters.pytorch import bind, plan_of, profile, within_budget
from ogc_plan.planner import Plan, StepProfile, write_plan
from ogc_plan.planner.errors import InfeasibleBudgetError
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.training_graph import OpCost
from torch import nn

from models.meters.step_times import Step, in_turn
from models.reporting.option_values import count
from models.reporting.result_record import publish
from models.reporting.result_table import table
from models.training.cases import CASES, Case

BUDGETS = ("80%", "60%", "40%", "30%", "min")
TOLERANCE = 0.10
WEIGHT_SEED = 1
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**26)}
"""glibc takes all memory from its heap and never returns any."""
BOUND = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
"""Threads that the system moves to one core wait for each other."""
MEMORIES = {"kept": KEPT, "returned": {}}
BUDGETS_RETURNED = ("60%", "min")


@dataclass(frozen=True, slots=True)
class Row:
    """One way to train one case; times are medians, ratios are to the step that stores everything.

    ``predicted`` is by the profile, ``predicted_alone`` by calls measured alone; 1 for what is no plan. A budget
    without a plan has its reason in ``refused``.
    """

    case: str
    memory: str
    way: str
    threads: int = 1
    predicted: float = 1.0
    predicted_alone: float = 1.0
    processor: float = 0.0
    wall: float = 0.0
    step_ms: float = 0.0
    faults: int = 0
    rerun_ops: int = 0
    refused: str = ""

    @property
    def measured(self) -> float:
        """The ratio that is compared: of processor times with one thread, of wall-clock times with several."""
        return self.processor if self.threads == 1 else self.wall

    @property
    def difference(self) -> float:
        """How much longer (positive) the step takes than predicted, as a share of the predicted time."""
        return self.measured / self.predicted - 1

    @property
    def difference_alone(self) -> float:
        """The same of the prediction by calls measured alone."""
        return self.measured / self.predicted_alone - 1

    @property
    def judged(self) -> bool:
        """Whether it is a plan that ran."""
        return not self.refused and self.way not in ("eager", "store-all")


def predicted(plan: Plan, costs: Sequence[OpCost]) -> float:
    """The step by ``plan`` over the one that stores everything, by times of ops."""
    of = {op.name: cost.forward_ns for op, cost in zip(plan.graph.ops, costs, strict=True)}
    again = sum(of[name] * times for name, times in plan.recomputed.items())
    return 1 + again / sum(cost.forward_ns + cost.backward_ns for cost in costs)


def planned(
    case: Case, module: nn.Module, budgets: Sequence[str], timed: StepProfile, folder: Path
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The module bound to a plan for each budget, and why others have none; plans are read where others wrote them."""
    arguments = case.arguments(0)
    found: dict[str, nn.Module] = {}
    refused: dict[str, str] = {}
    for budget in budgets:
        path = folder / f"{case.name}-{budget}.plan.json"
        reason = path.with_suffix(".txt")
        if path.exists():
            found[budget] = bind(module, path, arguments)
        elif reason.exists():
            refused[budget] = reason.read_text()
        else:
            try:
                bound = within_budget(module, arguments, budget=budget, scope=Scope.ACTIVATIONS, profile=timed)
            except InfeasibleBudgetError as error:
                refused[budget] = "proven impossible" if error.proven else "no plan found"
                reason.write_text(refused[budget])
                continue
            found[budget] = bound
            write_plan(plan_of(bound), path)
    return found, refused


def fidelity(case: Case, memory: str, budgets: Sequence[str], rounds: int, folder: Path) -> list[Row]:
    """All rows of one case in this process, whose allocator is as ``memory`` says."""
    torch.manual_seed(WEIGHT_SEED)
    module, arguments = case.build(), case.arguments(0)
    timed = profile(module, arguments)
    in_steps = [OpCost(op.forward_ns, op.backward_ns) for op in timed.ops]
    store_all = within_budget(module, arguments, budget="100%", strategy="keep-all")
    alone = plan_of(store_all).costs
    bound, refused = planned(case, module, budgets, timed, folder)
    ways = {"eager": module, "store-all": store_all, **bound}
    steps = [Step(forward, module) for forward in ways.values()]
    taken = dict(zip(ways, in_turn(steps, arguments, rounds, second=memory == "returned"), strict=True))
    reference = taken["store-all"]
    rows = []
    for way in ("eager", "store-all", *budgets):
        if way in refused:
            rows.append(Row(case.name, memory, way, torch.get_num_threads(), refused=refused[way]))
            continue
        plan, took = plan_of(bound[way]) if way in bound else None, taken[way]
        rows.append(
            Row(
                case.name,
                memory,
                way,
                torch.get_num_threads(),
                1.0 if plan is None else predicted(plan, in_steps),
                1.0 if plan is None else predicted(plan, alone),
                took.processor_s / reference.processor_s,
                took.wall_s / reference.wall_s,
                1e3 * (took.processor_s if torch.get_num_threads() == 1 else took.wall_s),
                round(took.faults),
                0 if plan is None else sum(plan.recomputed.values()),
            )
        )
    return rows


def in_process(case: str, memory: str, arguments: argparse.Namespace, folder: str) -> list[Row]:
    """The same in a process whose allocator is set so."""
    rows = Path(folder, f"{case}-{memory}.rows.json")
    budgets = [b for b in arguments.budgets.split(",") if memory == "kept" or b in BUDGETS_RETURNED]
    command = [sys.executable, "-m", "models.fidelity", "times", "--case", case, "--budgets", ",".join(budgets)]
    command += ["--rounds", str(arguments.rounds), "--threads", str(arguments.threads), "--inside", memory, folder]
    settings = {**MEMORIES[memory], **(BOUND if arguments.threads > 1 else {})}
    subprocess.run([*command, "-o", str(rows)], env={**os.environ, **settings}, check=True)
    return [Row(**entry) for entry in json.loads(rows.read_text())]


def _cells(row: Row) -> list[str]:
    if row.refused:
        return [row.case, row.memory, row.way, row.refused, *["-"] * 8]
    times = [f"{row.processor:.3f}", f"{row.wall:.3f}"]
    rest = [f"{row.step_ms:.0f}", f"{row.faults:,}", str(row.rerun_ops)]
    if not row.judged:
        return [row.case, row.memory, row.way, "-", "-", *times, "-", "-", *rest]
    both = [f"{row.predicted:.3f}", f"{row.predicted_alone:.3f}"]
    off = [f"{row.difference:+.1%}", f"{row.difference_alone:+.1%}"]
    return [row.case, row.memory, row.way, *both, *times, *off, *rest]


def worst(rows: Sequence[Row], difference: str = "difference") -> float:
    """The difference of the plan whose time lies furthest from its prediction; 0 without plans."""
    return max((getattr(row, difference) for row in rows if row.judged), key=abs, default=0.0)


def report(rows: Sequence[Row]) -> str:
    """One table, and the largest differences, as Markdown."""
    header = ["case", "freed memory", "way", "predicted", "by calls alone", "processor time", "wall clock",
              "off the prediction", "off that by calls alone", "step ms", "page faults", "recomputed ops"]  # fmt: skip
    sizes = [f"- {name}: {CASES[name].sizes}" for name in dict.fromkeys(row.case for row in rows)]
    found = []
    for memory in dict.fromkeys(row.memory for row in rows):
        its = [row for row in rows if row.memory == memory]
        found.append(
            f"- freed memory {memory}: {worst(its):+.1%}, by calls alone {worst(its, 'difference_alone'):+.1%}"
        )
    text = (
        "A step's time over that of the step that stores everything. Off the prediction: measured over predicted "
        "time, less one; measured is the processor time where PyTorch has one thread, else the wall-clock time."
        "\n\nThe largest difference between a plan's measured "
        "and predicted step time:"
    )
    return "\n\n".join(["\n".join(sizes), text, "\n".join(found), table(header, [_cells(row) for row in rows])])


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this kind."""
    parser.add_argument("--case", action="append", choices=CASES, help="a case (default: all; may be given again)")
    parser.add_argument("--budgets", default=",".join(BUDGETS), help="default: %(default)s")
    parser.add_argument("--memory", action="append", choices=MEMORIES, help="what is freed (default: both)")
    parser.add_argument("--rounds", type=count, default=5, help="turns; default: %(default)s")
    parser.add_argument("--threads", type=count, default=1, help="of PyTorch; default: %(default)s")
    parser.add_argument("--inside", nargs=2, metavar=("MEMORY", "FOLDER"), help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Measure the cases asked for; 1 where the time of a plan is off by more than the tolerance."""
    torch.set_num_threads(options.threads)
    cases = options.case or list(CASES)
    if options.inside:
        memory, folder = options.inside
        rows = fidelity(CASES[cases[0]], memory, options.budgets.split(","), options.rounds, Path(folder))
        options.output.write_text(json.dumps([asdict(row) for row in rows]))
        return 0
    rows = []
    with tempfile.TemporaryDirectory(prefix="ogc-plan-") as folder:
        for case in cases:
            for memory in options.memory or MEMORIES:
                rows += in_process(case, memory, options, folder)
                print(f"{case}, freed memory {memory}: done", file=sys.stderr, flush=True)
    publish(
        report(rows),
        options.output,
        script="models.fidelity",
        arguments=options.arguments,
        device="cpu",
        quantity="ratios to the time of a step that stores everything",
        tolerance=TOLERANCE,
        rows=[asdict(row) | {"difference": row.difference if row.judged else None} for row in rows],
    )
    return int(abs(worst(rows)) > TOLERANCE)
