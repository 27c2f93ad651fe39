"""The memory inside one call is what the allocator recorded while the call ran alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.memory.allocations import Allocations
from ogc_plan.adapters.pytorch.memory.workspace_meter import WorkspaceMeter
from ogc_plan.planner.errors import AdapterError
from torch import Tensor, fx, nn
from torch.library import custom_op
from torch.profiler import profile

from models.meters import allocator_meter
from models.networks.gpt2 import GPT2, GPT2Config
from models.networks.resnet import ResNet
from models.networks.unet import UNet
from tests.graphs.aten_calls import call, traced
from tests.modules.torch_modules import ODD, WithLoss

aten = torch.ops.aten
CPU = torch.device("cpu")

IMAGES, KERNEL = torch.randn(2, 16, 24, 24), torch.randn(32, 16, 3, 3)
GRADIENT = torch.randn(2, 32, 24, 24)
OUTPUT_NBYTES = 4 * 2 * 32 * 24 * 24

RUNS = 4
"""How often a call runs: once under the allocator's record, and to be timed."""

ran: list[tuple[int, ...]] = []
"""Strides of the inputs that `observed` was run with."""

modes: list[bool] = []
"""Whether gradient mode was on when `observed` ran."""

older: list[Tensor] = []
"""What `remembering` takes and `forgetting` returns."""


@custom_op("ogc_plan_tests::observed", mutates_args=())
def observed(x: Tensor) -> Tensor:
    ran.append(x.stride())
    modes.append(torch.is_grad_enabled())
    return torch.empty(x.shape)


@custom_op("ogc_plan_tests::refusing", mutates_args=())
def refusing(x: Tensor) -> Tensor:
    raise ValueError("not like this")


@custom_op("ogc_plan_tests::larger_than_traced", mutates_args=())
def larger_than_traced(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clone(), torch.empty(1000)


@custom_op("ogc_plan_tests::remembering", mutates_args=())
def remembering(x: Tensor) -> Tensor:
    older.append(torch.empty(1000))
    return x.clone()


@custom_op("ogc_plan_tests::forgetting", mutates_args=())
def forgetting(x: Tensor) -> Tensor:
    older.clear()
    return x.clone()


@observed.register_fake
@remembering.register_fake
@forgetting.register_fake
@refusing.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape)


@larger_than_traced.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty(x.shape), torch.empty(0)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()
    modes.clear()


@pytest.fixture
def meter() -> WorkspaceMeter:
    return WorkspaceMeter(CPU)


def convolution() -> fx.Node:
    return call(lambda x, w: aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), IMAGES, KERNEL)


def run_backward(gradient: Tensor, images: Tensor, kernel: Tensor) -> Any:
    return aten.convolution_backward(
        gradient, images, kernel, [32], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
    )


def convolution_backward() -> fx.Node:
    return call(run_backward, GRADIENT, IMAGES, KERNEL)


