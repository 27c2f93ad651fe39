"""The tables of trained networks, made from results files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from models.reporting.result_table import compact, megabytes, table

NAMES = {
    "resnet50": "ResNet-50",
    "densenet121": "DenseNet-121",
    "inception_v3": "Inception-v3",
    "unet": "U-Net",
    "gpt": "GPT-2 style",
    "bert": "BERT style",
    "vit": "ViT",
    "llama": "Llama style",
    "t5": "T5 style",
    "convnext": "ConvNeXt",
    "lstm": "LSTM classifier",
    "lstm_onednn": "LSTM classifier, oneDNN",
}


CASE_NAMES = {"resnet50": "ResNet-50", "gpt": "GPT, 12 layers, dropout", "unet": "U-Net, group norm"}


def _differences(row: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """(measured minus predicted bytes, predicted bytes) of every peak under every meter."""
    for peaks in row["measured"].values():
        for pair in (peaks or {}).values():
            if pair:
                yield pair["measured_nbytes"] - pair["predicted_nbytes"], pair["predicted_nbytes"]


def all_equal(parts: dict[str, Any]) -> bool:
    """Whether every part of one comparison with eager is equal."""
    return all(value for value in parts.values() if isinstance(value, bool))


def equal(row: dict[str, Any]) -> bool:
    """Whether everything was equal to eager after every training."""
    return all(map(all_equal, row["equal"].values()))


def peak(row: dict[str, Any]) -> str:
    """The activation peak by the allocator in MB, or why there is none."""
    if row["measured"] is None:
        if row["infeasible"] is None:
            return "refused"
        floor = megabytes(row["infeasible"]["floor_nbytes"])
        return f"impossible, floor {floor}" if row["infeasible"]["proven"] else "none found"
    found = row["measured"]["allocator"]["activations"] or row["measured"]["storages"]["activations"]
    return megabytes(found["measured_nbytes"])


def worst(rows: list[dict[str, Any]]) -> str:
    """The largest difference from a prediction, under any meter."""
    found = max((pair for row in rows for pair in _differences(row)), key=lambda pair: abs(pair[0]), default=(0, 1))
    return f"{found[0]:+,} B ({100 * found[0] / found[1]:+.3f}%)" if found[0] else "0 B"


def _planned(record: dict[str, Any], case: str) -> dict[str, dict[str, Any]]:
    """The rows of one case that were planned in memory, by budget."""
    return {row["budget"]: row for row in record["rows"] if row["case"] == case and row["via"] == "memory"}


def _measured(name: str, eager: dict[str, Any], rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[str]:
    """A network's peaks, eager and at each budget, its largest difference from a prediction, and its bits."""
    done = [row for row in (*rows, *more) if row["measured"] is not None]
    whole = eager["allocator"].get("activation_nbytes") or eager["storages"]["activation_nbytes"]
    peaks = [f"{peak(row)} ({row['time_ratio']:.2f})" if row["time_ratio"] else peak(row) for row in rows]
    return [name, megabytes(whole), *peaks, worst(done), "equal" if all(map(equal, done)) else "UNEQUAL"]


def executor(record: dict[str, Any]) -> str:
    """Measured peaks and times of planned steps in one line a network."""
    header = ["activations of one step, MB (time, eager = 1)", "eager"]
    header += dict.fromkeys(row["budget"].replace("min", "smallest found") for row in record["rows"])
    lines = [
        _measured(CASE_NAMES[case], eager, list(_planned(record, case).values()), [])
        for case, eager in record["eager"].items()
    ]
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
            pairs = [meters[meter]["activations"] for meter in ("storages", "allocator")]
            pairs.append(meters["allocator_accumulating"]["total"])
            shown = [f"{pair['measured_nbytes'] - pair['predicted_nbytes']:+d} B" if pair else "-" for pair in pairs]
            predicted_mb = f"{(pairs[1] or pairs[0])['predicted_nbytes'] / 1e6:.3f}"
            when = ", ".join(name for name, found in row["equal"].items() if all_equal(found))
            cells = [CASE_NAMES[case], budget, predicted_mb, *shown, when, str(row["recomputed_ops"])]
            lines.append([*cells, f"{1 + row['overhead']:.2f}", f"{row['time_ratio'] or 0:.2f}"])
    sizes = "; ".join(f"{CASE_NAMES[case]}: {found['sizes']}" for case, found in record["eager"].items())
    where = f" {record['device']}; PyTorch {record['versions']['torch']}." if "device" in record else ""
    return f"{compact(header, lines)}\n\n{sizes}.{where}"


