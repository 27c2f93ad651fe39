"""How far the times of ``ogc-plan profile`` are from PyTorch's, on networks that the ratios were not made of.

python -m models.profiles.agreement -o models/results/profile_agreement.json

Each network is exported and profiled by ONNX Runtime with one thread. The module of the same file is trained a step in
PyTorch, and each of its calls is timed alone, forward and backward. Misplaced is the part of the step's time that the
profile, or a roofline, gives to other ops than PyTorch does: half the sum of the differences of all shares. Plans at
60% are made by the profile and by a roofline; the time that each adds is taken from the times of PyTorch's calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ogc_plan.adapters.onnxruntime.op_times import profile
from ogc_plan.adapters.pytorch import from_onnx
from ogc_plan.planner import Plan, load_model, plan
from ogc_plan.planner.costs.devices import DEVICES
from ogc_plan.planner.costs.roofline import roofline

from models.profiles.networks import JUDGED, file_of, run
from models.profiles.torch_ops import CallTime, call_times, step_ns
from models.reporting.result_table import compact

BUDGET = "60%"
ROOFLINES = ("cpu", "h200")


def misplaced(mine: Mapping[str, float], real: Mapping[str, float]) -> float:
    """The part of the time that one estimate gives to other ops than another, over the ops that both know."""
    names = mine.keys() & real.keys()
    sums = [sum(times[name] for name in names) for times in (mine, real)]
    return sum(abs(mine[name] / sums[0] - real[name] / sums[1]) for name in names) / 2


def added(made: Plan, times: Mapping[str, CallTime]) -> float:
    """The time that a plan adds to a step, by the times of PyTorch's calls."""
    again = sum(times[name].forward_ns * runs for name, runs in made.recomputed.items() if name in times)
    return again / sum(sum(took) for took in times.values())


def measured(name: str, folder: Path) -> dict[str, Any]:
    """The figures of one network."""
    path = file_of(name, folder)
    model, module = load_model(path), from_onnx(path)
    assert model.graph is not None
    timed, arguments = profile(model, str(path), threads=1), module.example_arguments()
    took, calls = step_ns(module, arguments), call_times(module, arguments)
    real = {op.name: float(sum(calls[op.name])) for op in model.training.ops if sum(calls.get(op.name, ()))}
    estimates = {"profile": {op.name: op.forward_ns + op.backward_ns for op in timed.ops}}
    for device in ROOFLINES:
        costs = roofline(model.graph, model.training, DEVICES[device])
        estimates[device] = {
            op.name: cost.forward_ns + cost.backward_ns for op, cost in zip(model.training.ops, costs, strict=True)
        }
    plans = {"profile": plan(load_model(path, profile=timed), BUDGET), "h200": plan(model, BUDGET)}
    path.unlink()
    return {
        "step_ns": took,
        "profile_step_ns": timed.step_ns,
        "misplaced": {way: misplaced(times, real) for way, times in estimates.items()},
        "plans": {
            way: {"predicted": made.time.overhead, "by_torch": added(made, calls)} for way, made in plans.items()
        },
    }


def report(networks: Mapping[str, Any]) -> str:
    """The table, and how often plans by the profile are the better ones."""
    header = ["network", "step ms", "by the profile", "misplaced: profile", *(f"roofline {way}" for way in ROOFLINES)]
    header += [f"{BUDGET} by the profile: predicted, in PyTorch", f"{BUDGET} by roofline h200"]
    rows = []
    for name, found in networks.items():
        step, here = (found[key] / 1e6 for key in ("step_ns", "profile_step_ns"))
        plans = [f"{one['predicted']:+.1%}, {one['by_torch']:+.1%}" for one in found["plans"].values()]
        shares = [f"{found['misplaced'][way]:.0%}" for way in ("profile", *ROOFLINES)]
        rows.append([name, f"{step:.0f}", f"{here:.0f} ({here / step - 1:+.0%})", *shares, *plans])
    by_torch = [[one["by_torch"] for one in found["plans"].values()] for found in networks.values()]
    better = sum(by_profile <= by_roofline for by_profile, by_roofline in by_torch)
    told = f"In {better} of {len(networks)} the plan by the profile adds no more time in PyTorch than the other one."
    return f"{compact(header, rows)}\n\n{told}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    quantity = "ns, and shares of a step"
    run("models.profiles.agreement", __doc__, JUDGED, measured, report, quantity, arguments)


if __name__ == "__main__":
    main()
