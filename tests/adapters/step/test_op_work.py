"""What a call computes and moves follows from its operator and the shapes on its node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch.step.op_work import NodeWork, work_of
from torch import Tensor, fx

from tests.graphs.aten_calls import call

aten = torch.ops.aten

IMAGES = torch.empty(2, 4, 10, 10)
HEADS = torch.empty(2, 3, 7, 8)  # batch, heads, length, width


def convolve(weight: Tensor, *, groups: int = 1, transposed: bool = False) -> fx.Node:
    return call(
        lambda x, w: aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], groups), IMAGES, weight
    )


def convolve_back(weight: Tensor, asked: list[bool], *, groups: int = 1, transposed: bool = False) -> fx.Node:
    result = convolve(weight, groups=groups, transposed=transposed).meta["val"]
    return call(
        lambda g, x, w: aten.convolution_backward(
            g, x, w, [w.shape[0]], [1, 1], [0, 0], [1, 1], transposed, [0, 0], groups, asked
        ),
        torch.empty(result.shape),
        IMAGES,
        weight,
    )


def attention(heads: Tensor = HEADS) -> fx.Node:
    return call(lambda q: aten._scaled_dot_product_flash_attention_for_cpu(q, q, q), heads)


def attention_back() -> fx.Node:
    statistics = torch.empty(2, 7, 3).transpose(1, 2)
    return call(
        lambda q, s: aten._scaled_dot_product_flash_attention_for_cpu_backward(q, q, q, q, q, s, 0.0, False),
        HEADS,
        statistics,
    )


DENSE, GROUPED, DEPTHWISE = torch.empty(6, 4, 3, 3), torch.empty(6, 2, 3, 3), torch.empty(4, 1, 3, 3)
TRANSPOSED = torch.empty(4, 6, 3, 3)  # in, out

ROWS, COLUMNS = torch.empty(5, 3), torch.empty(3, 7)
BATCHES = (torch.empty(4, 5, 3), torch.empty(4, 3, 7))


class TestFlops:
    @pytest.mark.parametrize(
        ("node", "multiply_adds"),
        [
            (lambda: call(aten.addmm, torch.empty(7), ROWS, COLUMNS), 5 * 3 * 7),
            (lambda: call(aten.baddbmm, torch.empty(4, 5, 7), *BATCHES), 4 * 5 * 3 * 7),
            (lambda: convolve(DENSE), 2 * 6 * 8 * 8 * 4 * 9),
            (lambda: convolve(GROUPED, groups=2), 2 * 6 * 8 * 8 * 2 * 9),
            (lambda: convolve(TRANSPOSED, transposed=True), 2 * 4 * 10 * 10 * 6 * 9),
            (lambda: attention(), 2 * (2 * 3 * 7 * 7 * 8)),
        ],
        ids=["addmm", "baddbmm", "convolution", "grouped", "transposed", "attention"],
    )
    def test_a_multiply_add_is_two_operations(self, node: Callable[[], fx.Node], multiply_adds: int) -> None:
        assert work_of(node()).flops == 2 * multiply_adds

    @pytest.mark.parametrize(
        ("weight", "how"),
        [(DENSE, {}), (GROUPED, {"groups": 2}), (DEPTHWISE, {"groups": 4}), (TRANSPOSED, {"transposed": True})],
        ids=["dense", "grouped", "depthwise", "transposed"],
    )
    def test_each_gradient_of_a_convolution_costs_its_forward(self, weight: Tensor, how: dict[str, Any]) -> None:
        back = convolve_back(weight, [True, True, False], **how)
        assert work_of(back).flops == 2 * work_of(convolve(weight, **how)).flops

    def test_a_gradient_that_nobody_asks_for_costs_nothing(self) -> None:
        assert work_of(convolve_back(DENSE, [False, True, True])).flops == work_of(convolve(DENSE)).flops

    def test_the_backward_of_attention_makes_its_weights_again(self) -> None:
        assert work_of(attention_back()).flops == 2.5 * work_of(attention()).flops

    def test_a_memory_bound_call_has_no_flops(self) -> None:
        assert work_of(call(aten.relu, ROWS)).flops == 0


class TestTraffic:
    @pytest.mark.parametrize(
        ("node", "nbytes"),
        [
            (lambda: call(aten.relu, ROWS), 2 * 60),
            (lambda: call(aten.mm, ROWS, COLUMNS), 60 + 84 + 140),
            (lambda: call(lambda x: x * x, ROWS), 2 * 60),
            (lambda: call(aten.add, ROWS[:1].expand(5, 3), ROWS), 3 * 60),
            (lambda: call(lambda: torch.zeros(5, 3)), 60),
            (lambda: call(aten.ones_like, ROWS), 60),
            (lambda: call(aten.embedding, torch.empty(1000, 3), torch.zeros(5, dtype=torch.int64)), 60 + 40 + 60),
            (lambda: call(aten.index_select, torch.empty(1000, 3), 0, torch.zeros(5, dtype=torch.int64)),
             60 + 40 + 60),
            (lambda: call(lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100), torch.empty(5, 1000),
                          torch.zeros(5, dtype=torch.int64)), 20 + 40 + 8),
        ],
        ids=["relu", "mm", "one tensor twice", "expanded", "zeros", "ones_like", "embedding",
             "index_select", "nll_loss"],
    )  # fmt: skip
    def test_what_is_read_and_written_counts_once(self, node: Callable[[], fx.Node], nbytes: int) -> None:
        assert work_of(node()).traffic_nbytes == nbytes


class TestNoWork:
    @pytest.mark.parametrize(
        "node",
        [
            lambda: call(lambda x: x.view(15), ROWS),
            lambda: call(aten.t, ROWS),
            lambda: call(aten._unsafe_view, ROWS, [15]),
            lambda: call(aten.split, ROWS, 2),
            lambda: next(iter(call(lambda x: aten.native_dropout(x, 0.5, True), ROWS).users)),
            lambda: call(lambda: torch.empty(5, 3)),
            lambda: call(aten.empty_like, ROWS),
        ],
        ids=["view", "t", "_unsafe_view", "split", "tuple element", "empty", "empty_like"],
    )
    def test_views_and_uninitialized_memory_cost_nothing(self, node: Callable[[], fx.Node]) -> None:
        assert work_of(node()) == NodeWork(0, 0, 0, False)


class TestKernels:
    def test_a_call_is_one_launch(self) -> None:
        assert work_of(call(aten.relu, ROWS)).kernels == 1

    def test_a_convolution_launches_once_for_each_gradient_asked(self) -> None:
        assert work_of(convolve_back(DENSE, [False, True, True])).kernels == 2


class TestHalf:
    @pytest.mark.parametrize(
        ("dtype", "half"),
        [(torch.float32, False), (torch.bfloat16, True), (torch.float16, True), (torch.int16, False)],
        ids=str,
    )
    def test_the_16_bit_rate_is_for_floating_point(self, dtype: torch.dtype, half: bool) -> None:
        assert work_of(call(aten.add, torch.empty(3, dtype=dtype), torch.empty(3, dtype=dtype))).half == half
