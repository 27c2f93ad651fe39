"""Fill the figures and outputs of the pages from the committed results and from real runs, and draw their pictures.

python -m models.readme

A block between ``<!-- NAME -->`` and ``<!-- /NAME -->`` is made here. Tests hold the pages to the committed results.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from models import arena
from models.ablation.table import key_rows
from models.fidelity import step
from models.fidelity.tables import executor, overview, predicted
from models.profiles import agreement
from models.readme.console import output, searched, unsearched
from models.readme.file_tables import architectures, published, stressed, trained
from models.readme.plan_tables import benchmark, headline, in_target, ogc, open_budgets
from models.readme.retention_picture import draw, plan_of_chain
from models.readme.training_tables import (
    first_day,
    host_times,
    planning_times,
    replayed,
    reserved_bytes,
    tight_cards,
    tutorials,
)
from models.runtimes import onnxruntime
from models.training import deep_resnet, executor_benchmark, varying_lengths

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "models" / "results"
PAGES = {
    "README.md": ("first", "executor", "story", "infeasible", "trained"),
    "cli/README.md": ("help", "run", "fit", "frontier", "shown", "compare", "devices"),
    "planner/README.md": ("arena",),
    "planner/plan_file/README.md": (),
    "adapters/save_list/README.md": (),
    "adapters/pytorch/README.md": ("from_onnx",),
    "adapters/onnxruntime/README.md": (),
    "adapters/inductor/README.md": (),
    "models/README.md": (
        "headline", "benchmark", "open", "target", "ablation", "predicted", "networks", "alternatives", "fidelity",
        "architectures", "published", "stress", "ogc", "deep", "arenas", "tutorials", "first_day", "host_times",
        "reserved", "snapshots", "tight", "planning", "lengths", "profiles", "onnxruntime",
    ),
}  # fmt: skip
"""Every page of the repository, and the blocks that stand on it."""


def from_results() -> dict[str, Callable[[], str]]:
    """The blocks that are made of committed results."""

    def record(name: str) -> Any:
        return json.loads((RESULTS / f"{name}.json").read_text())

    return {
        "headline": lambda: headline(record("plans")["networks"]),
        "benchmark": lambda: benchmark(record("plans")),
        "open": lambda: open_budgets(record("plans")["networks"]),
        "target": lambda: in_target(record("plans")["networks"], next(reversed(record("new_graphs").values()))),
        "ablation": lambda: key_rows(record("ablation")),
        "fidelity": lambda: step.report(record("fidelity")["rows"]),
        "executor": lambda: executor(record("executor_fidelity")),
        "predicted": lambda: predicted(record("executor_fidelity")),
        "networks": lambda: overview(record("network_fidelity")["networks"]),
        "alternatives": lambda: executor_benchmark.report(record("executor_benchmark")["rows"]),
        "architectures": lambda: architectures(record("architectures")),
        "published": lambda: published(record("published_files")),
        "from_onnx": lambda: trained(record("trained_files")),
        "stress": lambda: stressed(record("stress_architectures")),
        "ogc": lambda: ogc(record("benchmark")),
        "deep": lambda: "\n\n".join(
            (deep_resnet.report(record("deep_resnet")), deep_resnet.within(record("deep_resnet_4096")))
        ),
        "first_day": lambda: first_day(record("cuda_day_one")),
        "host_times": lambda: host_times(record("cuda_host_time")),
        "reserved": lambda: reserved_bytes(record("cuda_reserved")),
        "snapshots": lambda: replayed(record("cuda_snapshots")),
        "tight": lambda: tight_cards(record("cuda_tight_card")),
        "planning": lambda: planning_times(record("pytorch_planning_time_before"), record("pytorch_planning_time")),
        "lengths": lambda: varying_lengths.report(record("varying_lengths")["rows"]),
        "profiles": lambda: agreement.report(record("profile_agreement")["networks"]),
        "onnxruntime": lambda: onnxruntime.report(record("onnxruntime")),
        "arenas": lambda: arena.report(record("arena")["networks"]),
        "tutorials": lambda: tutorials({name: record(f"train_{name}") for name in ("vgg16", "resnet110")}),
    }


def filled(page: str, made: Mapping[str, Callable[[], str]]) -> str:
    """The text of a page with those of its blocks replaced that ``made`` makes. Raises SystemExit for a missing one."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in PAGES[page]:
        pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"{page} has no block {name!r}")
        if name in made:
            content = made[name]()
            text = pattern.sub(lambda match, content=content: f"{match[1]}{content}\n{match[2]}", text)
    return text


def examples() -> list[tuple[str, str]]:
    """Every Python example of the pages, with its page."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    return [
        (page, code) for page, text in texts.items() for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ]


def example(word: str) -> str:
    """The one Python example with ``word`` in it."""
    (found,) = (code for _, code in examples() if word in code)
    return found


def main() -> None:
    """Rewrite every page and the pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trained = {"trained": lambda: output(folder, example("AdamW"))}
        made = {**from_results(), **unsearched(folder), **searched(folder), **trained}
        for page in PAGES:
            (ROOT / page).write_text(filled(page, made), encoding="utf-8")
        picture = [sys.executable, "-m", "models.reporting.timeline_picture", str(folder / "plan.json")]
        subprocess.run([*picture, "-o", str(RESULTS / "timeline.svg")], check=True, cwd=ROOT)
        (RESULTS / "retention.svg").write_text(draw(plan_of_chain(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
