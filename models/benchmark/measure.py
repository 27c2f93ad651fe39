"""Plan, run and meter one network: lines of JSON, what is done next, and the result at the end.

    python -m models.benchmark.measure resnet101 --device fake --roofline rtx2080ti

`models.benchmark` runs it in a process of its own for each network.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from ogc_plan.planner.costs.devices import DEVICES
from ogc_plan.planner.errors import OgcPlanError
from ogc_plan.planner.model import store_all_timeline
from ogc_plan.planner.schedule import Schedule, StepKind
from ogc_plan.planner.simulate import Timeline
from ogc_plan.planner.solver import Solver
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.warm_up import prepare_kernels
from ogc_plan.planner.training_graph import OpCost
from torch import nn

from models.alternatives.division import blocks_of, chains_of, layers_of, segments_of
from models.alternatives.methods import (
    Block,
    Chain,
    Method,
    compile_budgets,
    per_block,
    restored,
    selective,
    sequential,
)
from models.benchmark.memory import STEPS, WARM_UP, gradient_difference, measure
from models.benchmark.network import FAKE, Network, Place, device
from models.benchmark.published import Published, published_at
from models.benchmark.rows import overhead_of_calls
from models.benchmark.search import Point, Progress, Tradeoff, strategy
from models.meters.predicted_time import predicted_s
from models.meters.storage_meter import LOSS_NBYTES
from models.reporting.option_values import count, count_or_none, fractions
from models.zoo import ZOO, Entry

SOLVES = 4
"""Plans made at most to find the smallest memory within a time."""
COMPILE_BUDGETS = "0.5,0.3,0.1"
SAMPLES = 160
"""Points of a memory timeline that is kept for a picture."""

MATCHED_MEMORY, MATCHED_TIME = "ours, published memory", "ours, published time"
STRATEGY = "ogc strategy"
STRATEGY_MEMORY, STRATEGY_TIME = "ours, memory of the ogc strategy", "ours, time of the ogc strategy"
MINIMUM = "ours, minimum"
COUNTED_MATCHED_TIME = "ours for the published count, published time"
COUNTED_STRATEGY_TIME = "ours for the published count, time of the ogc strategy"


def ours_within(method: str) -> str:
    """The row of the plan within the memory of another method."""
    return f"ours, memory of {method}"


@dataclass(frozen=True, slots=True)
class Settings:
    """How a network is measured."""

    small: bool = False
    effort: str = "fast"
    solves: int = SOLVES
    steps: int = STEPS
    warm_up: int = WARM_UP
    budgets: tuple[float, ...] = ()
    backend: str = "aot_eager"
    alternatives: bool = True


def row(name: str, network: Network, settings: Settings, module: Any, **known: Any) -> dict[str, Any]:
    """A way to train, metered: bytes, seconds, the difference of its gradients; or the error it ends in.

    ``calls_s`` is the time of all its calls by the roofline (predicted_time), where no device runs them.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = measure(network, module, steps=settings.steps, warm_up=settings.warm_up)
            difference = gradient_difference(network, module)
            calls_s = predicted_s(network, module)
    except OgcPlanError:
        raise  # a plan of ours that does not run is no finding about others
    except Exception as error:
        return {"method": name, "error": f"{type(error).__name__}: {' '.join(str(error).split())}", **known}
    return {"method": name, **asdict(found), "calls_s": calls_s, "gradient_difference": difference, **known}


def methods(module: nn.Module, *, fake: bool, budgets: tuple[float, ...], backend: str) -> dict[str, Method]:
    """Every offer of PyTorch that applies to a network, by name; nothing can be compiled for fake tensors."""
    found: dict[str, Method] = {}
    if blocks_of(module):
        found["checkpoint per block"] = per_block(_blocks)
        found["selective per block: save matmul, conv, attention"] = selective(_blocks)
    if chains_of(module):
        found["checkpoint_sequential, sqrt(n) segments"] = sequential(_chains)
    return found if fake else found | compile_budgets(budgets, backend)


def _blocks(module: nn.Module) -> list[Block]:
    return [Block(block) for block in blocks_of(module)]


def _chains(module: nn.Module) -> list[Chain]:
    """Every outermost Sequential of n layers, in about sqrt(n) segments."""
    found = []
    for chain in chains_of(module):
        segments = [nn.Sequential(*part) for part in segments_of(layers_of(chain))]
        found.append(Chain(chain, nn.Sequential(*segments), len(segments)))
    return found


