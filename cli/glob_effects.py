"""Which globs of --keep and --recompute have no effect on a plan."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..planner.plan_file.record import Plan


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