def small_gpt() -> nn.Module:
    return GPT2(GPT2Config(vocabulary=50, context=16, layers=2, heads=2, width=16, dropout=0.1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    **ODD,
    "resnet50": (lambda: WithLoss(ResNet((3, 4, 6, 3))), lambda: (torch.randn(2, 3, 32, 32),)),
    "gpt2": (lambda: WithLoss(small_gpt()), lambda: (torch.zeros(2, 16, dtype=torch.int64),)),
    "unet": (lambda: WithLoss(UNet(widths=(8, 16, 32))), lambda: (torch.randn(2, 3, 32, 32),)),
}


def joint(name: str) -> fx.Graph:
    module, args = NETWORKS[name]
    return capture(module(), args()).graph


def allocating(graph: fx.Graph) -> list[fx.Node]:
    allocations = Allocations(graph)
    return [node for node in graph.nodes if allocations.allocates(node)]


class TestPeak:
    def test_a_pointwise_call_holds_its_result(self, meter: WorkspaceMeter) -> None:
        assert meter.peak_without(call(aten.relu, IMAGES)) == IMAGES.nbytes

    def test_a_convolution_holds_more_than_its_result(self, meter: WorkspaceMeter) -> None:
        assert meter.peak_without(convolution()) > OUTPUT_NBYTES

    def test_a_dropout_holds_its_two_results_and_what_it_draws(self, meter: WorkspaceMeter) -> None:
        node = call(lambda x: aten.native_dropout(x, 0.5, True), IMAGES)
        assert meter.peak_without(node) == IMAGES.nbytes + IMAGES.numel() + IMAGES.nbytes

    def test_the_peak_is_what_the_allocator_records_around_the_call(self, meter: WorkspaceMeter) -> None:
        events = allocator_meter.record(lambda: run_backward(GRADIENT, IMAGES, KERNEL))
        assert meter.peak_without(convolution_backward()) == allocator_meter.peaks(events).total_nbytes

    def test_without_outputs_it_is_what_the_allocator_records_without_them(self, meter: WorkspaceMeter) -> None:
        made: list[Tensor] = []
        events = allocator_meter.record(lambda: made.extend(run_backward(GRADIENT, IMAGES, KERNEL)))
        recorded = allocator_meter.peaks(events, without=made[1:]).activation_nbytes
        assert meter.peak_without(convolution_backward(), frozenset({1, 2})) == recorded

    def test_an_output_that_comes_after_the_worst_moment_changes_nothing(self, meter: WorkspaceMeter) -> None:
        node = convolution_backward()
        assert meter.peak_without(node, frozenset({1, 2})) == meter.peak_without(node)

    def test_an_output_held_at_the_worst_moment_counts(self, meter: WorkspaceMeter) -> None:
        node = convolution_backward()
        assert meter.peak_without(node, frozenset({0})) == meter.peak_without(node) - IMAGES.nbytes

    def test_positions_skip_results_that_the_call_does_not_return(self, meter: WorkspaceMeter) -> None:
        statistics, weight = torch.empty(2, 16, 24, 1), torch.empty(24)
        node = call(
            lambda x, s, w: aten.native_layer_norm_backward(x, x, [24], s, s, w, w, [False, True, True]),
            IMAGES,
            statistics,
            weight,
        )
        assert meter.peak_without(node, frozenset({0})) == meter.peak_without(node) - weight.nbytes

    def test_memory_older_than_the_call_does_not_count_when_it_is_returned(self, meter: WorkspaceMeter) -> None:
        nodes = traced(lambda x: (remembering(x), forgetting(x)), IMAGES)
        meter.measure(nodes)
        assert meter.peak_without(nodes[1]) == IMAGES.nbytes


class TestWholeNetworks:
    @pytest.mark.parametrize("name", NETWORKS)
    def test_every_call_can_be_measured(self, name: str, meter: WorkspaceMeter) -> None:
        meter.measure(allocating(joint(name)))
        assert meter.unmeasured == set()

    @pytest.mark.parametrize("name", ["convolutional", "attention", "unet"])
    def test_live_memory_and_the_peaks_of_calls_give_the_peak_of_a_step(self, name: str, meter: WorkspaceMeter) -> None:
        graph = joint(name)
        assert predicted_peak(graph, meter) == recorded_peak(graph)

    def test_measured_together_is_measured_alone(self, meter: WorkspaceMeter) -> None:
        nodes = allocating(joint("unet"))
        meter.measure(nodes)
        alone = WorkspaceMeter(CPU)
        assert [meter.peak_without(node) for node in nodes] == [alone.peak_without(node) for node in nodes]


def last_uses(graph: fx.Graph) -> dict[fx.Node, int]:
    """The position of the last call that needs each node."""
    last: dict[fx.Node, int] = {}
    for position, node in enumerate(graph.nodes):
        last.update(dict.fromkeys((node, *node.all_input_nodes), position))
    return last


def predicted_peak(graph: fx.Graph, meter: WorkspaceMeter) -> int:
    allocations, last = Allocations(graph), last_uses(graph)
    end: dict[int, int] = {}
    for node, found in allocations.of.items():
        end.update({allocation: max(end.get(allocation, 0), last[node]) for allocation in found})
    peak, alive = 0, set[int]()
    for position, node in enumerate(graph.nodes):
        if allocations.allocates(node):
            held = sum(allocations.entries[allocation].nbytes for allocation in alive)
            peak = max(peak, held + meter.peak_without(node))
            alive.update(allocations.made[node])
        alive = {allocation for allocation in alive if end[allocation] > position}
    return peak


def recorded_peak(graph: fx.Graph) -> int:
    """What the allocator records while the graph runs call by call, each value dropped after its last use."""
    last = last_uses(graph)
    values: dict[fx.Node, Any] = {
        node: torch.zeros(node.meta["val"].shape, dtype=node.meta["val"].dtype)
        for node in graph.find_nodes(op="placeholder")
    }

    def step() -> None:
        for position, node in enumerate(graph.nodes):
            if node.op == "call_function":
                args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
                del args, kwargs
            for dead in [value for value in values if last[value] <= position and value.op != "placeholder"]:
                del values[dead]

    with torch.no_grad():
        return allocator_meter.peaks(allocator_meter.record(step)).total_nbytes


class TestOnce:
    def test_a_call_measured_before_does_not_run_again(self, meter: WorkspaceMeter) -> None:
        for node in traced(lambda x: observed(observed(x)), IMAGES):
            meter.peak_without(node)
        assert len(ran) == RUNS

    def test_another_shape_is_another_call(self, meter: WorkspaceMeter) -> None:
        meter.measure(traced(lambda x: (observed(x), observed(x[:1])), IMAGES))
        assert len(ran) == 2 * RUNS

    def test_another_constant_is_another_call(self, meter: WorkspaceMeter) -> None:
        first, second = traced(lambda x: (aten.sum(x, [0]), aten.sum(x, [1])), IMAGES)
        assert meter.peak_without(first) - meter.peak_without(second) == IMAGES[0].nbytes - IMAGES[:, 0].nbytes


class TestInputs:
    @pytest.mark.parametrize(
        "view",
        [lambda x: x.t(), lambda x: x[:1].expand(5, 7), lambda x: x[::2, 1::3], lambda x: x.unfold(1, 3, 2)],
        ids=["transposed", "expanded", "sliced", "overlapping"],
    )
    def test_example_inputs_have_the_strides_of_the_real_ones(
        self, meter: WorkspaceMeter, view: Callable[[Tensor], Tensor]
    ) -> None:
        table = torch.empty(5, 7)
        meter.measure(traced(lambda x: observed(view(x)), table)[-1:])
        assert set(ran) == {view(table).stride()}

    @pytest.mark.parametrize(
        "node",
        [
            lambda: call(aten.embedding, torch.empty(3, 4), torch.zeros(5, dtype=torch.int64)),
            lambda: call(lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100), torch.empty(5, 3),
                         torch.zeros(5, dtype=torch.int64)),
            lambda: call(aten.bernoulli, torch.empty(3)),
            lambda: call(aten.multinomial, torch.empty(3), 2),
            lambda: call(aten.binary_cross_entropy, torch.empty(3), torch.empty(3), None, 0),
            lambda: call(aten.where, torch.empty(3, dtype=torch.bool), torch.empty(3), torch.empty(3)),
            lambda: call(aten.relu, torch.empty(4, 4)[:0, :3]),
            lambda: call(aten.cat, [torch.empty(3), torch.empty(2)]),
            lambda: call(aten._to_copy, torch.empty(3, dtype=torch.float8_e4m3fn)),
        ],
        ids=["embedding", "nll_loss", "bernoulli", "multinomial", "binary_cross_entropy", "where", "no elements",
             "list", "8 bits"],
    )  # fmt: skip
    def test_kernels_accept_the_example_inputs(self, meter: WorkspaceMeter, node: Callable[[], fx.Node]) -> None:
        meter.measure([node()])
        assert meter.unmeasured == set()


