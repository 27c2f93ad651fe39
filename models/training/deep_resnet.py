"""How deep a residual network fits: CIFAR ResNet-v2 of 6 n + 2 layers, memory, time and planning for each n.

    python -m models.training.deep_resnet --blocks 1,2,4,8,16,32,64,128,200 --batch 1280 \
        -o models/results/deep_resnet.json
    python -m models.training.deep_resnet --batch 4096 --memory 16GB

For each number n of blocks a stage: the activation peak and time of a plain step, and of the plan of least
memory that adds no more than one forward pass, with the seconds it took to plan. With ``--memory`` also
the greatest n (a power of two, then bisected) whose whole step, parameters and gradients included, fits those
bytes, plain and planned. Programs run on fake tensors, as in `models.benchmark`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from ogc_plan.planner.errors import OgcPlanError
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.solver import Solver
from ogc_plan.planner.strategies.optimal.warm_up import prepare_kernels
from ogc_plan.planner.units import parse_budget

from models.benchmark.memory import measure
from models.benchmark.network import PREDICTED, Network
from models.benchmark.picture import BLUE, GREY, RED, Panel, picture
from models.benchmark.search import Tradeoff
from models.networks.cifar_resnet import CifarResNetV2
from models.reporting.command_line import INTERRUPTED, add_output, command_parser
from models.reporting.option_values import count, counts
from models.reporting.result_record import publish
from models.reporting.result_table import table

BLOCKS = "1,2,3,4,8,16,32,64,128,200"
BATCH = 1280
OVERHEAD = 0.34
"""Time that a plan may add: one more forward pass. With less, memory grows linearly with the depth."""
LIMIT = 256
"""Blocks a stage that are tried at most."""
SOLVES = 6
EFFORT = "fast"


@dataclass(frozen=True, slots=True)
class Depth:
    """One depth: bytes of plain and planned steps, the time that the plan adds, seconds to plan."""

    blocks: int
    layers: int
    plain_nbytes: int
    planned_nbytes: int
    overhead: float
    trace_s: float
    first_plan_s: float
    plan_s: float


def network(blocks: int, batch: int) -> Network:
    """The network of ``blocks`` a stage on images [batch, 3, 32, 32] that take a gradient."""
    layers = 6 * blocks + 2
    images = lambda: (torch.zeros(batch, 3, 32, 32),)  # noqa: E731
    return Network(f"resnet_v2_{layers}", lambda: CifarResNetV2(layers), images, PREDICTED)


def examine(blocks: int, batch: int, *, solves: int = SOLVES) -> Depth:
    """Trace, plan and run one depth. ``plan_s`` is everything between the traced graph and the last plan."""
    started = time.perf_counter()
    net = network(blocks, batch)
    traced = time.perf_counter()
    solver = Solver(effort=EFFORT)
    tradeoff = Tradeoff(net.problem, solver)
    started_plans = time.perf_counter()
    tradeoff.within(max(net.problem.floor_nbytes, net.plain_nbytes // 2))
    first = time.perf_counter() - started_plans
    point = tradeoff.least_memory(OVERHEAD, solves, smallest=False)
    planned = time.perf_counter() - started_plans
    bound = net.planned(net.plan(point.solution, solver))
    plain, held = (measure(net, module) for module in (net.module, bound))
    return Depth(
        blocks,
        6 * blocks + 2,
        plain.activation_nbytes,
        held.activation_nbytes,
        point.overhead,
        round(traced - started, 2),
        round(first, 2),
        round(planned, 2),
    )


def plain_fits(blocks: int, batch: int, nbytes: int) -> bool:
    """Whether a plain step of this depth, everything included, needs at most so many bytes."""
    return network(blocks, batch).store_all.peak_total_nbytes <= nbytes


def planned_fits(blocks: int, batch: int, nbytes: int) -> bool:
    """Whether a plan within so many bytes is found that adds at most one forward pass."""
    net = network(blocks, batch)
    if net.store_all.peak_total_nbytes <= nbytes:
        return True
    problem = net.model.problem(Scope.TOTAL)
    solution = Solver(effort=EFFORT).solve(problem, nbytes)
    return solution.decisions is not None and solution.objective_ns <= OVERHEAD * problem.store_all_ns


def deepest(fits: Callable[[int], bool], limit: int = LIMIT) -> int:
    """The greatest n up to ``limit`` that fits where all smaller ones do, 0 for none: doubled, then bisected."""
    low, high = 0, 1
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def growth(shallow: dict[str, Any], deep: dict[str, Any]) -> float:
    """The power of the depth that planned memory grows with from one depth to another."""
    return math.log(deep["planned_nbytes"] / shallow["planned_nbytes"]) / math.log(deep["blocks"] / shallow["blocks"])


def report(record: dict[str, Any]) -> str:
    """Each depth, how planned memory grows, and how deep it goes within a memory, as Markdown."""
    header = ["blocks a stage", "layers", "plain MB", "planned MB", "planned MB / sqrt(blocks)", "time added"]
    header += ["traced s", "one plan s", "all plans to find it s"]
    rows = []
    for depth in record["depths"]:
        held = depth["planned_nbytes"] / 1e6
        cells = [str(depth["blocks"]), f"{depth['layers']:,}", f"{depth['plain_nbytes'] / 1e6:,.0f}", f"{held:,.0f}"]
        cells += [f"{held / depth['blocks'] ** 0.5:,.0f}", f"{depth['overhead']:.1%}"]
        rows.append([*cells, *(f"{depth[key]:.1f}" for key in ("trace_s", "first_plan_s", "plan_s"))])
    parts = [f"Batch {record['batch']:,}, images 32x32; {record['where']}.", table(header, rows)]
    first, middle, last = (record["depths"][number] for number in (0, len(rows) // 2, -1))
    if len(rows) > 2:
        parts.append(
            f"From {first['blocks']} to {last['blocks']} blocks a stage planned memory grows as depth to the power "
            f"{growth(first, last):.2f}, over the deeper half as {growth(middle, last):.2f}: towards the square root, "
            "with a smaller power at first, since one more forward pass of time saves more in a shallow network."
        )
    return "\n\n".join([*parts, within(record)] if record["memory"] else parts)


def within(record: dict[str, Any]) -> str:
    """How deep it goes within a memory, plain and planned, in a sentence."""
    fits = [f"{blocks or 'no'} blocks a stage {way}" for way, blocks in record["fitting_blocks"].items()]
    return (
        f"At batch {record['batch']:,} within {record['memory']} for everything a step holds fit {', '.join(fits)} "
        f"({LIMIT} were tried at most)."
    )


def drawing(depths: Sequence[Depth]) -> str:
    """Memory and planning seconds against the number of blocks, as SVG."""
    deepest_blocks = max(depth.blocks for depth in depths)
    memory = Panel(0, "activation peak", deepest_blocks, max(d.plain_nbytes for d in depths) / 1e9, ("blocks", "GB"))
    zoomed = Panel(1, "planned alone", deepest_blocks, max(d.planned_nbytes for d in depths) / 1e9, ("blocks", "GB"))
    spent = Panel(2, "planning", deepest_blocks, max(d.plan_s for d in depths), ("blocks", "s"))
    for panel, quantity, scale, color in (
        (memory, "plain_nbytes", 1e9, GREY),
        (memory, "planned_nbytes", 1e9, BLUE),
        (zoomed, "planned_nbytes", 1e9, BLUE),
        (spent, "plan_s", 1.0, RED),
        (spent, "first_plan_s", 1.0, BLUE),
    ):
        panel.line([(depth.blocks, getattr(depth, quantity) / scale) for depth in depths], color)
    return picture([memory, zoomed, spent], [("plain", GREY), ("planned, first plan", BLUE), ("all plans", RED)])


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("models.training.deep_resnet", __doc__)
    parser.add_argument("--blocks", type=counts, default=BLOCKS, help="blocks a stage (default %(default)s)")
    parser.add_argument("--batch", type=count, default=BATCH, help="images a step (default %(default)s)")
    parser.add_argument("--memory", help="also find the greatest depth whose step fits, e.g. 16GB")
    add_output(parser, "a .md and an .svg")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the depths that the command line asks for; 130 where it is interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        limit = None if options.memory is None else parse_budget(options.memory).nbytes
    except OgcPlanError as error:
        parser.error(f"--memory: {error}")
    if options.memory is not None and limit is None:
        parser.error(f"--memory {options.memory!r} is no size; write for example 16GB")
    try:
        _examined(options, limit, arguments)
    except KeyboardInterrupt:
        print("models.training.deep_resnet: interrupted; nothing was kept", file=sys.stderr)
        return INTERRUPTED
    return 0


def _examined(options: argparse.Namespace, limit: int | None, arguments: Sequence[str] | None) -> None:
    """Examine, print and write."""
    prepare_kernels()  # compiling them on a fresh machine is not part of a plan
    depths = []
    for blocks in options.blocks:
        print(f"{6 * blocks + 2} layers", file=sys.stderr, flush=True)
        depths.append(examine(blocks, options.batch))
    fitting: dict[str, int] = {}
    if limit is not None:
        fitting["plain"] = deepest(lambda n: plain_fits(n, options.batch, limit))
        fitting["planned"] = deepest(lambda n: planned_fits(n, options.batch, limit))
    record = {
        "where": PREDICTED.described(),
        "batch": options.batch,
        "depths": [asdict(depth) for depth in depths],
        "memory": options.memory,
        "fitting_blocks": fitting,
    }
    publish(
        report(record),
        options.output,
        script="models.training.deep_resnet",
        arguments=arguments,
        device="cpu",
        quantity="bytes and seconds of one training step",
        **record,
    )
    if options.output:
        options.output.with_suffix(".svg").write_text(drawing(depths))


if __name__ == "__main__":
    sys.exit(main())
