"""The tables of trained networks, made from results files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from models.reporting.result_table import megabytes, table

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
    return megabytes(row["measured"]["allocator"]["activations"]["measured_nbytes"])


def worst(rows: list[dict[str, Any]]) -> str:
    """The largest difference from a prediction, under any meter."""
    found = max((pair for row in rows for pair in _differences(row)), key=lambda pair: abs(pair[0]), default=(0, 1))
    return f"{found[0]:+,} B ({100 * found[0] / found[1]:+.3f}%)" if found[0] else "0 B"


def _off(row: dict[str, Any], meter: str) -> str:
    """Measured minus predicted bytes: activations / total / total with ``.grad`` present."""
    first, accumulating = row["measured"][meter], row["measured"][f"{meter}_accumulating"]
    pairs = (first["activations"], first["total"], accumulating["total"])
    return " / ".join(f"{p['measured_nbytes'] - p['predicted_nbytes']:+,}" if p else "-" for p in pairs)


def _verdict(row: dict[str, Any]) -> str:
    if row["failures"]:
        return "; ".join(row["failures"])
    if row["infeasible"] is None:
        return "ok"
    found = row["infeasible"]
    said = "proven infeasible" if found["proven"] else "no plan found"
    if found["smallest_nbytes"] is None:
        return said
    floor, smallest = megabytes(found["floor_nbytes"]), megabytes(found["smallest_nbytes"])
    return f"{said}: floor {floor} MB, smallest found {smallest} MB"


def _line(row: dict[str, Any], on_cuda: bool) -> list[str]:
    start, end = [row["case"], row["budget"], row["via"]], [f"{row['plan_s']:.0f} s", _verdict(row)]
    found = row["measured"]
    if found is None:
        return [*start, *["-"] * (11 if on_cuda else 9), *end]
    shown = found["allocator"]["activations"] or found["storages"]["activations"]
    sizes = (row["budget_nbytes"], shown["predicted_nbytes"], shown["measured_nbytes"])
    cells = ["-" if nbytes is None else megabytes(nbytes) for nbytes in sizes]
    cells += [_off(row, "allocator"), _off(row, "storages")]
    if on_cuda:
        cells += [megabytes(found["cuda"][f"{kind}_nbytes"]) for kind in ("allocated", "reserved")]
    cells.append(", ".join(when for when, parts in row["equal"].items() if all_equal(parts)) or "nothing")
    cells += [str(row["recomputed_ops"]), f"+{100 * row['overhead']:.1f}%"]
    return [*start, *cells, "-" if row["time_ratio"] is None else f"{row['time_ratio']:.2f}", *end]


def details(networks: dict[str, Any]) -> str:
    """One line for each network and budget, with what the columns mean."""
    rows = [row for found in networks.values() for row in found["rows"]]
    on_cuda = any(row["measured"] and row["measured"]["cuda"] for row in rows)
    header = ["case", "budget", "via", "budget MB", "predicted MB", "measured MB", "allocator, B", "storage meter, B"]
    header += ["allocated MB", "reserved MB"] if on_cuda else []
    header += ["equal to eager after", "recomputed ops", "predicted", "step time", "planned", "verdict"]
    sizes = []
    for name, found in networks.items():
        eager = found["allocator"].get("activation_nbytes") or found["storages"]["activation_nbytes"]
        sizes.append(f"- {name}: {found['sizes']}; eager {megabytes(eager)} MB")
    text = (
        "MB (10^6 bytes) are activation peaks of one step; B is measured minus predicted, in bytes, of activations /\n"
        "total / total with `.grad` present. Equal in every bit: losses, gradients of inputs and parameters, buffers,\n"
        "parameters, generator states. Step time is a multiple of the eager step, next to the recomputation predicted."
    )
    return "\n\n".join(("\n".join(sizes), text, table(header, [_line(row, on_cuda) for row in rows])))


def overview(networks: dict[str, Any]) -> str:
    """One line a network: measured peaks at each budget, differences from what was predicted, and the bits."""
    budgets = next(([row["budget"] for row in found["rows"]] for found in networks.values()), [])
    header = ["network", "eager", *budgets, "off by at most", "bits", "falling budgets"]
    lines = []
    for name, found in networks.items():
        done = [row for row in (*found["rows"], *found["falling"]) if row["measured"] is not None]
        cells = [NAMES[name], megabytes(found["allocator"]["activation_nbytes"])]
        cells += [peak(row) for row in found["rows"]]
        cells += [worst(done), "equal" if all(map(equal, done)) else "UNEQUAL"]
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
