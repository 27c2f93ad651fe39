"""Arithmetic of ops: as PyTorch counts it where it does, and by hand where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2
from typing import Any

import onnx
import pytest
import torch
from ogc_plan.planner.autodiff.rules.einsum import contractions
from ogc_plan.planner.costs.flops import MEMORY_BOUND, RULES, SHAPE_ONLY, UNTIMED, Arithmetic, arithmetic
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from tests.graphs.small_graphs import Shape, one_op

F = torch.nn.functional


def worked(op_type: str, inputs: Sequence[Shape | None], *outputs: Shape, **attributes: Any) -> Arithmetic:
    graph = one_op(op_type, inputs, outputs, **attributes)
    return arithmetic(graph.ops[0], graph)


def counted(call: Callable[..., torch.Tensor], shapes: Sequence[Shape], needs: Sequence[int]) -> tuple[int, int, Shape]:
    """(forward flops, backward flops, output shape) by torch's own counter."""
    values = [torch.randn(shape, requires_grad=position in needs) for position, shape in enumerate(shapes)]
    with FlopCounterMode(display=False) as forward:
        result = call(*values)
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops(), tuple(result.shape)


def conv(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda x, w: F.conv2d(x, w, **options)


CASES: list[tuple[str, Callable[..., torch.Tensor], list[Shape], dict[str, Any]]] = [
    ("Conv", conv(padding=1), [(2, 6, 10, 10), (8, 6, 3, 3)], {}),
    ("Conv", conv(stride=2), [(2, 6, 11, 11), (8, 6, 3, 3)], {}),
    ("Conv", conv(dilation=2), [(2, 6, 11, 11), (8, 6, 3, 3)], {}),
    ("Conv", F.conv1d, [(2, 4, 20), (5, 4, 3)], {}),
    ("Conv", F.conv3d, [(1, 4, 6, 6, 6), (5, 4, 3, 3, 3)], {}),
    ("ConvTranspose", F.conv_transpose2d, [(2, 6, 5, 5), (6, 8, 3, 3)], {}),
    ("ConvTranspose", lambda x, w: F.conv_transpose2d(x, w, stride=2), [(2, 6, 5, 5), (6, 8, 3, 3)], {}),
    ("MatMul", torch.mm, [(7, 5), (5, 3)], {}),
    ("MatMul", torch.matmul, [(4, 7, 5), (5, 3)], {}),
    ("MatMul", torch.bmm, [(4, 7, 5), (4, 5, 3)], {}),
    ("MatMul", torch.matmul, [(2, 4, 7, 5), (2, 4, 5, 3)], {}),
    ("Gemm", lambda a, b: torch.addmm(torch.zeros(3), a, b), [(7, 5), (5, 3)], {}),
    ("Gemm", lambda a, b: torch.addmm(torch.zeros(3), a.t(), b), [(5, 7), (5, 3)], {"transA": 1}),
    ("Gemm", lambda a, b: torch.addmm(torch.zeros(3), a, b.t()), [(7, 5), (3, 5)], {"transB": 1}),
    ("MatMul", lambda a, b: torch.baddbmm(torch.zeros(4, 7, 3), a, b), [(4, 7, 5), (4, 5, 3)], {}),
    ("Einsum", lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 3, 4), (2, 5, 4)], {"equation": "bij,bkj->bik"}),
    ("Einsum", lambda a, b: torch.einsum("...ij,jk", a, b), [(2, 3, 4), (4, 5)], {"equation": "...ij,jk"}),
]


@pytest.mark.parametrize(("op_type", "call", "shapes", "attributes"), CASES)
def test_forward_flops_are_those_that_torch_counts(
    op_type: str, call: Callable[..., torch.Tensor], shapes: list[Shape], attributes: dict[str, Any]
) -> None:
    forward, _, output = counted(call, shapes, range(len(shapes)))
    assert worked(op_type, shapes, output, **attributes).forward == forward


