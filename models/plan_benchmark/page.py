"""The page of results of the plan benchmark, made of its record and of nothing else."""

from __future__ import annotations

from typing import Any

from models.plan_benchmark.cells import retried
from models.plan_benchmark.extent import BASE, HARDER
from models.plan_benchmark.tables import beaten, fixed, harder, legend, others, overheads, summary, wide
from models.plan_benchmark.time_tables import differences, graphs, sizes, totals


def page(record: dict[str, Any]) -> str:
    """All tables in Markdown, with what they show and how it was measured."""
    results = record["networks"]
    parts = [
        f"`{record['command']}` on {record['machine']}",
        "Budgets are shares of the activation peak of a step that stores everything; `min` is the smallest peak "
        "found, given before its overhead. Overheads are recomputation in % of such a step.",
        record["extent"],
        "## `optimal`: overhead (gap to the proven bound)",
        overheads(results),
        legend(results),
        summary(results),
        wide(results),
    ]
    if retried(results):
        parts += [
            f"## Where effort `{BASE}` misses the target: with `--effort {HARDER}`",
            f"CPU seconds of a solve from nothing, its preparation included; up to {record['jobs']} graphs were "
            "planned at a time.",
            harder(results),
        ]
    parts += [
        "## The best other strategy within the same budget",
        beaten(results),
        others(results),
        "## Seconds of a plan, and memory",
    ]
    if "times" in record["measured"]:
        cpu = f"`min`: CPU seconds of a solve from nothing, while up to {record['jobs']} graphs were planned at a time."
        parts += [record["measured"]["times"], totals(results), sizes(results), differences(results)]
        parts += [cpu, graphs(results)]
    else:
        parts.append("Not measured in this run.")
    parts += ["## Strategies without a budget: own peak and overhead, and `optimal` within that peak", fixed(results)]
    return "\n\n".join(part for part in parts if part) + "\n"