def executor_report(record: dict[str, Any]) -> str:
    """Both tables, what they show, and what is not as it should be, as Markdown."""
    told = (
        "Activation peaks of one step, MB (10^6 bytes); measured minus predicted in bytes, of activations by both\n"
        "meters and of the total with `.grad` present. Equal in every bit: losses, gradients of inputs and parameters, "
        "buffers,\nparameters, generator states. Times are multiples of the eager step."
    )
    failures = [f"- {row['case']} at {row['budget']}: {text}" for row in record["rows"] for text in row["failures"]]
    verdict = "\n".join(["Not as it should be:", "", *failures]) if failures else "Nothing is not as it should be."
    return "\n\n".join((told, executor(record), predicted(record), verdict))


def overview(networks: dict[str, Any]) -> str:
    """One line a network: measured peaks at each budget, differences from what was predicted, and the bits."""
    budgets = next(([row["budget"] for row in found["rows"]] for found in networks.values()), [])
    header = ["network", "eager", *budgets, "off by at most", "bits", "falling budgets"]
    lines = []
    for name, found in networks.items():
        cells = _measured(NAMES[name], found, found["rows"], found["falling"])
        cells.append("RISES" if found["rises"] else f"{len(found['falling'])}, never rises")
        lines.append(cells)
    return table(header, lines)


def sweep(networks: dict[str, Any]) -> str:
    """Measured activation peaks at the falling budgets, and the recomputation each plan predicts."""
    count = max((len(found["falling"]) for found in networks.values()), default=0)
    lines = []
    for name, found in networks.items():
        cells = [f"{peak(row)} (+{100 * row['overhead']:.0f}%)" for row in found["falling"]]
        lines.append([NAMES[name], *cells, *["-"] * (count - len(cells))])
    return table(["network", *map(str, range(1, count + 1))], lines)


def troubles(networks: dict[str, Any]) -> list[str]:
    """What is not as it should be, in words."""
    lines = []
    for name, found in networks.items():
        lines += [f"- {NAMES[name]}: {text}" for text in found["rises"]]
        for row in (*found["rows"], *found["falling"]):
            lines += [f"- {NAMES[name]} at {row['budget']}: {text}" for text in row["failures"]]
    return lines


def report(networks: dict[str, Any]) -> str:
    """Everything as Markdown."""
    sizes = "\n".join(f"- {NAMES[name]}: {found['sizes']}" for name, found in networks.items())
    steps = ", ".join(sorted({str(found["steps"]) for found in networks.values()}))
    first = (
        "Activation peaks of one training step by the allocator's record, in MB (10^6 bytes). Off: measured minus\n"
        "predicted, the largest over all budgets, both meters, activations and totals, with and without `.grad`\n"
        f"present. Bits: losses, gradients, buffers, parameters and generator states after 1 and {steps} steps of\n"
        "AdamW and after accumulating over two; at the falling budgets after one step."
    )
    second = "Peaks at ten budgets that fall evenly to the smallest peak found, and the recomputation predicted."
    found = troubles(networks)
    verdict = "\n".join(["Not as it should be:", "", *found]) if found else "Nothing is not as it should be."
    return "\n\n".join((sizes, first, overview(networks), second, sweep(networks), verdict))
