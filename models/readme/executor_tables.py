"""The pages' tables of the PyTorch adapter, made from the committed results."""

from __future__ import annotations

from typing import Any

NAMES = {"resnet50": "ResNet-50", "gpt": "GPT, 12 layers, dropout", "unet": "U-Net, group norm"}


def _planned(record: dict[str, Any], case: str) -> dict[str, dict[str, Any]]:
    """The rows of one case that were planned in memory, by budget."""
    return {row["budget"]: row for row in record["rows"] if row["case"] == case and row["via"] == "memory"}


def _differences(row: dict[str, Any]) -> list[int]:
    """Measured minus predicted bytes under every meter, first step and with gradients present."""
    meters = [peaks for peaks in row["measured"].values() if peaks is not None]
    return [pair["measured_nbytes"] - pair["predicted_nbytes"] for peaks in meters for pair in peaks.values() if pair]


def _bits(row: dict[str, Any]) -> bool:
    return all(value for found in row["equal"].values() for key, value in found.items() if isinstance(value, bool))


def executor(record: dict[str, Any]) -> str:
    """Measured peaks and times of planned steps in one line a network."""
    budgets = ("store-all", "60%", "40%", "30%", "min")
    header = [
        "activations of one step, MB (time, eager = 1)",
        "eager",
        "store-all",
        "60%",
        "40%",
        "30%",
        "smallest found",
    ]
    lines = [
        "| " + " | ".join([*header, "measured minus predicted, largest", "bits"]) + " |",
        "|---|" + "---|" * 8,
    ]
    for case in record["eager"]:
        rows = _planned(record, case)
        cells = [NAMES[case], f"{record['eager'][case]['allocator']['activation_nbytes'] / 1e6:.1f}"]
        for budget in budgets:
            row = rows[budget]
            if row["measured"] is None:
                floor = row["infeasible"]["floor_nbytes"] / 1e6
                cells.append(f"proven impossible, floor {floor:.1f}" if row["infeasible"]["proven"] else "none found")
            else:
                peak = row["measured"]["allocator"]["activations"]["measured_nbytes"]
                cells.append(f"{peak / 1e6:.1f} ({row['time_ratio']:.2f})")
        done = [row for row in rows.values() if row["measured"] is not None]
        worst = max((difference for row in done for difference in _differences(row)), key=abs, default=0)
        cells += [f"{worst:+,} B" if worst else "0 B", "equal" if all(map(_bits, done)) else "UNEQUAL"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def predicted(record: dict[str, Any]) -> str:
    """Each budget of each network: predicted and measured, what was equal, time."""
    lines = [
        "| network | budget | predicted MB | measured, tensors | measured, allocator | total with `.grad`, allocator"
        " | equal to eager after | recomputed ops | predicted time | measured |",
        "|---|" + "---|" * 9,
    ]
    for case in record["eager"]:
        for budget, row in _planned(record, case).items():
            if row["measured"] is None:
                continue
            meters = row["measured"]
            activations = [meters[meter]["activations"] for meter in ("storages", "allocator")]
            total = meters["allocator_accumulating"]["total"]
            shown = [f"{pair['measured_nbytes'] - pair['predicted_nbytes']:+d} B" for pair in (*activations, total)]
            when = ", ".join(
                name for name, found in row["equal"].items() if all(v is not False for v in found.values())
            )
            predicted_mb = f"{activations[1]['predicted_nbytes'] / 1e6:.3f}"
            cells = [NAMES[case], budget, predicted_mb, *shown, when, str(row["recomputed_ops"])]
            cells += [f"{1 + row['overhead']:.2f}", f"{row['time_ratio']:.2f}"]
            lines.append("| " + " | ".join(cells) + " |")
    sizes = "; ".join(f"{NAMES[case]}: {found['sizes']}" for case, found in record["eager"].items())
    return "\n".join([*lines, "", f"{sizes}. {record['device']}; PyTorch {record['versions']['torch']}."])


def alternatives(record: dict[str, Any]) -> str:
    """What PyTorch users do today, each with a plan at the same peak."""
    lines = [
        "| network | method | peak MB | time | equal to eager | planned to that peak: MB | time | equal |",
        "|---|" + "---|" * 7,
    ]

    def cells(result: dict[str, Any] | None) -> list[str]:
        if result is None:
            return ["-", "-", "-"]
        if "reason" in result:
            return [result["reason"], "-", "-"]
        unequal = [key for key, value in result["equal"].items() if value is False and key != "parameters"]
        same = "all" if not unequal else "not " + ", ".join(key.replace("_", " ") for key in unequal)
        return [f"{result['peak_nbytes'] / 1e6:.1f}", f"{result['time_ratio']:.2f}", same]

    for row in record["rows"]:
        lines.append(
            "| " + " | ".join([NAMES[row["case"]], row["method"], *cells(row["result"]), *cells(row["planned"])]) + " |"
        )
    return "\n".join(lines)
