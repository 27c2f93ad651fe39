"""What every emitted save-list says of itself: the plan, the peak predicted anew, the time."""

from __future__ import annotations

from typing import Any

from ...planner.units import format_both
from ..torch_checkpoint.emit import PEAKS as PEAKS
from .rounding import Rounded


def prediction(emission: Rounded) -> dict[str, Any]:
    """The prediction for the step, and the plan it was made for, in bytes and nanoseconds."""
    plan, made, unwrapped = emission.plan, emission.made, emission.unwrapped
    return {
        "model": {"file": plan.model.file, "fingerprint": plan.model.fingerprint},
        "budget": {"text": plan.budget.text, "nbytes": plan.budget.nbytes, "scope": plan.budget.scope},
        "peak": {
            "total_nbytes": made.peak_total_nbytes,
            "activation_nbytes": made.peak_activation_nbytes,
            "unwrapped_total_nbytes": unwrapped.peak_total_nbytes,
            "unwrapped_activation_nbytes": unwrapped.peak_activation_nbytes,
        },
        "time": {
            "recompute_ns": made.recompute_ns,
            "store_all_ns": plan.time.store_all_ns,
            "overhead": round(emission.overhead, 9),
            "overhead_of_plan": round(plan.time.overhead, 9),
            "source": plan.time.source,
        },
    }


def header(head: str, emission: Rounded) -> str:
    """The head of a Python file, with the promise as a comment below it."""
    budget = emission.plan.budget
    promise = f"{format_both(emission.peak_nbytes)} predicted, {format_both(budget.nbytes)} asked for"
    return f"{head}# {PEAKS[budget.scope]}: {promise}; {emission.overhead:.2%} more time predicted.\n"


def prediction_line(emission: Rounded) -> str:
    """The prediction as a Python literal in ASCII: names come from files, and nothing in them may end a line."""
    return f"PREDICTION = {prediction(emission)!a}\n"
