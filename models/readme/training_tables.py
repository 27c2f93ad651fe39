"""The page's tables of training runs, made from the committed results."""

from __future__ import annotations

from typing import Any

from models import pytorch_planning_time
from models.cuda import reserved_table, tight_table
from models.cuda.snapshots.table import summary
from models.reporting.result_table import megabytes
from models.training.report import ways
from models.training.vgg16_memory import held_table

TITLES = {"vgg16": "VGG16 with two classes and dropout", "resnet110": "ResNet-110"}


def tutorials(records: dict[str, dict[str, Any]]) -> str:
    """Each tutorial's network trained in every way, and the memory of the VGG16 step at its own size."""
    parts = []
    for name, record in records.items():
        size = record["size"]
        parts += [f"{TITLES[name]}, batch {record['course']['batch']}, images {size}x{size}:", ways(record)]
    parts += [
        "One VGG16 step at batch 64 of 224x224, work of the plain one = 1:",
        held_table(records["vgg16"]["memory"]),
    ]
    return "\n\n".join(parts)


def reserved_bytes(record: dict[str, Any]) -> str:
    """What plans reserve of a card: the summary."""
    return reserved_table.summary(record["rows"], record["on"]["card"])


def host_times(record: dict[str, Any]) -> str:
    """The processor time of launching planned steps, in one sentence."""
    shares = [share for row in record["rows"] for share in row["of_eager"].values()]
    networks = ", ".join(dict.fromkeys(row["network"] for row in record["rows"]))
    return (
        f"To launch a planned step takes {min(shares):.2f} to {max(shares):.2f} times the processor time of eager's: "
        f"{networks}, storing all and at 60%, in {' and '.join(dict.fromkeys(r['precision'] for r in record['rows']))}."
    )


def replayed(record: dict[str, Any]) -> str:
    """What the model of the allocator gives of what real ones recorded."""
    return summary(record["rows"])


def tight_cards(record: dict[str, Any]) -> str:
    """Networks on a card of their budget."""
    return tight_table.report(record["rows"], record["on"]["card"])


def planning_times(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Seconds of planning two networks, before repeated work was cut and after."""
    return pytorch_planning_time.before_and_after(before["rows"], after["rows"])


def first_day(record: dict[str, Any]) -> str:
    """What the first run on a card found, in sentences."""
    stages = {name: stage["found"] or {} for name, stage in record["stages"].items()}
    on = stages["environment"]
    rows = [row for name in ("memory", "memory_expandable") for row in stages[name]["rows"] if "predicted" in row]
    apart = {
        kind: [abs(row["measured"][f"{kind}_nbytes"] - row["predicted"][f"{kind}_nbytes"]) for row in rows]
        for kind in ("requested", "reserved")
    }
    plans = [found for row in stages["bits"]["rows"] for found in row["plans"].values()]
    equal = sum(not found.get("unequal", True) for found in plans)
    capped = [row for name in ("cap", "cap_expandable") for row in stages[name]["rows"] if "budget_nbytes" in row]
    trained = sum(row["planned_reserved_nbytes"] is not None for row in capped)
    without = sum(row["eager_capped_reserved_nbytes"] is None for row in capped)
    named = " and ".join(dict.fromkeys(row["network"] for row in rows))
    return (
        f"{on['card']}, torch {on['torch']}: {apart['requested'].count(0)} of {len(rows)} plans of {named} ask for the "
        f"predicted bytes. {apart['reserved'].count(0)} reserve the predicted bytes, the others at most "
        f"{megabytes(max(apart['reserved']))} MB less or more. Training by {equal} of {len(plans)} plans leaves the "
        f"bits of eager training. Of {len(capped)} caps at the budget, eager training runs out of memory under "
        f"{without}; planned training runs under {trained}."
    )
