"""The pages' tables of plans and of simulated memory, made from the committed results."""

from __future__ import annotations

from typing import Any

from models.benchmark.count import as_published
from models.benchmark.published import PUBLISHED
from models.benchmark.table import against_published, verdict
from models.plan_benchmark.cells import cells, retried, row_of
from models.plan_benchmark.extent import SHARES
from models.plan_benchmark.tables import beaten, counts, legend, overheads, summary
from models.plan_benchmark.targets import GAPS, INFEASIBLE, missed
from models.plan_benchmark.time_tables import sizes, totals
from models.reporting.result_table import compact

TITLES = {
    "torch-resnet50": "ResNet-50",
    "light-densenet121": "DenseNet-121",
    "light-inception_v2": "Inception-v2",
    "torch-vit_b16": "ViT-B/16",
    "torch-gpt2": "GPT-2 124M",
    "torch-unet": "U-Net",
}
HEADLINE = tuple(TITLES)
SELECTION = (
    *HEADLINE,
    "light-vgg19",
    "resnet152",
    "resnet1001",
    "nasnet_mobile",
    "amoebanet_d",
    "gpt12",
    "gpt48",
    "gpt96",
    "transformer_repeated",
    "transformer_varied",
    "ddpm_lsun",
    "dag100_0",
    "dag500_0",
)
"""The graphs of the page's table; results/plans.md has them all."""


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def headline(networks: dict[str, Any]) -> str:
    """The overhead of `optimal` and its proven bound at 50% and 40%, and `ogc` and `sqrt` at their own peaks."""
    header = ["recomputation, % of a step", "at 50% memory (proven: at least)", "at 40%"]
    header += [f"`{strategy}` at its own peak, `optimal` there" for strategy in ("ogc", "sqrt")]
    lines = []
    for name in HEADLINE:
        entry = networks[name]
        cells = [f"{TITLES[name]}, {entry['ops']} ops"]
        for share in (0.5, 0.4):
            row = row_of(entry, "optimal", share)
            if row["overhead"] is None:
                floor = entry["floor_nbytes"] / entry["store_all_nbytes"]
                proven = row["status"] == "proven infeasible"
                cells.append(f"proven impossible, floor {_percent(floor)}" if proven else "none found")
            else:
                cells.append(f"{_percent(row['overhead'])} ({_percent(row['bound'])})")
        for strategy in ("ogc", "sqrt"):
            own = next(row for row in entry["rows"] if row["strategy"] == strategy)
            ours = next(row for row in entry["rows"] if row.get("matches") == strategy)
            share = own["peak_nbytes"] / entry["store_all_nbytes"]
            cells.append(f"{_percent(share)} memory: {_percent(own['overhead'])}, {_percent(ours['overhead'])} there")
        seconds = _longest_s(entry)
        cells.append(f"{seconds:.0f}" if seconds >= 0.5 else "<1")
        lines.append(cells)
    return compact([*header, "seconds"], lines)


def _longest_s(entry: dict[str, Any]) -> float:
    """Seconds of the plan that took longest, the first one or a re-plan; of a solve beside others if none was timed."""
    timed = entry["times"]["plans"] if "times" in entry else [row_of(entry, "optimal", s / 100) for s in SHARES]
    return float(max(plan["seconds"] for plan in timed))


def open_budgets(networks: dict[str, Any]) -> str:
    """The budgets above the floor for which no plan was found, and the smallest peak that was."""
    missing = []
    for cell in cells(networks, harder=True):
        if cell.gap is None and not cell.infeasible:
            smallest = cell.row["smallest_nbytes"] / networks[cell.graph]["store_all_nbytes"]
            missing.append(f"{cell.graph} at {cell.label} (smallest found {_percent(smallest)})")
    return "Open, that is above the floor with no plan found: " + (", ".join(missing) or "none of these") + "."


def in_target(networks: dict[str, Any], new: dict[str, Any]) -> str:
    """How many budgets of 80% to 30% have a plan within its target, on the benchmark's graphs and on the ``new`` ones.

    ``new`` is a section of an ablation record.
    """
    known = [row_of(entry, "optimal", share / 100) for entry in networks.values() for share in GAPS]
    planned = [{**row, "share": int(label) / 100} for rows in new["cells"]["default"].values()
               for label, row in rows.items() if label.isdigit() and int(label) in GAPS]  # fmt: skip
    counted = []
    for rows in (known, planned):
        feasible = [row for row in rows if row["status"] not in (INFEASIBLE, "infeasible")]
        met = sum(not missed(row) for row in feasible)
        counted.append(f"{met} of {len(feasible)} budgets ({_percent(met / len(feasible))})")
    return (
        f"Within the target at 80% to 30%: {counted[0]}. On {len(new['graphs'])} graphs to which nothing was ever "
        f"tuned: {counted[1]}."
    )


def benchmark(record: dict[str, Any]) -> str:
    """The selection, the counts of all cells, and the times by size."""
    networks = record["networks"]
    shown = {name: networks[name] for name in SELECTION if name in networks}
    whole = f"All {len(networks)} graphs ([every table](results/plans.md)):"
    parts = [f"Measured on {record['machine']}.", overheads(shown), legend(shown), whole]
    parts += [summary(networks) if retried(networks) else counts(networks), beaten(networks)]
    if "times" in record.get("measured", {}):
        parts += [f"{record['measured']['times']} {totals(networks)}", sizes(networks)]
    return "\n\n".join(part for part in parts if part)


def ogc(record: dict[str, Any]) -> str:
    """Each network that OGC was published with: published, its strategy run here, and `optimal` against both."""
    results = {name: entry for name, entry in record["networks"].items() if name in PUBLISHED and "error" not in entry}
    lines = [against_published(results)]
    better = [verdict(name, entry)[0] for name, entry in results.items()]
    lines.append(
        f"Better in memory and in time, by activations, than published and than the strategy here: {sum(better)} of "
        f"{len(better)} networks, for the others see [why not](results/benchmark.md). {as_published(results)}"
    )
    return "\n\n".join(lines)
