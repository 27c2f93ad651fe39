"""Whether a runtime did what a plan says: its event log, step by step, and its gradients.

The log has one line of JSON for each step of the schedule, see planner/plan_file/README.md. This file reads the plan
as JSON and shares no code with the planner.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.cases import load


def complaints(case: Path) -> list[str]:
    """What is wrong in the files ``log.jsonl`` and ``results.json`` that a runtime left in the folder of a case."""
    lines = (case / "log.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    plan = json.loads((case / "plan.json").read_text(encoding="utf-8"))
    return [*_steps(plan, events), *_gradients(case)]


def _steps(plan: dict[str, Any], events: list[dict[str, Any]]) -> list[str]:
    schedule = plan["schedule"]
    if len(events) != len(schedule):
        return [f"the log has {len(events)} events, the schedule {len(schedule)} steps"]
    stationary = sum(plan["stationary"].values())
    writes = {op["name"]: op["writes"] for op in plan["ops"]}
    storages = {storage["name"] for storage in plan["storages"]}
    alive: set[str] = set()
    for position, ((kind, name), event) in enumerate(zip(schedule, events, strict=True)):
        where = f"step {position} ({kind} {name})"
        if [event["kind"], event["name"]] != [kind, name]:
            return [f"{where}: the runtime ran {event['kind']} {event['name']}"]
        if kind in ("forward", "recompute"):
            alive.update(writes[name])
        elif kind == "free" and name in storages:
            alive.discard(name)
        if set(event["storages"]) != alive:
            return [f"{where}: alive but for the plan {sorted(set(event['storages']) ^ alive)}"]
        if event["nbytes"] + stationary != plan["timeline"]["after_nbytes"][position]:
            wanted = plan["timeline"]["after_nbytes"][position] - stationary
            return [f"{where}: {event['nbytes']} bytes are alive, the plan says {wanted}"]
    return []


def _gradients(case: Path) -> list[str]:
    results, right = load(case / "results.json"), load(case / "expected.json")
    output = next(iter(results["outputs"].values()))
    expected = right["gradients"] | {name: output.T @ seed for name, seed in right.get("of_output", {}).items()}
    wrong = [name for name in expected if not np.array_equal(results["gradients"].get(name), expected[name])]
    return [f"the gradient of {name} is wrong" for name in wrong]
