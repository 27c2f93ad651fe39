"""The pages' tables of files from elsewhere, made from the committed results."""

from __future__ import annotations

from collections import Counter
from typing import Any

from models.architectures.stress import RESULTS
from models.published_files.training import summary
from models.reporting.result_table import compact

SHOWN = (
    "bert", "gpt2", "llama", "t5", "whisper", "vit", "convnext", "segformer", "clip", "mamba", "unet2d",
    "unet2d_condition",
)  # fmt: skip


def _outcome(row: dict[str, Any], budget: str) -> str:
    """Overhead with its gap, in percent of a step, or what is proven."""
    found = next(outcome for outcome in row["outcomes"] if outcome["budget"] == budget)
    if found["overhead"] is not None:
        return f"+{100 * found['overhead']:.1f}% ({100 * found['gap']:.2f})"
    if found["status"] != "proven infeasible":
        return "none found"
    return f"proven impossible, floor {found['floor_nbytes'] / row['storages']['simulated_nbytes']:.0%}"


def architectures(record: dict[str, Any]) -> str:
    """One line a network of SHOWN, and how far all measured ones are from a real step."""
    measured = [row for row in record["rows"] if row["storages"] is not None]
    by_name = {row["name"]: row for row in measured}
    header = ["network", "input", "ops", "measured MB", "simulated MB", "difference", "60% (gap)", "40% (gap)"]
    lines = []
    for name in SHOWN:
        row = by_name[name]
        pair = row["storages"]
        cells = [name, row["size"], f"{row['ops']:,}"]
        cells += [f"{pair[key] / 1e6:.2f}" for key in ("measured_nbytes", "simulated_nbytes")]
        cells += [f"{row['difference_percent']:+.2f}%", _outcome(row, "60%"), _outcome(row, "40%")]
        lines.append(cells)
    share = [abs(row["difference_percent"]) for row in measured]
    far = ", ".join(
        f"{row['name']} {row['difference_percent']:+.0f}% ({row['note']})"
        for row in measured
        if abs(row["difference_percent"]) > 10
    )
    told = (
        f"Of {len(share)} networks {sum(value <= 1 for value in share)} are within 1% of the measured peak and "
        f"{sum(value <= 10 for value in share)} within 10%{f'; beyond that: {far}' if far else ''}. "
        "[All of them, with causes](results/architectures.md), and full-size ones without a step."
    )
    return f"{compact(header, lines)}\n\n{told}"


def published(record: dict[str, Any]) -> str:
    """What became of the files that others published."""
    files = record["files"].values()
    results = Counter(entry["result"] for entry in files)
    exporters = sorted({entry["exporter"].partition(",")[0] for entry in files}, key=str.lower)
    packages = len({entry["package"] for entry in files})
    return (
        f"{len(files)} ONNX files that others published in {packages} Python wheels ({', '.join(exporters)}): "
        f"{results['planned']} are planned at 60% and 40% or have a proven floor above, {results['refused']} are "
        f"refused by name, {len(files) - results['planned'] - results['refused']} fail "
        "([list with package names](results/published_files.md))."
    )


def trained(record: dict[str, Any]) -> str:
    """How many files that others published become modules that train."""
    return f"{summary(record['files'])} Their peaks: [list](../../models/results/trained_files.md)."


def stressed(record: dict[str, Any]) -> str:
    """How many small networks train by a plan to eager's bits, and what became of the others, in a sentence."""
    rows = record["rows"]
    named = {result: [row["name"] for row in rows if row["result"] == result] for result in RESULTS}
    bound = [row for row in rows if row["result"] == "bound"]
    pairs = [pair for row in bound for pair in row["peaks"].values()]
    apart = max(abs(pair["measured_nbytes"] - pair["predicted_nbytes"]) for pair in pairs)
    kinds = ", ".join(dict.fromkeys(row["kind"] for row in rows))
    lists = {result: f" ({', '.join(names)})" if names else "" for result, names in named.items()}
    return (
        f"Of {len(rows)} small networks with random weights ({kinds}) {len(bound)} train by a plan to the bits of "
        f"eager training, each measured peak within {apart:,} bytes of the prediction; {len(named['refused'])} are "
        f"refused by name{lists['refused']}, {len(named['wrong'])} wrong{lists['wrong']}, {len(named['unbuilt'])} "
        f"could not be stepped by the library they come from ([each one](results/stress_architectures.md))."
    )