class TestUnmeasured:
    def test_a_call_that_cannot_run_alone_is_named(self, meter: WorkspaceMeter) -> None:
        meter.measure([call(refusing, IMAGES)])
        assert meter.unmeasured == {"ogc_plan_tests.refusing.default"}

    def test_a_call_that_cannot_run_alone_is_charged_nothing(self, meter: WorkspaceMeter) -> None:
        assert meter.peak_without(call(refusing, IMAGES)) == 0

    def test_a_call_after_it_is_measured(self, meter: WorkspaceMeter) -> None:
        nodes = traced(lambda x: (refusing(x), aten.relu(x)), IMAGES)
        meter.measure(nodes)
        assert meter.peak_without(nodes[1]) == IMAGES.nbytes

    def test_a_call_that_returns_more_than_was_traced_tells_how_much_it_holds(self, meter: WorkspaceMeter) -> None:
        assert meter.storage_nbytes(call(larger_than_traced, IMAGES))[1] == 4 * 1000

    def test_a_call_is_timed(self, meter: WorkspaceMeter) -> None:
        assert meter.time_ns(call(aten.relu, IMAGES)) > 0

    def test_a_mean_may_hold_the_memory_of_its_squares(self, meter: WorkspaceMeter) -> None:
        assert meter.storage_nbytes(call(aten.mse_loss, IMAGES, IMAGES)) == [IMAGES.nbytes]

    def test_its_reader_is_measured_on_what_it_really_returns(self, meter: WorkspaceMeter) -> None:
        nodes = traced(lambda x: aten.relu(larger_than_traced(x)[1]), IMAGES)
        meter.measure(nodes)
        assert meter.peak_without(nodes[1]) == 4 * 1000


