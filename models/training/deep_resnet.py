"""How deep a residual network fits: CIFAR ResNet-v2 of 6 n + 2 layers, memory, time and planning for each n.

    python -m models.training.deep_resnet --blocks 1,2,4,8,16,32,64,128,200 --batch 1280 \
        -o models/results/deep_resnet.json
    python -m models.training.deep_resnet --batch 4096 --memory 16GB

For each number n of blocks a stage: the activation peak and time of a plain step, and of the plan of least
memory that adds no more than ``--overhead`` of a step, with the seconds it took to plan. With ``--memory`` also
the greatest n (a power of two, then bisected) whose whole step, parameters and gradients included, fits those
bytes, plain and planned. Programs run on fake tensors, or on a real device, as in `models.benchmark`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from ogc_plan.planner.costs.devices import DEVICES
from ogc_plan.planner.errors import OgcPlanError
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.solver import Solver
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.warm_up import prepare_kernels
from ogc_plan.planner.units import parse_budget
from rich.console import Console
from rich.progress import Progress

from models.benchmark.memory import measure
from models.benchmark.network import FAKE, Network, Place, device
from models.benchmark.picture import BLUE, GREY, RED, Panel, picture
from models.benchmark.search import Tradeoff
from models.networks.cifar_resnet import CifarResNetV2
from models.reporting.command_line import INTERRUPTED, add_output, command_parser
from models.reporting.option_values import added, count, count_or_none, counts
from models.reporting.result_record import publish
from models.reporting.result_table import megabytes, table

BLOCKS = "1,2,3,4,8,16,32,64,128,200"
BATCH = 1280
OVERHEAD = 0.34
"""Time that a plan may add: one more forward pass. With less, memory grows linearly with the depth."""
SOLVES = 6
PUBLISHED_MB = {1: (1620, 1683), 2: (2145, 1713), 3: (2648, 1934), 4: (3172, 1891)}
"""Of gradient-checkpointing, on a GPU at batch 1280: blocks a stage -> peak MB plain and checkpointed."""
PUBLISHED_S = {1: (1.89, 3.51), 2: (3.38, 4.66), 3: (4.79, 6.50), 4: (6.20, 8.44)}
"""The same in seconds a step."""


@dataclass(frozen=True, slots=True)
class Depth:
    """One depth: bytes of plain and planned steps, seconds predicted or (``plain_s``) measured, seconds to plan."""

    blocks: int
    layers: int
    ops: int
    plain_nbytes: int
    planned_nbytes: int
    plain_total_nbytes: int
    planned_total_nbytes: int
    overhead: float
    predicted_s: float
    trace_s: float
    first_plan_s: float
    plan_s: float
    plans: int
    plain_s: float | None = None
    planned_s: float | None = None


def network(blocks: int, batch: int, place: Place) -> Network:
    """The network of ``blocks`` a stage on images [batch, 3, 32, 32] that take a gradient."""
    layers = 6 * blocks + 2
    return Network(
        f"resnet_v2_{layers}", lambda: CifarResNetV2(layers), lambda: (torch.zeros(batch, 3, 32, 32),), place
    )


def examine(blocks: int, batch: int, place: Place, *, overhead: float, effort: str, solves: int) -> Depth:
    """Trace, plan and run one depth. ``plan_s`` is everything between the traced graph and the last plan."""
    started = time.perf_counter()
    net = network(blocks, batch, place)
    traced = time.perf_counter()
    solver = Solver(effort=effort)
    tradeoff = Tradeoff(net.problem, solver)
    started_plans = time.perf_counter()
    tradeoff.within(max(net.problem.floor_nbytes, net.plain_nbytes // 2))
    first = time.perf_counter() - started_plans
    point = tradeoff.least_memory(overhead, solves, smallest=False)
    planned = time.perf_counter() - started_plans
    bound = net.planned(net.plan(point.solution, solver))
    plain, held = (measure(net, module, steps=2, warm_up=1) for module in (net.module, bound))
    return Depth(
        blocks,
        6 * blocks + 2,
        net.problem.op_count,
        plain.activation_nbytes,
        held.activation_nbytes,
        plain.total_nbytes,
        held.total_nbytes,
        point.overhead,
        net.problem.store_all_ns / 1e9,
        round(traced - started, 2),
        round(first, 2),
        round(planned, 2),
        len(tradeoff.points),
        plain.seconds,
        held.seconds,
    )


def plain_fits(blocks: int, batch: int, place: Place, nbytes: int) -> bool:
    """Whether a plain step of this depth, everything included, needs at most so many bytes."""
    return network(blocks, batch, place).store_all.peak_total_nbytes <= nbytes


def planned_fits(blocks: int, batch: int, place: Place, nbytes: int, *, overhead: float, effort: str) -> bool:
    """Whether a plan within so many bytes is found that adds at most ``overhead``."""
    net = network(blocks, batch, place)
    if net.store_all.peak_total_nbytes <= nbytes:
        return True
    problem = net.model.problem(Scope.TOTAL)
    solution = Solver(effort=effort).solve(problem, nbytes)
    return solution.decisions is not None and solution.objective_ns <= overhead * problem.store_all_ns


def deepest(fits: Callable[[int], bool], limit: int) -> int:
    """The greatest n up to ``limit`` that fits where all smaller ones do, 0 for none: doubled, then bisected."""
    low, high = 0, 1
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _deeper(depths: Sequence[Depth]) -> list[Depth]:
    return sorted(depths, key=lambda depth: depth.blocks)[len(depths) // 2 :]


def growth(depths: Sequence[Depth], quantity: str) -> float | None:
    """The exponent of the growth of a quantity with the number of blocks, from the least to the greatest depth."""
    ranked = sorted(depths, key=lambda depth: depth.blocks)
    if len(ranked) < 2:
        return None
    first, last = ranked[0], ranked[-1]
    return math.log(getattr(last, quantity) / getattr(first, quantity)) / math.log(last.blocks / first.blocks)


def report(depths: Sequence[Depth], batch: int, place: Place) -> str:
    """A table of the depths as Markdown, and how memory grows."""
    header = ["blocks a stage", "layers", "ops", "plain MB", "planned MB", "time added", "step s", "trace s",
              "first plan s", "all plans s", "published MB: plain, checkpointed", "time added"]  # fmt: skip
    rows = []
    for depth in depths:
        published = PUBLISHED_MB.get(depth.blocks) if batch == BATCH else None
        times = PUBLISHED_S.get(depth.blocks, (1.0, 1.0))
        added = depth.overhead if depth.plain_s is None else (depth.planned_s or 0) / depth.plain_s - 1
        rows.append([
            f"{depth.blocks}", f"{depth.layers:,}", f"{depth.ops:,}", megabytes(depth.plain_nbytes),
            megabytes(depth.planned_nbytes), f"{added:.1%}", f"{depth.plain_s or depth.predicted_s:.2f}",
            f"{depth.trace_s:.1f}", f"{depth.first_plan_s:.1f}", f"{depth.plan_s:.1f} ({depth.plans})",
            f"{published[0]:,}, {published[1]:,}" if published else "-",
            f"{times[1] / times[0] - 1:.0%}" if published else "-",
        ])  # fmt: skip
    parts = []
    for some, over in ((list(depths), "all depths"), (_deeper(depths), "the deeper half")):
        plain, planned = (growth(some, quantity) for quantity in ("plain_nbytes", "planned_nbytes"))
        if plain is not None and planned is not None:
            parts.append(f"over {over} as depth to the power {plain:.2f} plain and {planned:.2f} planned")
    grown = f"Memory grows {', '.join(parts)} (0.5 is the square root)." if parts else ""
    where = f"Batch {batch:,}, images 32x32; {place.described()}. Memory: activation peaks, without kernels' workspace."
    return "\n\n".join(part for part in (where, table(header, rows), grown) if part)


def within(memory: str, fitting: dict[str, int], limit: int, overhead: float) -> str:
    """How deep it goes ``plain`` and ``planned``, in a sentence; 0 blocks where not even the least depth fits."""
    how = [
        f"{blocks} blocks a stage {way} ({6 * blocks + 2:,} layers)" if blocks else f"no depth fits {way}"
        for way, blocks in fitting.items()
    ]
    most = f" (no more than {limit} were tried)" if fitting["planned"] == limit else ""
    least = "" if all(fitting.values()) else " The least is 1 block a stage, 8 layers."
    return (
        f"Within {memory} for everything a step holds: {', '.join(how)}{most} at no more than {overhead:.0%} more "
        f"time.{least}"
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
    parser.add_argument(
        "--blocks",
        type=counts,
        default=BLOCKS,
        help="numbers of blocks a stage, or a range of doubles such as 1..200 (default %(default)s)",
    )
    parser.add_argument("--batch", type=count, default=BATCH, help="images a step (default %(default)s)")
    parser.add_argument("--overhead", type=added, default=OVERHEAD, help="time a plan may add (default %(default)s)")
    parser.add_argument("--memory", help="also find the greatest depth whose step fits, e.g. 16GB")
    parser.add_argument(
        "--limit", type=count, default=256, help="blocks a stage tried for --memory (default %(default)s)"
    )
    parser.add_argument("--effort", choices=EFFORTS, default="fast", help="of the planner (default %(default)s)")
    parser.add_argument("--solves", type=count_or_none, default=SOLVES, help="plans a depth (default %(default)s)")
    parser.add_argument("--device", type=device, default=FAKE, help="cuda:0, cpu or fake (default)")
    parser.add_argument(
        "--roofline",
        choices=DEVICES,
        metavar="DEVICE",
        help="whose datasheet gives times; on fake tensors rtx2080ti unless given",
    )
    add_output(parser, "a .md and an .svg")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the depths that the command line asks for; 130 where it is interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    place = Place(options.device, options.roofline or ("rtx2080ti" if options.device == FAKE else None))
    try:
        limit = None if options.memory is None else parse_budget(options.memory).nbytes
    except OgcPlanError as error:
        parser.error(f"--memory: {error}")
    if options.memory is not None and limit is None:
        parser.error(f"--memory {options.memory!r} is no size; write for example 16GB")
    try:
        _examined(options, place, limit, arguments)
    except KeyboardInterrupt:
        print("models.training.deep_resnet: interrupted; nothing was kept", file=sys.stderr)
        return INTERRUPTED
    return 0


def _examined(options: argparse.Namespace, place: Place, limit: int | None, arguments: Sequence[str] | None) -> None:
    """Examine, print and write."""
    chosen = {"overhead": options.overhead, "effort": options.effort}
    prepare_kernels()  # compiling them on a fresh machine is not part of a plan
    depths = []
    with Progress(console=Console(stderr=True)) as progress:
        line = progress.add_task("depths", total=len(options.blocks))
        for blocks in options.blocks:
            progress.update(line, description=f"{6 * blocks + 2} layers")
            depths.append(examine(blocks, options.batch, place, solves=options.solves, **chosen))
            progress.advance(line)
    text = report(depths, options.batch, place)
    fitting: dict[str, int] = {}
    if limit is not None:
        fitting["plain"] = deepest(lambda n: plain_fits(n, options.batch, place, limit), options.limit)
        fitting["planned"] = deepest(lambda n: planned_fits(n, options.batch, place, limit, **chosen), options.limit)
        text += f"\n\n{within(options.memory, fitting, options.limit, options.overhead)}"
    publish(
        text,
        options.output,
        script="models.training.deep_resnet",
        arguments=arguments,
        device="cuda" if options.device.startswith("cuda") else "cpu",
        quantity="bytes and seconds of one training step",
        where=place.described(),
        batch=options.batch,
        depths=[asdict(depth) for depth in depths],
        memory=options.memory,
        fitting_blocks=fitting,
    )
    if options.output:
        options.output.with_suffix(".svg").write_text(drawing(depths))


if __name__ == "__main__":
    sys.exit(main())
