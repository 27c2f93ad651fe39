"""Plan every network at five budgets with every strategy, on one simulator.

    python -m models.plan_benchmark -o models/results/plans.json

Each network is planned in a process of its own (peak RSS is that process's). Needs the nine networks of
the onnx package and, for the four PyTorch exports, torch with onnxscript. The table goes to standard
output and, as Markdown, beside the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from models.light import NAMES, light_path

EXPORTS = ("resnet50", "gpt2", "vit_b16", "unet")
SHARES = (80, 60, 50, 40, 30)
BUDGETED = ("optimal", "greedy", "layers")
FIXED = ("ogc", "sqrt", "speed", "segments:2", "segments:4", "keep-all")


def measure(path: str, batch: int | None, device: str) -> dict[str, Any]:
    """Plan one file at every budget with every strategy; seconds are wall time of the strategy alone."""
    from ogc_plan.planner.model import load_model
    from ogc_plan.planner.problem import Scope
    from ogc_plan.planner.solution import Status
    from ogc_plan.planner.strategies import strategy_named

    started = time.perf_counter()
    model = load_model(path, batch=batch, device=device)
    read_s = time.perf_counter() - started
    problem = model.problem(Scope.ACTIVATIONS)
    strategy_named("keep-all")(problem)  # compiles or loads the kernels once, outside the timings
    whole = model.store_all().peak_activation_nbytes
    rows = []

    def run(strategy: str, budget_nbytes: int | None, share: float | None) -> dict[str, Any]:
        solution = strategy_named(strategy)(problem, budget_nbytes)
        proven = solution.status is Status.INFEASIBLE
        found = solution.decisions is not None
        row = {
            "strategy": strategy,
            "share": share,
            "budget_nbytes": budget_nbytes,
            "status": "proven infeasible" if proven else solution.status.value,
            "peak_nbytes": solution.peak_nbytes if found else None,
            "overhead": solution.objective_ns / problem.store_all_ns if found else None,
            "bound": solution.bound_ns / problem.store_all_ns if solution.bound_class else None,
            "smallest_nbytes": solution.smallest_nbytes,
            "seconds": round(solution.wall_s, 3),
        }
        rows.append(row)
        return row

    for share in SHARES:
        for strategy in BUDGETED:
            run(strategy, whole * share // 100, share / 100)
    for strategy in FIXED:
        own = run(strategy, None, None)
        matched = run("optimal", own["peak_nbytes"], None)
        matched["matches"] = strategy
    return {
        "ops": problem.op_count,
        "read_s": round(read_s, 3),
        "store_all_nbytes": whole,
        "store_all_ms": problem.store_all_ns / 1e6,
        "floor_nbytes": problem.floor_nbytes,
        "floor_at": problem.floor.step,
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "rows": rows,
    }


def row_of(entry: dict[str, Any], strategy: str, share: float) -> dict[str, Any]:
    """The row of a budgeted strategy at a share of the store-all peak."""
    found: dict[str, Any] = next(r for r in entry["rows"] if r["strategy"] == strategy and r["share"] == share)
    return found


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _cell(row: dict[str, Any]) -> str:
    if row["status"] == "proven infeasible":
        return "infeasible"
    if row["overhead"] is None:
        return "open"
    gap = row["overhead"] - row["bound"] if row["bound"] is not None else None
    return _percent(row["overhead"]) + (f" ({_percent(gap)})" if gap is not None else "")


def table(results: dict[str, Any]) -> str:
    """Markdown: overhead in % of a store-all step with the gap to the proven bound in brackets."""
    header = ["network", "ops", "floor", *(f"{share}%" for share in SHARES), "greedy 50%", "layers 50%", "s", "RSS MB"]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for name, entry in results.items():
        slowest = max(row_of(entry, "optimal", share / 100)["seconds"] for share in SHARES)
        cells = [name, str(entry["ops"]), f"{100 * entry['floor_nbytes'] / entry['store_all_nbytes']:.0f}%"]
        cells += [_cell(row_of(entry, "optimal", share / 100)) for share in SHARES]
        cells += [_percent(row_of(entry, strategy, 0.5)["overhead"]) for strategy in ("greedy", "layers")]
        cells += [f"{slowest:.1f}", f"{entry['peak_rss_mb']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Fixed strategies: their own peak and overhead, and `optimal` at that same peak.", ""]
    lines += ["| network | " + " | ".join(FIXED[:-1]) + " |", "|---" * len(FIXED) + "|"]
    for name, entry in results.items():
        cells = []
        for strategy in FIXED[:-1]:
            own = next(row for row in entry["rows"] if row["strategy"] == strategy)
            ours = next(row for row in entry["rows"] if row.get("matches") == strategy)
            share = own["peak_nbytes"] / entry["store_all_nbytes"]
            cells.append(f"{100 * share:.0f}%: {_percent(own['overhead'])} vs {_percent(ours['overhead'])}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the whole benchmark, or one network in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--batch", type=int, default=32, help="batch of the nine networks of the onnx package")
    parser.add_argument("--only", nargs="*", help="names of networks, e.g. light-vgg19 gpt2")
    parser.add_argument("--file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file:
        json.dump(measure(options.file, options.batch or None, options.device), sys.stdout)
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(f"light-{name}", str(light_path(name)), options.batch) for name in NAMES]
        for name in EXPORTS:
            jobs.append((name, os.path.join(folder, f"{name}.onnx"), 0))
        for name, path, batch in jobs:
            if options.only and name not in options.only:
                continue
            if not os.path.exists(path):
                subprocess.run([sys.executable, "-m", "models.export", name, "-o", path], check=True)
            command = [sys.executable, "-m", "models.plan_benchmark", "--file", path, "--batch", str(batch)]
            done = subprocess.run([*command, "--device", options.device], check=True, stdout=subprocess.PIPE, text=True)
            results[name] = json.loads(done.stdout)
            print(f"planned {name}", file=sys.stderr, flush=True)
    text = table(results)
    print(text)
    if options.output:
        record = {
            "command": f"python -m models.plan_benchmark --device {options.device} --batch {options.batch}",
            "versions": {name: version(name) for name in ("ogc-plan", "ortools", "numba", "onnx")},
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "networks": results,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(record, indent=1) + "\n")
        options.output.with_suffix(".md").write_text(f"`{record['command']}` on {record['machine']}\n\n{text}")


if __name__ == "__main__":
    main()
