"""Writes the plans that tests/planner/plan_file/test_plan_v1.py reads: ``python -m tests.files.plan_fixtures``.

A plan that exists is never written again: once a version of the program has been released, a fixture is a
promise that its plans stay readable. Before a release, delete one to make it anew.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ogc_plan.planner.model import Model, from_annotation, load_model
from ogc_plan.planner.pipeline import plan
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.plan_file.writer import write_plan

from tests.files.annotated_files import residual_network
from tests.files.onnx_files import write_perceptron

FOLDER = Path(__file__).parent / "plans" / "v1"


def bare() -> Plan:
    """From a bare ONNX file, with every option that shapes a model or a budget."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_perceptron(Path(folder) / "perceptron.onnx", layers=4)
        model = load_model(
            path, dims={"batch": 512}, inputs={"x": (512, 32)}, frozen=["w0"], optimizer="adamw",
            grad_accumulation=True, device="t4",
        )  # fmt: skip
        return plan(model, "95%", headroom="1%", strategy="greedy", keep=["r1"], recompute=["g2"])


def annotated() -> Plan:
    """From annotations: sums, a gradient taken twice, an op that runs once, a random op that is recomputed."""
    model: Model = from_annotation(residual_network(), name="residual.onnx", opset=18)
    return plan(model, "min")


FIXTURES: dict[str, Callable[[], Plan]] = {"bare.json": bare, "annotated.json": annotated}


def main() -> int:
    """Write the fixtures that do not exist."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in FIXTURES.items():
        if not (FOLDER / name).exists():
            write_plan(make(), FOLDER / name)
            print(f"wrote {FOLDER / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
