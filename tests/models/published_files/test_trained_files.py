"""Published files as modules that train: the committed results, the table, and what a file of one product gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.published_files.listing import FILES
from models.published_files.trained_outcome import outcome
from models.published_files.training import TOLERANCE, page, report, summary
from tests.files.onnx_models import model, node

RESULTS = Path(__file__).resolve().parents[3] / "models" / "results" / "trained_files.json"
STEPPED = {
    "exporter": "by hand", "refused": "", "build_s": 0.1, "difference": 1e-6, "budget": "60%", "bind_s": 2.0,
    "equal": True, "plain_nbytes": 100_000_000, "bound_nbytes": 59_000_000, "planned_nbytes": 60_000_000,
    "overhead": 0.05,
}  # fmt: skip


@pytest.fixture(scope="module")
def files() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text())["files"]
    return found


def test_a_file_is_built_compared_and_trained(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    names = ["x", *(f"t{at}" for at in range(5)), "y"]
    nodes = [node("MatMul", f"{names[at]} w{at}", f"m{at}") for at in range(6)]
    nodes += [node("Tanh", f"m{at}", names[at + 1]) for at in range(6)]
    proto = model(nodes, {"x": (4, 16)}, weights={f"w{at}": (16, 16) for at in range(6)})
    proto.ir_version = 8  # ONNX Runtime knows fewer than the onnx package
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    entry = outcome(str(path), {}, {})
    assert (entry["refused"], entry["difference"] < TOLERANCE, entry["equal"]) == ("", True, True)


def test_a_refusal_is_kept_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model([node("NonZero", "x", "y")], {"x": (4, 16)}).SerializeToString())
    assert "NonZero" in outcome(str(path), {}, {})["refused"]


def test_the_summary_counts_what_was_seen() -> None:
    files = {"a": STEPPED, "b": {**STEPPED, "budget": "min", "equal": False}, "c": {"exporter": "", "error": "no"}}
    assert summary(files) == (
        "2 of 3 files become modules, 2 of them with ONNX Runtime's inference within 0.0001. 2 take a planned step, 1 "
        "within 60% and the others at their smallest peak; 1 have the bits of a step without a budget."
    )


def test_failures_are_told_below_the_table() -> None:
    assert report({"a": STEPPED, "c": {"exporter": "", "error": "no"}}).splitlines()[-1] == "- c: no"


def test_the_results_hold_every_file_that_plans(files: dict[str, Any]) -> None:
    assert {name: entry["sha256"] for name, entry in files.items()} == {
        f.name: f.sha256 for f in FILES if not f.refusal
    }


def test_twenty_files_become_modules(files: dict[str, Any]) -> None:
    assert sum("build_s" in entry for entry in files.values()) >= 20


def test_ten_files_train_within_60_percent(files: dict[str, Any]) -> None:
    assert sum(entry.get("budget") == "60%" for entry in files.values()) >= 10


def test_every_step_has_the_bits_of_a_step_without_a_budget(files: dict[str, Any]) -> None:
    assert [name for name, entry in files.items() if entry.get("equal") is False] == []


def test_the_page_is_the_one_made_from_the_results() -> None:
    assert RESULTS.with_suffix(".md").read_text() == page(json.loads(RESULTS.read_text()))
