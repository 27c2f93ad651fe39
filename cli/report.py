"""A plan as data, and what its options left without effect."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from ..planner.display.plan_report import not_covered, parts_at_peak
from ..planner.plan_file.record import Plan
from ..planner.plan_file.writer import to_json

_HEAVY = ("schedule", "timeline", "storages", "gradients", "outputs", "seeds", "ops", "modules", "keep")


def without_effect(plan: Plan, keep: Iterable[str], recompute: Iterable[str]) -> list[str]:
    """A sentence for every glob that matches nothing that the plan keeps or recomputes."""
    graph = plan.graph
    kept, runs = set(plan.kept), plan.recomputed
    again = {storage for op in graph.ops if op.name in runs for storage in op.writes}
    idle = []
    for glob in keep:
        if not any(graph.storages[storage].name in kept for storage in _matched(plan, glob)):
            idle.append(f"--keep {glob!r} has no effect: no backward waits for what it matches")
    for glob in recompute:
        if not again.intersection(_matched(plan, glob)):
            idle.append(f"--recompute {glob!r} has no effect: nothing that it matches is needed again")
    return idle


def _matched(plan: Plan, glob: str) -> list[int]:
    """The storages of the tensors whose name matches."""
    return [
        storage for storage, names in enumerate(plan.graph.aliases) if any(fnmatchcase(name, glob) for name in names)
    ]


def summary(plan: Plan, written: str | None) -> dict[str, Any]:
    """The plan without its step lists, keys as in the plan file, bytes and nanoseconds."""
    whole = to_json(plan)
    head = {key: value for key, value in whole.items() if key not in _HEAVY}
    parts = {
        name.replace(" + ", "_and_").replace(" ", "_"): n for name, n in parts_at_peak(plan, plan.timeline).items()
    }
    head |= {
        "at_total_peak_nbytes": parts,
        "ops": len(plan.graph.ops),
        "steps": len(plan.schedule),
        "kept": len(plan.kept),
        "effort": plan.certificate.effort,
        "not_covered": not_covered(plan.graph, plan.budget.optimizer),
        "written": written,
    }
    return head
