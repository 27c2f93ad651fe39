"""Fill the figures and outputs of README.md from the results files and from real runs.

python -m models.readme

Every block between ``<!-- NAME -->`` and ``<!-- /NAME -->`` is made here; a test holds README.md to
the committed results.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.benchmark.count import as_published
from models.benchmark.published import PUBLISHED
from models.benchmark.table import against_published, verdict
from models.fidelity.tables import overview
from models.light import light_path
from models.plan_benchmark.cells import cells, retried, row_of
from models.plan_benchmark.extent import SHARES
from models.plan_benchmark.tables import beaten, counts, legend, overheads, summary
from models.plan_benchmark.time_tables import sizes, totals
from models.readme.executor_tables import alternatives, executor, predicted
from models.readme.file_tables import architectures, published, stressed
from models.readme.training_tables import deep, tutorials

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "models" / "results"
HEADLINE = ("torch-resnet50", "light-densenet121", "light-inception_v2", "torch-vit_b16", "torch-gpt2", "torch-unet")
TITLES = {
    "torch-resnet50": "ResNet-50",
    "light-densenet121": "DenseNet-121",
    "light-inception_v2": "Inception-v2",
    "torch-vit_b16": "ViT-B/16",
    "torch-gpt2": "GPT-2 124M",
    "torch-unet": "U-Net",
}
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
"""The graphs of the README's table; models/results/plans.md has them all."""


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def headline(networks: dict[str, Any]) -> str:
    """Our overhead and its proven bound at 50% and 40%, and the ancestors beside us at their own peaks."""
    lines = [
        "| recomputation, % of a step | at 50% memory (proven: at least) | at 40% | `ogc` at its own peak, ours there"
        " | `sqrt` at its own peak, ours there | seconds |",
        "|---|---|---|---|---|---|",
    ]
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
            cells.append(f"{_percent(share)} memory: {_percent(own['overhead'])}, ours {_percent(ours['overhead'])}")
        seconds = _longest_s(entry)
        cells.append(f"{seconds:.0f}" if seconds >= 0.5 else "<1")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


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


def benchmark(record: dict[str, Any]) -> str:
    """The selection, the counts of all cells, and the times by size."""
    networks = record["networks"]
    shown = {name: networks[name] for name in SELECTION if name in networks}
    whole = f"All {len(networks)} graphs ([every table](models/results/plans.md)):"
    parts = [f"Measured on {record['machine']}.", overheads(shown), legend(shown), whole]
    parts += [summary(networks) if retried(networks) else counts(networks), beaten(networks)]
    if "times" in record.get("measured", {}):
        parts += [f"{record['measured']['times']} {totals(networks)}", sizes(networks)]
    return "\n\n".join(part for part in parts if part)


def fidelity(record: dict[str, Any]) -> str:
    """Measured and simulated store-all peaks of a real eager step."""
    lines = [
        "| model | input | measured | simulated | difference | allocator | with workspace | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in record["rows"]:
        cells = [row["model"], row["input"]]
        for part in ("storages", "allocated"):
            cells += [f"{row[part][key] / 1e6:.2f} MB" for key in ("measured_nbytes", "simulated_nbytes")]
            cells.append(f"{row[part]['difference_percent']:+.2f}%")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ancestor(record: dict[str, Any]) -> str:
    """Each network that OGC was published with: published, its strategy run here, and ours against both."""
    results = {name: entry for name, entry in record["networks"].items() if name in PUBLISHED and "error" not in entry}
    lines = [against_published(results)]
    better = [verdict(name, entry)[0] for name, entry in results.items()]
    missing = [name for name in PUBLISHED if name not in results]
    lines.append(
        f"Better in memory and in time, by activations, than published and than the strategy: {sum(better)} of "
        f"{len(better)} networks, for the others see [why not](models/results/benchmark.md). {as_published(results)}"
    )
    if missing:
        lines[-1] += f" Not measured yet: {', '.join(missing)}."
    return "\n\n".join(lines)


FIRST = r"^activation peak|^step time|^proof"


def _console(*runs: tuple[str, list[str]], only: str = "", start: str = "") -> str:
    """A console block: each shown command line with what its arguments really print, both streams.

    ``only`` keeps the lines that match it, ``start`` those from the first that begins with it.
    """
    program = Path(sys.executable).parent / "ogc-plan"
    parts = []
    for shown, arguments in runs:
        done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = done.stdout.rstrip().splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith(start))
        lines = [line for line in lines[first:] if re.search(only, line)]
        parts.append("\n".join([f"$ {shown}", *lines]))
    return "```console\n" + "\n".join(parts) + "\n```"


