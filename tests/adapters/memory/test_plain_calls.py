"""Calls that take no memory but their results run at one size; those of other sizes hold what a run of them would."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.adapters.pytorch.memory import long_products, workspace_meter
from ogc_plan.adapters.pytorch.memory.inplace_kernels import KERNELS, InPlace
from ogc_plan.adapters.pytorch.memory.long_products import part_of
from ogc_plan.adapters.pytorch.memory.strides import Layout
from ogc_plan.adapters.pytorch.memory.workspace_meter import WorkspaceMeter
from torch import Tensor, fx

from tests.graphs.aten_calls import call
from tests.modules.devices import cpu_only

aten = torch.ops.aten
CPU = torch.device("cpu")
pytestmark = cpu_only("the calls are those of a CPU")

Sizes = tuple[int, int, int]
FIRST = (40, 24, 32)


def floats(*sizes: int) -> Tensor:
    return torch.empty(sizes)


def rows(n: int, classes: int) -> Tensor:
    return torch.zeros(n, dtype=torch.int64)


CALLS: dict[str, Callable[[int, int, int], tuple[Any, ...]]] = {
    "mm": lambda m, k, n: (aten.mm, floats(m, k), floats(k, n)),
    "mm of a transposed one": lambda m, k, n: (lambda a, b: aten.mm(a, b.t()), floats(m, k), floats(n, k)),
    "mm of 64 bits": lambda m, k, n: (aten.mm, floats(m, k).double(), floats(k, n).double()),
    "addmm": lambda m, k, n: (aten.addmm, floats(n), floats(m, k), floats(k, n)),
    "bmm": lambda m, k, n: (aten.bmm, floats(6, m, k), floats(6, k, n)),
    "add": lambda m, k, n: (aten.add, floats(m, n), floats(m, n)),
    "add over rows": lambda m, k, n: (aten.add, floats(m, n), floats(n)),
    "a product with a number": lambda m, k, n: (lambda x: aten.mul(x, 0.5), floats(m, k, n)),
    "gelu": lambda m, k, n: (aten.gelu, floats(m, k, n)),
    "relu of images whose channels are last": lambda m, k, n: (
        aten.relu, floats(2, m, k, n).to(memory_format=torch.channels_last)
    ),
    "gelu_backward": lambda m, k, n: (aten.gelu_backward, floats(m, n), floats(m, n)),
    "threshold_backward": lambda m, k, n: (lambda g, x: aten.threshold_backward(g, x, 0), floats(m, n), floats(m, n)),
    "log_softmax": lambda m, k, n: (lambda x: aten._log_softmax(x, 1, False), floats(m, n)),
    "log_softmax of columns": lambda m, k, n: (lambda x: aten._log_softmax(x, 0, False), floats(m, n)),
    "log_softmax_backward": lambda m, k, n: (
        lambda g, y: aten._log_softmax_backward_data(g, y, 1, torch.float32), floats(m, n), floats(m, n)
    ),
    "softmax": lambda m, k, n: (lambda x: aten._softmax(x, 1, False), floats(m, k, n)),
    "softmax_backward": lambda m, k, n: (
        lambda g, y: aten._softmax_backward_data(g, y, 2, torch.float32), floats(m, k, n), floats(m, k, n)
    ),
    "embedding": lambda m, k, n: (aten.embedding, floats(40, n), rows(m, 40)),
    "embedding_dense_backward": lambda m, k, n: (
        lambda g, i: aten.embedding_dense_backward(g, i, 40, -1, False), floats(m, n), rows(m, 40)
    ),
    "nll_loss": lambda m, k, n: (lambda x, y: aten.nll_loss_forward(x, y, None, 1, -100), floats(m, n), rows(m, n)),
    "nll_loss_backward": lambda m, k, n: (
        lambda g, x, y, w: aten.nll_loss_backward(g, x, y, None, 1, -100, w),
        floats(), floats(m, n), rows(m, n), floats(),
    ),
    "clone": lambda m, k, n: (
        lambda x: aten.clone(x.transpose(0, 1), memory_format=torch.contiguous_format), floats(m, k, n)
    ),
}  # fmt: skip


def node_of(name: str, sizes: Sizes) -> fx.Node:
    function, *inputs = CALLS[name](*sizes)
    return call(function, *inputs)


def in_place(node: fx.Node) -> dict[fx.Node, InPlace]:
    return {node: InPlace(KERNELS[node.target], 0)} if node.target in KERNELS else {}


def knowing(*nodes: fx.Node, places: dict[fx.Node, InPlace]) -> WorkspaceMeter:
    known = WorkspaceMeter(CPU, places, timed=False)
    known.measure(nodes)
    return known


def held(meter: WorkspaceMeter, node: fx.Node) -> Any:
    return meter.changes(node), meter.storage_nbytes(node)


def without_a_run(first: fx.Node, node: fx.Node, places: dict[fx.Node, InPlace]) -> Any:
    """What a node holds for a meter that knows the first; None if the node had to run."""
    meter = WorkspaceMeter(CPU, places, timed=False, known=[knowing(first, places=places)])
    with patch.object(WorkspaceMeter, "_run", side_effect=RuntimeError):
        found = held(meter, node)
    return None if meter.unmeasured else found


SIZES = st.tuples(st.integers(2, 300), st.integers(2, 200), st.integers(2, 300))


class TestOtherSizes:
    @pytest.mark.parametrize("name", CALLS)
    @settings(max_examples=4, deadline=None)
    @given(SIZES)
    def test_one_holds_without_a_run_what_it_holds_in_a_run(self, name: str, sizes: Sizes) -> None:
        node = node_of(name, sizes)
        assert without_a_run(node_of(name, FIRST), node, {}) == held(WorkspaceMeter(CPU, timed=False), node)

    @pytest.mark.parametrize("name", ["add", "add over rows", "gelu", "gelu_backward", "threshold_backward"])
    @settings(max_examples=4, deadline=None)
    @given(SIZES)
    def test_one_in_place_does_too(self, name: str, sizes: Sizes) -> None:
        first, node = node_of(name, FIRST), node_of(name, sizes)
        places = in_place(first) | in_place(node)
        assert without_a_run(first, node, places) == held(WorkspaceMeter(CPU, places, timed=False), node)


class TestWhatRuns:
    @pytest.mark.parametrize(
        ("first", "other"),
        [
            ((aten.relu, floats(3)), (aten.relu, floats(300))),
            ((aten.sum, floats(300)), (aten.sum, floats(900))),
            ((aten.add, floats(300), rows(300, 1)), (aten.add, floats(900), rows(900, 1))),
            ((aten.relu, floats(30, 40)[:, :30]), (aten.relu, floats(60, 40)[:, :30])),
            ((aten.mm, floats(1, 300), floats(300, 40)), (aten.mm, floats(9, 300), floats(300, 40))),
            ((aten.mm, *2 * [floats(40, 40).bfloat16()]), (aten.mm, *2 * [floats(80, 80).bfloat16()])),
        ],
        ids=["after a small one", "a sum", "of two types", "with gaps", "of several rows after one", "of 16 bits"],
    )
    def test_a_call_that_another_size_does_not_tell_of(self, first: Any, other: Any) -> None:
        assert without_a_run(call(*first), call(*other), {}) is None

    def test_products_that_another_library_may_compute(self, request: pytest.FixtureRequest) -> None:
        products = torch.backends.mkldnn.matmul
        request.addfinalizer(partial(setattr, products, "fp32_precision", products.fp32_precision))
        products.fp32_precision = "bf16"
        assert without_a_run(node_of("mm", FIRST), node_of("mm", (80, 80, 80)), {}) is None


class TestLongProducts:
    @pytest.fixture(autouse=True)
    def _short_is_long(self) -> Any:
        with patch.object(long_products, "_ENOUGH", 2**12), patch.object(long_products, "_LEAST_SIZE", 8):
            yield

    @pytest.mark.parametrize("name", ["mm", "mm of a transposed one", "addmm", "bmm"])
    @pytest.mark.parametrize("sizes", [(640, 24, 32), (24, 640, 32), (24, 32, 640)])
    def test_a_part_tells_what_the_whole_holds(self, name: str, sizes: Sizes) -> None:
        node = node_of(name, sizes)
        with patch.object(workspace_meter, "part_of", return_value=None):
            whole = held(WorkspaceMeter(CPU, timed=False), node)
        assert held(WorkspaceMeter(CPU, timed=False), node) == whole

    def test_the_whole_is_as_many_times_the_part_as_it_has_work(self) -> None:
        part = part_of(node_of("mm", (640, 24, 32)), lambda argument: Layout.of(argument.meta["val"]))
        assert part is not None
        assert (part.times * len(part.args[0]), part.args[1].shape) == (640, (24, 32))

    def test_the_whole_runs_if_a_part_holds_more_than_its_result(self) -> None:
        def wrong(*arguments: Any) -> Any:
            part = part_of(*arguments)
            return part and part._replace(result_nbytes=part.result_nbytes + 4)

        with (
            patch.object(workspace_meter, "part_of", wrong),
            patch.object(WorkspaceMeter, "_run", autospec=True, side_effect=WorkspaceMeter._run) as run,
        ):
            held(WorkspaceMeter(CPU, timed=False), node_of("mm", (640, 24, 32)))
        assert run.call_count == 2
