"""What torch really keeps for the backward, op by op, against the planner's table of rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.planner.autodiff.rule_table import Saved, shares_gradient

from tests.files import op_cases_basic, op_cases_corners, op_cases_rest
from tests.files.op_cases import (
    Case,
    address,
    gradient_choices,
    graph_of,
    leaves_of,
    measured,
    outputs_of,
    randn,
    ruled,
    saved_nbytes,
)
from tests.files.op_cases_basic import HEADS


def variants(cases: list[Case]) -> list[Any]:
    return [
        pytest.param(case, needs, id=f"{case}-gradient of {','.join(map(str, sorted(needs)))}")
        for case in cases
        for needs in gradient_choices(case)
    ]


VARIANTS = variants([*op_cases_basic.CASES, *op_cases_rest.CASES, *op_cases_corners.CASES])
AT_LEAST = variants([*op_cases_rest.AT_LEAST, *op_cases_corners.AT_LEAST])


@pytest.mark.parametrize(("case", "needs"), VARIANTS)
def test_the_rule_names_exactly_what_torch_saves(case: Case, needs: frozenset[int]) -> None:
    assert ruled(case, needs) == measured(case, needs)


@pytest.mark.parametrize(("case", "needs"), AT_LEAST)
def test_the_rule_charges_no_less_than_torch_saves(case: Case, needs: frozenset[int]) -> None:
    assert saved_nbytes(case, ruled(case, needs)) >= saved_nbytes(case, measured(case, needs))


def returns_a_view(case: Case, needs: frozenset[int]) -> bool:
    """Whether torch's output lives in an input's memory: the kind of view then decides about its gradient."""
    leaves = leaves_of(case, needs)
    outputs = [value for value in outputs_of(case.call(*leaves)) if value.requires_grad]
    return len(outputs) != 1 or any(address(outputs[0]) == address(leaf) for leaf in leaves if leaf is not None)


@pytest.mark.parametrize(("case", "needs"), [variant for variant in VARIANTS if not returns_a_view(*variant.values)])
def test_a_gradient_that_the_rule_calls_shared_takes_no_memory_in_torch(case: Case, needs: frozenset[int]) -> None:
    leaves = leaves_of(case, needs)
    outputs = [value for value in outputs_of(case.call(*leaves)) if value.requires_grad]
    arriving = torch.ones_like(outputs[0])
    wanted = sorted(needs)
    given = torch.autograd.grad(outputs[0], [leaves[i] for i in wanted], arriving)
    graph = graph_of(case)
    shared = {i for i, gradient in zip(wanted, given, strict=True) if address(gradient) == address(arriving)}
    assert {i for i in wanted if shares_gradient(graph.ops[0], graph, i)} == shared


def test_a_transposed_operand_of_a_batched_matmul_is_saved_as_a_copy_of_the_same_size() -> None:
    """The rule charges the operand itself: the same bytes, in another storage."""
    case = Case(
        "MatMul", "xx", (randn(2, 4, 18), randn(2, 4, 18) + 1),
        lambda a, b: a.view(2, 4, 3, 6).transpose(1, 2) @ b.view(2, 4, 3, 6).transpose(1, 2).transpose(-1, -2),
    )  # fmt: skip
    assert measured(case, frozenset([0, 1])) == Saved((), (), (case.inputs[0].nbytes,) * 2)


def test_eager_dropout_on_the_cpu_keeps_a_mask_of_floats_where_the_rule_charges_bytes() -> None:
    case = Case("Dropout", "x", (randn(4, 6),), lambda x: F.dropout(x, 0.1, training=True))
    assert measured(case, frozenset([0])).hidden_nbytes == (4 * ruled(case, frozenset([0])).hidden_nbytes[0],)


def test_rms_norm_on_the_cpu_also_keeps_the_normalised_input_that_the_fused_kernel_does_without() -> None:
    case = Case("RMSNormalization", "xw", (randn(2, 5, 8), randn(8)), lambda x, w: F.rms_norm(x, (8,), w))
    both = frozenset([0, 1])
    assert measured(case, both).hidden_nbytes == (*ruled(case, both).hidden_nbytes, case.inputs[0].nbytes)


def test_attention_with_dropout_on_the_cpu_is_decomposed_and_keeps_probabilities() -> None:
    """Two probability matrices, a mask of [N, heads, T, T], and copies of q and k: charged only when annotated."""
    case = Case(
        "Attention", "xxx", (randn(*HEADS), randn(*HEADS) + 1, randn(*HEADS) + 2),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
    )  # fmt: skip
    square, operand = 2 * 3 * 8 * 8 * 4, case.inputs[0].nbytes
    assert measured(case, frozenset([0, 1, 2])) == Saved((2,), (), (square,) * 3 + (operand,) * 2)