def blocks() -> dict[str, Callable[[], str]]:
    """Every block of README.md and how it is made."""
    record = json.loads((RESULTS / "plans.json").read_text())
    networks = record["networks"]
    measured = json.loads((RESULTS / "fidelity.json").read_text())
    trained = json.loads((RESULTS / "executor_fidelity.json").read_text())
    compared = json.loads((RESULTS / "executor_benchmark.json").read_text())
    zoo = json.loads((RESULTS / "architectures.json").read_text())
    found = json.loads((RESULTS / "published_files.json").read_text())
    return {
        "headline": lambda: headline(networks),
        "fidelity": lambda: fidelity(measured),
        "benchmark": lambda: benchmark(record),
        "open": lambda: open_budgets(networks),
        "executor": lambda: executor(trained),
        "predicted": lambda: predicted(trained),
        "networks": lambda: overview(json.loads((RESULTS / "network_fidelity.json").read_text())["networks"]),
        "alternatives": lambda: alternatives(compared),
        "architectures": lambda: architectures(zoo),
        "published": lambda: published(found),
        "stress": lambda: stressed(json.loads((RESULTS / "stress_architectures.json").read_text())),
        "ancestor": lambda: ancestor(json.loads((RESULTS / "benchmark.json").read_text())),
        "deep": lambda: deep(json.loads((RESULTS / "deep_resnet.json").read_text())),
        "tutorials": lambda: tutorials(
            {name: json.loads((RESULTS / f"train_{name}.json").read_text()) for name in ("vgg16", "resnet110")}
        ),
        "small": lambda: alternatives(json.loads((RESULTS / "executor_benchmark_small.json").read_text())),
    }


def outputs(folder: Path) -> dict[str, Callable[[], str]]:
    """The blocks that show real runs of the command line; the plan of the first stays in ``folder``."""
    resnet, vgg, plan = str(light_path("resnet50")), str(light_path("vgg19")), str(folder / "plan.json")
    shown = "ogc-plan light_resnet50.onnx --batch 64 --budget 60% -o plan.json"
    options = ["--batch", "64", "--budget", "60%", "-o", plan]
    return {
        "first": lambda: _console(
            (
                f"ogc-plan light_resnet50.onnx --batch 64 --budget 60% -o plan.json | grep -E '{FIRST}'",
                [resnet, *options],
            ),
            only=FIRST,
        ),
        "run": lambda: _console(
            (shown, [resnet, *options]),
            ("ogc-plan verify plan.json light_resnet50.onnx", ["verify", plan, resnet]),
        ).replace(f"{folder}/", ""),
        "shown": lambda: _console(
            (
                "ogc-plan show light_resnet50.onnx --batch 64 --frozen 'gpu_0/conv1*' | sed -n '/^in training/,$p'",
                ["show", resnet, "--batch", "64", "--frozen", "gpu_0/conv1*"],
            ),
            start="in training",
        ),
        "infeasible": lambda: _console(
            ("ogc-plan light_vgg19.onnx --batch 32 --budget 40%", [vgg, "--batch", "32", "--budget", "40%"])
        ),
    }


def filled(text: str, made: dict[str, Callable[[], str]]) -> str:
    """``text`` with each block of ``made`` replaced."""
    for name, make in made.items():
        pattern = re.compile(f"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"README.md has no block {name!r}")
        content = make()
        text = pattern.sub(lambda match, content=content: match[1] + content + match[2], text)
    return text


def main() -> None:
    """Rewrite README.md and the picture."""
    path = ROOT / "README.md"
    with tempfile.TemporaryDirectory() as folder:
        text = filled(path.read_text(), {**blocks(), **outputs(Path(folder))})
        command = [sys.executable, "-m", "models.reporting.timeline_picture", f"{folder}/plan.json"]
        subprocess.run([*command, "-o", str(RESULTS / "timeline.svg")], check=True, cwd=ROOT)
    path.write_text(text)


if __name__ == "__main__":
    main()
