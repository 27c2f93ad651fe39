"""Every op of ONNX's default domain has training semantics, or a reason why not; and every rule is checked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ogc_plan.planner.autodiff.rule_table import RULES, Saved
from onnx import defs

from tests.files import op_cases_basic, op_cases_corners, op_cases_rest
from tests.files.op_cases import Case, ruled

PAGE = (Path(__file__).resolve().parents[3] / "planner" / "README.md").read_text(encoding="utf-8")

CHECKED_ELSEWHERE = {
    "LSTM": "test_recurrent_rules.py",
    "GRU": "test_recurrent_rules.py",
    "RNN": "test_recurrent_rules.py",
    "CastLike": "read as Cast",
    "DeformConv": "torchvision's autograd function, which torch does not have",
    "RoiAlign": "torchvision's autograd function, which torch does not have",
    "MaxRoiPool": "torchvision's autograd function, which torch does not have",
}
"""Rules without a case among the op cases, and why."""

LATEST = {schema.name: schema for schema in defs.get_all_schemas() if not schema.domain}
CASES = (op_cases_basic.CASES, op_cases_rest.CASES, op_cases_rest.AT_LEAST, op_cases_corners.CASES)
HOOKED = {case.op_type for cases in CASES for case in cases}


@pytest.mark.parametrize("op_type", sorted(RULES))
def test_every_rule_is_checked_against_torch_or_says_where(op_type: str) -> None:
    assert (op_type in HOOKED) != (op_type in CHECKED_ELSEWHERE)


def test_the_page_counts_the_op_types_that_are_held_to_saved_tensor_hooks() -> None:
    unhooked = {"CastLike", "DeformConv", "RoiAlign", "MaxRoiPool"}
    counted = f"Of the {len(RULES)} op types with a rule {len(RULES.keys() - unhooked)} are held"
    assert counted in PAGE.replace("\n", " ")


def differentiable_by_schema() -> list[str]:
    kind = defs.OpSchema.DifferentiationCategory.Differentiable
    return sorted(n for n, s in LATEST.items() if any(part.differentiation_category == kind for part in s.outputs))


@pytest.mark.parametrize("op_type", differentiable_by_schema())
def test_every_differentiable_op_of_the_standard_has_a_rule(op_type: str) -> None:
    assert op_type in RULES or op_type == "Hardmax"  # one-hot of an argmax: its gradient is zero everywhere


def kept_by_torchvision(op_type: str, *shapes: tuple[int, ...], output: tuple[int, ...], **attributes: object) -> Saved:
    case = Case(op_type, "x" * len(shapes), tuple(map(torch.zeros, shapes)), lambda *_: torch.zeros(output), attributes)
    return ruled(case, frozenset(range(len(shapes))))


def test_a_deformable_convolution_keeps_its_operands_as_torchvision_does() -> None:
    shapes = ((1, 3, 8, 8), (4, 3, 3, 3), (1, 18, 6, 6), (4,), (1, 9, 6, 6))
    assert kept_by_torchvision("DeformConv", *shapes, output=(1, 4, 6, 6)) == Saved((0, 1, 2, 4))


def test_roi_align_keeps_its_regions_with_their_batch_index_as_torchvision_does() -> None:
    kept = kept_by_torchvision("RoiAlign", (1, 3, 8, 8), (7, 4), (7,), output=(7, 3, 2, 2))
    assert kept == Saved((), (), (7 * 5 * 4,))


def test_a_maximum_over_regions_keeps_them_and_an_int32_index_for_each_result_as_torchvision_does() -> None:
    kept = kept_by_torchvision("MaxRoiPool", (1, 3, 8, 8), (7, 5), output=(7, 3, 2, 2))
    assert kept == Saved((1,), (), (7 * 3 * 2 * 2 * 4,))
