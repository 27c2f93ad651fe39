"""The pages' tables of the PyTorch adapter, made from the committed results."""

from __future__ import annotations

from typing import Any

from models.fidelity.tables import all_equal, equal, peak, worst
from models.reporting.result_table import compact, megabytes

NAMES = {"resnet50": "ResNet-50", "gpt": "GPT, 12 layers, dropout", "unet": "U-Net, group norm"}


def _planned(record: dict[str, Any], case: str) -> dict[str, dict[str, Any]]:
    """The rows of one case that were planned in memory, by budget."""
    return {row["budget"]: row for row in record["rows"] if row["case"] == case and row["via"] == "memory"}


def executor(record: dict[str, Any]) -> str:
    """Measured peaks and times of planned steps in one line a network."""
    budgets = ("store-all", "60%", "40%", "30%", "min")
    header = ["activations of one step, MB (time, eager = 1)", "eager", *budgets[:-1], "smallest found"]
    lines = []
    for case in record["eager"]:
        rows = _planned(record, case)
        cells = [NAMES[case], megabytes(record["eager"][case]["allocator"]["activation_nbytes"])]
        for row in (rows[budget] for budget in budgets):
            time = "" if row["measured"] is None else f" ({row['time_ratio']:.2f})"
            cells.append(f"{peak(row)}{time}")
        done = [row for row in rows.values() if row["measured"] is not None]
        lines.append([*cells, worst(done), "equal" if all(map(equal, done)) else "UNEQUAL"])
    return compact([*header, "measured minus predicted, largest", "bits"], lines)


def predicted(record: dict[str, Any]) -> str:
    """Each budget of each network: predicted and measured, what was equal, time."""
    header = ["network", "budget", "predicted MB", "measured, tensors", "measured, allocator"]
    header += ["total with `.grad`, allocator", "equal to eager after", "recomputed ops", "predicted time", "measured"]
    lines = []
    for case in record["eager"]:
        for budget, row in _planned(record, case).items():
            if row["measured"] is None:
                continue
            meters = row["measured"]
            activations = [meters[meter]["activations"] for meter in ("storages", "allocator")]
            total = meters["allocator_accumulating"]["total"]
            shown = [f"{pair['measured_nbytes'] - pair['predicted_nbytes']:+d} B" for pair in (*activations, total)]
            when = ", ".join(name for name, found in row["equal"].items() if all_equal(found))
            cells = [NAMES[case], budget, f"{activations[1]['predicted_nbytes'] / 1e6:.3f}", *shown, when]
            cells += [str(row["recomputed_ops"]), f"{1 + row['overhead']:.2f}", f"{row['time_ratio']:.2f}"]
            lines.append(cells)
    sizes = "; ".join(f"{NAMES[case]}: {found['sizes']}" for case, found in record["eager"].items())
    told = f"{sizes}. {record['device']}; PyTorch {record['versions']['torch']}."
    return f"{compact(header, lines)}\n\n{told}"