def size_of(entry: Entry, settings: Settings) -> tuple[int, int]:
    """Batch and extent."""
    return (entry.small_batch, entry.small_extent) if settings.small else (entry.batch, entry.extent)


def benchmark(
    entry: Entry, place: Place, settings: Settings, published: Published | None, tell: Progress
) -> dict[str, Any]:
    """Every way to train one network; ``error`` alone where it does not train plainly."""
    (batch, extent), build = size_of(entry, settings), entry.build_small if settings.small else entry.build
    tell("tracing")
    started = time.perf_counter()
    network = Network(entry.name, lambda: build(extent), lambda: entry.inputs(batch, extent), place)
    trace_s = time.perf_counter() - started
    solver = Solver(effort=settings.effort)
    plain_ns = network.problem.store_all_ns
    rows = [row("plain", network, settings, network.module, predicted_s=plain_ns / 1e9, overhead=0.0, plan_nbytes=None)]
    if "error" in rows[0]:
        return {"input": entry.describe(batch, extent), "error": f"plain: {rows[0]['error']}"}
    schedule, timeline = store_all_timeline(network.model.training, network.model.costs)
    lines = {"plain": _line(network.model.costs, schedule, timeline)}

    def add(name: str, point: Point | None, *, counted: bool = False) -> None:
        tell(f"running {name}")
        if point is None:
            rows.append({"method": name, "error": "no plan found"})
            return
        plan = network.plan(point.solution, solver, counted=counted)
        known = {
            "predicted_s": (plain_ns + point.solution.objective_ns) / 1e9,
            "overhead": point.overhead,
            "plan_nbytes": point.peak_nbytes - (network.uncounted_nbytes if counted else 0),
            "plan_s": round(point.seconds, 2),
            "bound": plan.certificate.bound_ns / plain_ns if plan.certificate.bound_class else None,
        }
        rows.append(row(name, network, settings, network.planned(plan), **known))
        lines[name] = _line(plan.costs, plan.schedule, plan.timeline)

    tell("the ogc strategy")
    theirs = strategy(network.problem, "ogc")
    add(STRATEGY, theirs)
    tradeoff = Tradeoff(network.problem, solver)
    tell("the smallest memory")
    add(MINIMUM, tradeoff.smallest())
    if published is not None:
        tell("published memory")
        plain_nbytes = rows[0].get("activation_nbytes", network.plain_nbytes)  # the planned graph may hold less
        add(MATCHED_MEMORY, tradeoff.within(int(plain_nbytes * published.remaining)))
    tell("memory of the ogc strategy")
    add(STRATEGY_MEMORY, tradeoff.within(theirs.peak_nbytes))
    if published is not None:
        tell("published time")
        add(MATCHED_TIME, tradeoff.least_memory(published.overhead, settings.solves))
    tell("time of the ogc strategy")
    add(STRATEGY_TIME, tradeoff.least_memory(theirs.overhead, settings.solves))
    by_count = Tradeoff(network.counted, solver)
    if published is not None:
        tell("published time, by the published count")
        add(COUNTED_MATCHED_TIME, by_count.least_memory(published.overhead, settings.solves), counted=True)
    tell("time of the ogc strategy, by the published count")
    add(COUNTED_STRATEGY_TIME, by_count.least_memory(theirs.overhead, settings.solves), counted=True)
    if settings.alternatives:
        apply = methods(network.module, fake=place.fake, budgets=settings.budgets, backend=settings.backend)
        for name, method in apply.items():
            tell(name)
            with nullcontext() if place.fake else network.active(), restored(network.module):
                found = row(name, network, settings, method(network.module))
            rows.append(found)
            if "error" not in found:
                added = overhead_of_calls(found, rows[0])
                if added is not None:
                    found |= {"overhead": added, "predicted_s": plain_ns / 1e9 * (1 + added)}
                tell(f"memory of {name}")
                add(ours_within(name), tradeoff.within(found["activation_nbytes"] - LOSS_NBYTES))
    return {
        "input": entry.describe(batch, extent),
        "ops": len(network.model.training.ops),
        "trace_s": round(trace_s, 1),
        "floor_nbytes": network.problem.floor_nbytes,
        "counted_floor_nbytes": network.counted.floor_nbytes - network.uncounted_nbytes,
        "input_nbytes": network.accumulating.training.stationary.input_nbytes,
        "rows": rows,
        "points": [
            {"peak_nbytes": point.peak_nbytes, "overhead": point.overhead, "seconds": round(point.seconds, 2)}
            for point in sorted(tradeoff.points, key=lambda point: point.peak_nbytes)
        ],
        "timelines": {name: lines[name] for name in ("plain", STRATEGY, STRATEGY_TIME) if name in lines},
    }


