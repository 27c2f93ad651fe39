"""Every node test case of the onnx package gives a training step, or is refused for a reason that is written here."""

from __future__ import annotations

from pathlib import Path

import pytest
from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.costs.devices import device_named
from ogc_plan.planner.costs.roofline import roofline
from ogc_plan.planner.errors import UnsupportedOpError
from ogc_plan.planner.graph import Graph
from ogc_plan.planner.model import store_all_timeline
from ogc_plan.planner.onnx_import.reader import read_onnx

from tests.files.node_case_exclusions import CHARGEABLE, EXCLUDED
from tests.files.node_cases import Prepared, cases, op_type, prepare

PAGE = (Path(__file__).resolve().parents[3] / "planner" / "README.md").read_text(encoding="utf-8")
BOUND = frozenset({"NonMaxSuppression", "Unique"})
"""Ops whose output has a size that only its data tells; the case's own output binds it."""
PLANNED = [name for name in cases() if name not in EXCLUDED]


def read(prepared: Prepared, folder: Path, *, bind: bool = True, charge_unknown: bool = False) -> Graph:
    path = folder / "case.onnx"
    path.write_bytes(prepared.model.SerializeToString())
    shapes = dict(prepared.shapes)
    if bind and prepared.op_type in BOUND:
        shapes.update(prepared.outputs)
    return read_onnx(path, inputs=shapes, charge_unknown=charge_unknown)


def flaw(prepared: Prepared, graph: Graph) -> str:
    """What is wrong with the training step of a case, or nothing."""
    training = derive_backward(graph)
    unknown = [note for note in training.assumed if "no rule" in note]
    if unknown:
        return unknown[0]
    reached = {graph.ops[op.forward].name for op in training.ops if op.backward is not None}
    missed = [name for name in prepared.gains if f"gain of {name}" not in reached]
    if prepared.differentiable and missed:
        return f"no gradient reaches {missed}"
    if training.ops:
        store_all_timeline(training, roofline(graph, training, device_named("h200")))
    return ""


def test_the_page_counts_the_cases() -> None:
    counted = (
        f"Of the {len(cases()):,} node test cases of the `onnx` package {len(PLANNED):,} are read and {len(EXCLUDED)}"
    )
    assert counted in PAGE.replace("\n", " ")


@pytest.mark.parametrize("name", PLANNED)
def test_the_training_step_of(name: str, tmp_path: Path) -> None:
    prepared = prepare(name)
    assert flaw(prepared, read(prepared, tmp_path)) == ""


@pytest.mark.parametrize("name", sorted(EXCLUDED))
def test_excluded(name: str, tmp_path: Path) -> None:
    """An entry that plans after all makes this fail, so that none goes stale."""
    with pytest.raises(UnsupportedOpError, match=EXCLUDED[name]):
        read(prepare(name), tmp_path)


@pytest.mark.parametrize("name", [name for name in PLANNED if op_type(name) in BOUND])
def test_a_shape_that_depends_on_data_is_asked_for_by(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        read(prepare(name), tmp_path, bind=False)
    assert "--shape" in caught.value.remedy


@pytest.mark.parametrize("name", sorted(CHARGEABLE))
def test_charged_on_request(name: str, tmp_path: Path) -> None:
    prepared = prepare(name)
    graph = read(prepared, tmp_path, charge_unknown=True)
    assert any("charged as asked" in note for note in graph.assumed)
