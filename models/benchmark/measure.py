"""Plan, run and meter one network, and print the result as JSON; `models.benchmark` gives each network a process."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

from ogc_plan.planner.solver import Solver
from ogc_plan.planner.strategies.optimal.warm_up import prepare_kernels

from models.benchmark.memory import gradient_difference, measure
from models.benchmark.network import FAKE, PREDICTED, Network, Place
from models.benchmark.published import Published, published_at
from models.benchmark.search import Point, Tradeoff, strategy
from models.zoo import ZOO, Entry

MATCHED_MEMORY, MATCHED_TIME = "ours, published memory", "ours, published time"
STRATEGY = "ogc strategy"
STRATEGY_MEMORY, STRATEGY_TIME = "ours, memory of the ogc strategy", "ours, time of the ogc strategy"
MINIMUM = "ours, minimum"
COUNTED_MATCHED_TIME = "ours for the published count, published time"
COUNTED_STRATEGY_TIME = "ours for the published count, time of the ogc strategy"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how networks are measured.

    ``solves`` plans are made at most to find the smallest memory within a time. On a real device ``steps`` are timed,
    of which the first, ``warm_up``, are left out, as published.
    """

    device: str = FAKE
    small: bool = False
    effort: str = "fast"
    solves: int = 4
    steps: int = 100
    warm_up: int = 30

    @property
    def place(self) -> Place:
        """Where networks run and by which times."""
        return PREDICTED if self.device == FAKE else Place(self.device)

    def size_of(self, entry: Entry) -> tuple[int, int]:
        """Batch and extent."""
        return (entry.small_batch, entry.small_extent) if self.small else (entry.batch, entry.extent)


def benchmark(entry: Entry, settings: Settings, published: Published | None) -> dict[str, Any]:
    """Every way to train one network."""
    (batch, extent), build = settings.size_of(entry), entry.build_small if settings.small else entry.build
    started = time.perf_counter()
    network = Network(entry.name, lambda: build(extent), lambda: entry.inputs(batch, extent), settings.place)
    trace_s = time.perf_counter() - started
    solver = Solver(effort=settings.effort)
    plain_ns = network.problem.store_all_ns
    rows: list[dict[str, Any]] = []

    def row(name: str, module: Any, **known: Any) -> None:
        found = measure(network, module, steps=settings.steps, warm_up=settings.warm_up)
        difference = gradient_difference(network, module)
        rows.append({"method": name, **asdict(found), "gradient_difference": difference, **known})

    def add(name: str, point: Point | None, *, counted: bool = False) -> None:
        if point is None:
            rows.append({"method": name, "error": "no plan found"})
            return
        plan = network.plan(point.solution, solver, counted=counted)
        row(
            name,
            network.planned(plan),
            predicted_s=(plain_ns + point.solution.objective_ns) / 1e9,
            overhead=point.overhead,
            plan_nbytes=point.peak_nbytes - (network.uncounted_nbytes if counted else 0),
            plan_s=round(point.seconds, 2),
            bound=plan.certificate.bound_ns / plain_ns if plan.certificate.bound_class else None,
        )

    row("plain", network.module, predicted_s=plain_ns / 1e9, overhead=0.0, plan_nbytes=None)
    theirs = strategy(network.problem, "ogc")
    add(STRATEGY, theirs)
    tradeoff = Tradeoff(network.problem, solver)
    add(MINIMUM, tradeoff.smallest())
    if published is not None:
        plain_nbytes = rows[0].get("activation_nbytes", network.plain_nbytes)  # the planned graph may hold less
        add(MATCHED_MEMORY, tradeoff.within(int(plain_nbytes * published.remaining)))
    add(STRATEGY_MEMORY, tradeoff.within(theirs.peak_nbytes))
    by_count = Tradeoff(network.counted, solver)
    for overhead, name, name_counted in (
        (None if published is None else published.overhead, MATCHED_TIME, COUNTED_MATCHED_TIME),
        (theirs.overhead, STRATEGY_TIME, COUNTED_STRATEGY_TIME),
    ):
        if overhead is not None:
            add(name, tradeoff.least_memory(overhead, settings.solves))
            add(name_counted, by_count.least_memory(overhead, settings.solves), counted=True)
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
    }


def main(name: str, given: str) -> None:
    """Measure a network with `Settings` in JSON; one that fails has the reason for a result."""
    entry, settings = ZOO[name], Settings(**json.loads(given))
    published = published_at(name, entry.describe(*settings.size_of(entry)))
    prepare_kernels()  # on a fresh machine; no part of a plan's seconds
    try:
        found = benchmark(entry, settings, published)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