class TestLeavesAlone:
    def test_the_random_generator_is_left_alone(self, meter: WorkspaceMeter) -> None:
        before = torch.get_rng_state()
        meter.measure([call(lambda x: aten.native_dropout(x, 0.5, True), IMAGES)])
        assert torch.equal(torch.get_rng_state(), before)

    def test_gradient_mode_is_off_for_the_calls_as_in_a_planned_step(self, meter: WorkspaceMeter) -> None:
        meter.measure([call(observed, IMAGES)])
        assert set(modes) == {False}

    def test_autocast_around_it_changes_no_measurement(self, meter: WorkspaceMeter) -> None:
        node = call(aten.mm, torch.empty(64, 64), torch.empty(64, 64))
        with torch.autocast("cpu", torch.bfloat16):
            assert meter.peak_without(node) == 4 * 64 * 64

    def test_a_running_profiler_is_an_error(self, meter: WorkspaceMeter) -> None:
        node = call(aten.relu, IMAGES)
        with profile(), pytest.raises(AdapterError, match="a profiler is running"):
            meter.measure([node])

    def test_a_running_profiler_is_allowed_if_nothing_is_left_to_measure(self, meter: WorkspaceMeter) -> None:
        node = call(aten.relu, IMAGES)
        meter.measure([node])
        with profile():
            assert meter.peak_without(node) == IMAGES.nbytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCuda:
    def test_the_peak_on_cuda_is_what_the_allocator_counts(self) -> None:
        inputs = [tensor.cuda() for tensor in (GRADIENT, IMAGES, KERNEL)]
        meter = WorkspaceMeter(inputs[0].device)
        measured = meter.peak_without(call(run_backward, *inputs))
        run_backward(*inputs)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run_backward(*inputs)
        assert measured == torch.cuda.max_memory_allocated() - before

    def test_the_generator_is_left_alone(self) -> None:
        node = call(lambda x: aten.native_dropout(x, 0.5, True), IMAGES.cuda())
        before = torch.cuda.get_rng_state()
        WorkspaceMeter(torch.device("cuda", 0)).measure([node])
        assert torch.equal(torch.cuda.get_rng_state(), before)