@pytest.mark.parametrize("needs", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize(("op_type", "call", "shapes", "attributes"), CASES)
def test_backward_flops_are_those_that_torch_counts_for_the_operands_that_need_a_gradient(
    op_type: str,
    call: Callable[..., torch.Tensor],
    shapes: list[Shape],
    attributes: dict[str, Any],
    needs: Sequence[int],
) -> None:
    _, backward, output = counted(call, shapes, needs)
    assert worked(op_type, shapes, output, **attributes).backward(needs) == backward


def test_attention_is_two_products_and_its_backward_five_as_torch_counts_its_fused_kernels() -> None:
    """By shape: the counter does not see the kernel of the CPU."""
    query, key, value, output = (2, 4, 16, 8), (2, 4, 12, 8), (2, 4, 12, 6), (2, 4, 16, 6)
    work = worked("Attention", [query, key, value], output)
    there = (sdpa_flop_count(query, key, value), sdpa_backward_flop_count(output, query, key, value))
    assert (work.forward, work.backward([0])) == there


BY_HAND: list[tuple[str, list[Shape | None], list[Shape], dict[str, Any], int]] = [
    ("MatMul", [(5,), (5,)], [()], {}, 2 * 5),
    ("MatMul", [(5,), (2, 5, 3)], [(2, 3)], {}, 2 * 5 * 6),
    ("MatMul", [(2, 7, 5), (5,)], [(2, 7)], {}, 2 * 5 * 14),
    # two groups: each output reads half of the channels
    ("Conv", [(2, 6, 10, 10), (8, 3, 3, 3)], [(2, 8, 8, 8)], {}, 2 * 2 * 8 * 64 * 3 * 9),
    ("ConvTranspose", [(2, 6, 5, 5), (6, 4, 3, 3)], [(2, 8, 7, 7)], {}, 2 * 2 * 6 * 25 * 4 * 9),
    ("LSTM", [(9, 4, 8), (1, 64, 8), (1, 64, 16)], [(9, 1, 4, 16)], {"hidden_size": 16}, 2 * 9 * 4 * 64 * (8 + 16)),
    ("GRU", [(9, 4, 8), (2, 48, 8), (2, 48, 16)], [(9, 2, 4, 16)], {}, 2 * 2 * 9 * 4 * 48 * (8 + 16)),
    ("RNN", [(4, 9, 8), (1, 16, 8), (1, 16, 16)], [(4, 9, 1, 16)], {"layout": 1}, 2 * 9 * 4 * 16 * (8 + 16)),
    # queries of 4 heads share 2 heads of keys, 3-D: as much work as with 4 of each
    ("Attention", [(2, 16, 32), (2, 12, 16), (2, 12, 16)], [(2, 16, 32)], {"q_num_heads": 4, "kv_num_heads": 2},
     4 * 2 * 4 * 16 * 12 * 8),
    ("Attention", [(2, 4, 16, 8), (2, 2, 12, 8), (2, 2, 12, 8)], [(2, 4, 16, 8)], {"is_causal": 1},
     4 * 2 * 4 * 16 * 12 * 8),
    ("Attention", [(2, 4, 1, 8), (2, 4, 1, 8), (2, 4, 1, 8), None, (2, 4, 11, 8), (2, 4, 11, 8)], [(2, 4, 1, 8)], {},
     4 * 2 * 4 * 12 * 8),
    ("MatMulInteger", [(7, 5), (5, 3)], [(7, 3)], {}, 2 * 7 * 5 * 3),
    ("QLinearMatMul", [(7, 5), (), (), (5, 3), (), (), (), ()], [(7, 3)], {}, 2 * 7 * 5 * 3),
    ("ConvInteger", [(1, 3, 8, 8), (4, 3, 3, 3)], [(1, 4, 6, 6)], {}, 2 * 4 * 36 * 27),
    ("QLinearConv", [(1, 3, 8, 8), (), (), (4, 3, 3, 3), (), (), (), ()], [(1, 4, 6, 6)], {}, 2 * 4 * 36 * 27),
    ("MaxPool", [(1, 2, 8, 8)], [(1, 2, 4, 4)], {"kernel_shape": (3, 3)}, 32 * 9),
    ("AveragePool", [(1, 2, 8, 8)], [(1, 2, 4, 4)], {"kernel_shape": (2, 2)}, 32 * 4),
    ("LRN", [(1, 8, 4, 4)], [(1, 8, 4, 4)], {"size": 5}, 128 * 9),
    ("DFT", [(3, 64, 2)], [(3, 64, 2)], {"axis": 1}, int(3 * 5 * 64 * log2(64))),
    ("STFT", [(3, 1000, 1), (), (128,)], [(3, 28, 65, 2)], {}, int(2.5 * 3 * 28 * 130 * log2(128))),
    ("Det", [(5, 6, 6)], [(5,)], {}, 5 * 2 * 6**3 // 3),
    ("GridSample", [(1, 3, 8, 8), (1, 5, 5, 2)], [(1, 3, 5, 5)], {"mode": "linear"}, 2 * 75 * 4),
    ("GridSample", [(1, 3, 8, 8), (1, 5, 5, 2)], [(1, 3, 5, 5)], {"mode": "cubic"}, 2 * 75 * 16),
    ("RoiAlign", [(1, 3, 8, 8), (4, 4), (4,)], [(4, 3, 2, 2)], {"sampling_ratio": 2}, 8 * 48 * 4),
    ("Col2Im", [(1, 9, 16), (2,), (2,)], [(1, 1, 6, 6)], {}, 9 * 16),
    ("DeformConv", [(1, 2, 6, 6), (4, 2, 3, 3), (1, 18, 4, 4)], [(1, 4, 4, 4)], {}, 2 * 64 * 18 + 8 * 2 * 9 * 16),
    ("CausalConvWithState", [(2, 6, 10), (6, 1, 4)], [(2, 6, 10)], {}, 2 * 120 * 4),
    ("LinearAttention", [(2, 10, 32), (2, 10, 16), (2, 10, 16)], [(2, 10, 32)],
     {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "linear"}, 2 * 2 * 10 * 64 * (2 + 4)),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "inputs", "outputs", "attributes", "flops"), BY_HAND)
def test_forward_flops_counted_by_hand(
    op_type: str, inputs: list[Shape | None], outputs: list[Shape], attributes: dict[str, Any], flops: int
) -> None:
    assert worked(op_type, inputs, *outputs, **attributes).forward == flops


def test_several_operands_are_contracted_in_pairs_from_the_left() -> None:
    pairs = contractions("ij,jk,kl->il", [(2, 3), (3, 5), (5, 7)])
    assert pairs == [(1, 2 * 2 * 3 * 5, 2 * 5), (2, 2 * 2 * 5 * 7, 2 * 7)]


def test_the_gradient_of_one_operand_of_three_goes_through_the_products_after_it() -> None:
    work = worked("Einsum", [(2, 3), (3, 5), (5, 7)], (2, 7), equation="ij,jk,kl->il")
    assert [work.backward([position]) for position in range(3)] == [60 + 140, 60 + 140, 140]


def test_a_recurrent_op_runs_its_time_steps_one_after_the_other_in_each_direction() -> None:
    assert worked("LSTM", [(9, 4, 8), (2, 64, 8), (2, 64, 16)], (9, 2, 4, 16)).steps == 9 * 2


def test_backward_through_time_costs_the_recurrence_even_where_its_weights_are_frozen() -> None:
    work = worked("LSTM", [(9, 4, 8), (1, 64, 8), (1, 64, 16)], (9, 1, 4, 16))
    assert work.backward([1]) == 2 * 9 * 4 * 64 * (8 + 16)


STANDARD = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}


def test_every_op_of_the_default_domain_has_one_cost_class() -> None:
    classes = (frozenset(RULES), MEMORY_BOUND, SHAPE_ONLY, UNTIMED)
    assert {op_type: n for op_type in STANDARD if (n := sum(op_type in kind for kind in classes)) != 1} == {}


def test_no_cost_class_names_an_op_that_does_not_exist() -> None:
    assert {*RULES, *MEMORY_BOUND, *SHAPE_ONLY, *UNTIMED} - STANDARD == set()
