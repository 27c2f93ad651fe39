"""The memory inside one call is what the allocator recorded while the call ran alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import predict, within_budget
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.memory.allocations import Allocations
from ogc_plan.adapters.pytorch.memory.workspace_meter import WorkspaceMeter
from ogc_plan.planner.errors import AdapterError
from torch import Tensor, fx, nn
from torch.library import custom_op
from torch.profiler import profile

from models.meters import allocator_meter
from models.meters.step_meters import by_allocator
from models.networks.resnet import ResNet
from models.networks.unet import UNet
from tests.graphs.aten_calls import call, traced
from tests.modules.devices import DEVICE_TYPE, cpu_only, random_state
from tests.modules.torch_modules import ODD, WithLoss

aten = torch.ops.aten
DEVICE = torch.get_default_device()
ALLOCATOR = cpu_only("reads the record of the CPU's allocator")

IMAGES, KERNEL = torch.randn(2, 16, 24, 24), torch.randn(32, 16, 3, 3)
GRADIENT = torch.randn(2, 32, 24, 24)

ran: list[tuple[int, ...]] = []
"""Strides of the inputs that `observed` was run with."""


@custom_op("ogc_plan_tests::observed", mutates_args=())
def observed(x: Tensor) -> Tensor:
    ran.append(x.stride())
    return torch.empty(x.shape, device=x.device)


@custom_op("ogc_plan_tests::refusing", mutates_args=())
def refusing(x: Tensor) -> Tensor:
    raise ValueError("not like this")


@observed.register_fake
@refusing.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(x.shape, device=x.device)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@pytest.fixture
def meter() -> WorkspaceMeter:
    return WorkspaceMeter(DEVICE)


def run_backward(gradient: Tensor, images: Tensor, kernel: Tensor) -> Any:
    return aten.convolution_backward(
        gradient, images, kernel, [32], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
    )


def convolution_backward() -> fx.Node:
    return call(run_backward, GRADIENT, IMAGES, KERNEL)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    **ODD,
    "resnet": (lambda: WithLoss(ResNet((1, 1, 1, 1))), lambda: (torch.randn(2, 3, 16, 16),)),
    "unet": (lambda: WithLoss(UNet(widths=(8, 16))), lambda: (torch.randn(2, 3, 16, 16),)),
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

    @ALLOCATOR
    def test_the_peak_is_what_the_allocator_records_around_the_call(self, meter: WorkspaceMeter) -> None:
        events = allocator_meter.record(lambda: run_backward(GRADIENT, IMAGES, KERNEL))
        assert meter.peak_without(convolution_backward()) == allocator_meter.peaks(events).total_nbytes

    @ALLOCATOR
    def test_without_outputs_it_is_what_the_allocator_records_without_them(self, meter: WorkspaceMeter) -> None:
        made: list[Tensor] = []
        events = allocator_meter.record(lambda: made.extend(run_backward(GRADIENT, IMAGES, KERNEL)))
        recorded = allocator_meter.peaks(events, without=made[1:]).activation_nbytes
        assert meter.peak_without(convolution_backward(), frozenset({1, 2})) == recorded


class TestWholeNetworks:
    @pytest.mark.parametrize("name", ["resnet", "attention", "shared norm", "moving buffer"])
    def test_every_call_can_be_measured(self, name: str, meter: WorkspaceMeter) -> None:
        meter.measure(allocating(joint(name)))
        assert meter.unmeasured == set()

    @ALLOCATOR
    def test_a_step_holds_what_is_predicted_with_workspace(self) -> None:
        module, args = NETWORKS["unet"][0](), NETWORKS["unet"][1]()
        trained = within_budget(module, args, budget="100%", device="cpu")
        held = by_allocator(lambda: trained(*args).backward(), trained, args).activation_nbytes
        assert 0.9 * predict(trained).activation_nbytes <= held <= predict(trained).activation_nbytes


class TestOnce:
    def test_a_call_measured_before_does_not_run_again(self, meter: WorkspaceMeter) -> None:
        first, second = traced(lambda x: observed(observed(x)), IMAGES)
        meter.peak_without(first)
        once = len(ran)
        meter.peak_without(second)
        assert len(ran) == once > 0

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
            lambda: call(aten.multinomial, torch.empty(3), 2),
            lambda: call(aten.binary_cross_entropy, torch.empty(3), torch.empty(3), None, 0),
            lambda: call(aten.where, torch.empty(3, dtype=torch.bool), torch.empty(3), torch.empty(3)),
            lambda: call(aten.relu, torch.empty(4, 4)[:0, :3]),
            lambda: call(aten.cat, [torch.empty(3), torch.empty(2)]),
            lambda: call(aten._to_copy, torch.empty(3, dtype=torch.float8_e4m3fn)),
        ],
        ids=["embedding", "nll_loss", "multinomial", "binary_cross_entropy", "where", "no elements",
             "list", "8 bits"],
    )  # fmt: skip
    def test_kernels_accept_the_example_inputs(self, meter: WorkspaceMeter, node: Callable[[], fx.Node]) -> None:
        meter.measure([node()])
        assert meter.unmeasured == set()


class TestUnmeasured:
    def test_a_call_that_cannot_run_alone_is_named_and_charged_nothing(self, meter: WorkspaceMeter) -> None:
        held = meter.peak_without(call(refusing, IMAGES))
        assert (held, meter.unmeasured) == (0, {"ogc_plan_tests.refusing.default"})


class TestLeavesAlone:
    def test_the_random_generator_is_left_alone(self, meter: WorkspaceMeter) -> None:
        before = random_state()
        meter.measure([call(lambda x: aten.native_dropout(x, 0.5, True), IMAGES)])
        assert torch.equal(random_state(), before)

    def test_autocast_around_it_changes_no_measurement(self, meter: WorkspaceMeter) -> None:
        node = call(aten.mm, torch.empty(64, 64), torch.empty(64, 64))
        with torch.autocast(DEVICE_TYPE, torch.bfloat16):
            assert meter.peak_without(node) == 4 * 64 * 64

    def test_a_running_profiler_is_an_error(self, meter: WorkspaceMeter) -> None:
        node = call(aten.relu, IMAGES)
        with profile(), pytest.raises(AdapterError, match="a profiler is running"):
            meter.measure([node])


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
