"""The corrections of backward times are those that were measured, and how a profile is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ogc_plan.adapters.pytorch import from_onnx
from ogc_plan.planner.costs.backward_ratios import CORRECTIONS

from models.profiles.agreement import measured, misplaced
from models.profiles.networks import CALIBRATED, JUDGED, file_of
from models.profiles.ratios import corrections
from models.profiles.torch_ops import call_times

RESULTS = Path(__file__).resolve().parents[3] / "models" / "results"


def test_the_corrections_are_those_of_the_committed_results() -> None:
    assert corrections(json.loads((RESULTS / "backward_ratios.json").read_text())["networks"]) == CORRECTIONS


def test_long_calls_count_most_in_a_correction() -> None:
    networks = {"large": {"Conv": [1, 1000.0, 500.0]}, "small": {"Conv": [9, 1.0, 5.0]}}
    assert corrections(networks) == {"Conv": round(1001 / 505, 2)}


def test_no_network_is_judged_that_the_corrections_were_made_of() -> None:
    assert {*CALIBRATED}.isdisjoint(JUDGED)


def test_the_committed_agreement_is_of_the_judged_networks() -> None:
    assert tuple(json.loads((RESULTS / "profile_agreement.json").read_text())["networks"]) == JUDGED


@pytest.mark.parametrize(
    ("estimate", "part"), [({"a": 2.0, "b": 6.0}, 0.0), ({"a": 4.0, "b": 4.0}, 0.25), ({"a": 1.0, "c": 9.0}, 0.0)]
)
def test_misplaced_is_the_part_of_the_time_that_other_ops_get(estimate: dict[str, float], part: float) -> None:
    assert misplaced(estimate, {"a": 1.0, "b": 3.0}) == part


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return measured("resnet8_v2_cifar10", tmp_path_factory.mktemp("network"))


def test_a_network_is_measured_whole(small: dict[str, object]) -> None:
    assert {*small} == {"step_ns", "profile_step_ns", "misplaced", "plans"}


def test_every_call_of_a_module_is_timed(tmp_path: Path) -> None:
    module = from_onnx(file_of("resnet8_v2_cifar10", tmp_path))
    times = call_times(module, module.example_arguments(), rounds=1)
    assert [step.where.name for step in module.steps if times[step.where.name].forward_ns <= 0] == []