def _line(costs: Sequence[OpCost], schedule: Schedule, timeline: Timeline) -> list[tuple[float, int]]:
    """Milliseconds and activation bytes (10^6): of SAMPLES equal parts of a step, each one's largest."""
    now, starts = 0, []
    for step in schedule:
        starts.append(now)
        if step.kind is StepKind.BACKWARD:
            now += costs[step.index].backward_ns
        elif step.kind is not StepKind.FREE:
            now += costs[step.index].forward_ns
    largest = [0] * SAMPLES
    ends = [*starts[1:], now]
    for start, end, nbytes in zip(starts, ends, timeline.activation_nbytes, strict=True):
        first, last = (min(SAMPLES - 1, moment * SAMPLES // max(1, now)) for moment in (start, end))
        for part in range(first, last + 1):
            largest[part] = max(largest[part], nbytes)
    return [(round(part * now / SAMPLES / 1e6, 2), round(nbytes / 1e6)) for part, nbytes in enumerate(largest)]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that `models.benchmark` hands on."""
    parser.add_argument(
        "--device",
        type=device,
        default=FAKE,
        help="cuda:0, cpu, or fake (default): the real programs on tensors without memory",
    )
    parser.add_argument(
        "--roofline",
        choices=DEVICES,
        metavar="DEVICE",
        help="device whose datasheet gives times; on fake tensors rtx2080ti unless given, else measured",
    )
    parser.add_argument("--small", action="store_true", help="the zoo's small sizes, which fit a CPU")
    parser.add_argument("--effort", choices=EFFORTS, default="fast", help="of the planner (default %(default)s)")
    parser.add_argument(
        "--solves", type=count_or_none, default=SOLVES, help="plans to find a time (default %(default)s)"
    )
    parser.add_argument("--steps", type=count, default=STEPS, help="steps timed (default %(default)s)")
    parser.add_argument("--warm-up", type=count_or_none, default=WARM_UP, help="of them left out (default %(default)s)")
    parser.add_argument("--compile-budgets", type=fractions, default=COMPILE_BUDGETS, help="(default %(default)s)")
    parser.add_argument("--backend", default="aot_eager", help="of torch.compile (default %(default)s)")
    parser.add_argument("--no-alternatives", action="store_true", help="leave out what PyTorch itself offers")


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, if they agree with each other."""
    options = parser.parse_args(arguments)
    if options.steps <= options.warm_up:
        parser.error(
            f"--steps {options.steps} leaves none to time after --warm-up {options.warm_up}; "
            f"write --steps {options.warm_up + 1} or more, or a smaller --warm-up"
        )
    return options


def place_of(options: argparse.Namespace) -> Place:
    """Where and by which times."""
    return Place(options.device, options.roofline or ("rtx2080ti" if options.device == FAKE else None))


def settings_of(options: argparse.Namespace) -> Settings:
    """The options as settings."""
    return Settings(
        options.small,
        options.effort,
        options.solves,
        options.steps,
        options.warm_up,
        options.compile_budgets,
        options.backend,
        not options.no_alternatives,
    )


def main(arguments: Sequence[str] | None = None, write: Callable[[str], Any] = print) -> int:
    """Measure the network that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=ZOO)
    add_options(parser)
    options = parsed(parser, arguments)

    def tell(what: str) -> None:
        write(json.dumps({"next": what}))
        sys.stdout.flush()

    entry, settings = ZOO[options.name], settings_of(options)
    published = published_at(entry.name, entry.describe(*size_of(entry, settings)))
    tell("compiling")
    prepare_kernels()  # on a fresh machine; no part of a plan's seconds
    try:
        found = benchmark(entry, place_of(options), settings, published, tell)
    except OgcPlanError as error:
        print(f"{entry.name}: {error}", file=sys.stderr)
        return error.exit_code
    write(json.dumps({"result": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
