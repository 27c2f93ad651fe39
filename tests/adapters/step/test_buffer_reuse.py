"""Ops write over arguments that nothing else reads: the same bits, in fewer bytes, which the plan counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ogc_plan.adapters.pytorch.memory.inplace_kernels import KERNELS, InPlace
from ogc_plan.adapters.pytorch.memory.workspace_meter import WorkspaceMeter
from torch import Tensor, nn

from models.meters.storage_meter import StorageMeter
from models.networks.gpt2 import GPT2, GPT2Config
from models.networks.resnet import ResNet
from models.networks.unet import UNet
from tests.graphs.aten_calls import call
from tests.modules.devices import DEVICE_TYPE, random_state
from tests.modules.generators import seeded
from tests.modules.torch_modules import WithLoss
from tests.modules.torch_training import bits, measured, planned, predicted, train

aten = torch.ops.aten
DEVICE = torch.get_default_device()

LAYOUTS = (torch.contiguous_format, torch.channels_last)
TYPES = (torch.float32, torch.bfloat16)
EVERY = [(overload, place) for overload, kernel in KERNELS.items() for place in kernel.arguments]
DROPOUTS = (aten.native_dropout.default, aten.native_dropout_backward.default)
CONTIGUOUS = (aten.masked_fill.Scalar, aten.native_dropout.default)
"""Calls whose results are contiguous for any arguments."""


def runs_in_place(overload: Any, dtype: torch.dtype = torch.float32) -> bool:
    """Whether a call may run in place for such arguments: dropouts only where torch composes them of other calls."""
    return overload not in DROPOUTS or (DEVICE_TYPE == "cpu" and dtype == torch.float32)


SCALARS = {
    aten.clamp.default: (-0.3, 0.4),
    aten.native_dropout.default: (0.3, True),
    aten.native_dropout_backward.default: (1 / 0.7,),
    aten.pow.Tensor_Scalar: (2,),
}
"""Arguments besides tensors, for calls that do not accept any number."""


def arguments(overload: Any, dtype: torch.dtype, layout: torch.memory_format) -> tuple[Any, ...]:
    """Random arguments of a call: tensors of 2 x 3 x 4 x 5, masks where it takes one, numbers."""
    generator, found = seeded(3), []
    numbers = iter(SCALARS.get(overload, (0.25, 0.75, 1.25, 0.5)))
    for argument in overload._schema.arguments:
        if str(argument.type) == "Tensor":
            tensor = torch.randn(2, 3, 4, 5, generator=generator).to(dtype).contiguous(memory_format=layout)
            found.append(tensor > 0 if argument.name == "mask" else tensor)
        elif not argument.has_default_value() or overload in SCALARS:
            found.append(True if str(argument.type) == "bool" else next(numbers))
    return tuple(found)


def first(result: Any) -> Tensor:
    tensor: Tensor = result[0] if isinstance(result, tuple) else result
    return tensor


@pytest.fixture(scope="module")
def peaks() -> tuple[list[int], list[int]]:
    """Bytes inside every call in place, and inside every call out of place without its result."""
    nodes = [call(overload, *arguments(overload, torch.float32, torch.contiguous_format)) for overload, _ in EVERY]
    own = {node: InPlace(KERNELS[overload], place) for node, (overload, place) in zip(nodes, EVERY, strict=True)}
    meter, plain = WorkspaceMeter(DEVICE, own), WorkspaceMeter(DEVICE)
    for one in (meter, plain):
        one.measure(nodes)
        assert not one.unmeasured
    return [meter.peak_without(node) for node in nodes], [plain.peak_without(node, frozenset({0})) for node in nodes]


class TestInPlaceKernels:
    @pytest.mark.parametrize("layout", LAYOUTS, ids=str)
    @pytest.mark.parametrize("dtype", TYPES, ids=str)
    @pytest.mark.parametrize(("overload", "place"), EVERY, ids=str)
    def test_a_call_in_place_gives_the_bits_of_the_call_out_of_place(
        self, overload: Any, place: int, dtype: torch.dtype, layout: torch.memory_format
    ) -> None:
        if not runs_in_place(overload, dtype) or (overload in CONTIGUOUS and layout == torch.channels_last):
            pytest.skip("never runs in place")
        args = arguments(overload, dtype, layout)
        torch.manual_seed(1)
        expected, drawn = overload(*args), random_state()
        torch.manual_seed(1)
        kernel = KERNELS[overload]
        own, named = InPlace(kernel, place).bound(args, {})
        result = kernel.call(*own, **named)
        assert first(result) is args[place]
        assert first(result).stride() == first(expected).stride()
        leaves = zip(result, expected, strict=True) if isinstance(result, tuple) else [(result, expected)]
        assert all(bits(one) == bits(other) for one, other in leaves)
        assert torch.equal(drawn, random_state())

    @pytest.mark.parametrize("place", range(len(EVERY)), ids=[f"{overload}-{place}" for overload, place in EVERY])
    def test_a_call_in_place_has_the_workspace_of_the_call_out_of_place(
        self, peaks: tuple[list[int], list[int]], place: int
    ) -> None:
        if not runs_in_place(EVERY[place][0]):
            pytest.skip("never runs in place")
        in_place, out_of_place_without_result = peaks
        assert in_place[place] <= out_of_place_without_result[place]


def eager_peaks(module: nn.Module, args: tuple[Any, ...]) -> tuple[int, int]:
    """Total and activation peak of one plain step, stationary memory included in the total."""
    module.zero_grad(set_to_none=True)
    stationary = [*module.parameters(), *module.buffers(), *args]
    with StorageMeter(stationary) as meter:
        module(*args).backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    held = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in stationary}
    return meter.peak().nbytes + sum(held.values()), meter.activation_peak(gradients).nbytes


def small_gpt() -> nn.Module:
    return GPT2(GPT2Config(vocabulary=50, context=16, layers=1, heads=2, width=16, dropout=0.1))


def activated_in_place() -> nn.Module:
    """Activations in place whose argument autograd copies for the backward."""
    layers = (nn.Linear(8, 8), nn.Hardswish(True), nn.Linear(8, 64), nn.SiLU(True), nn.Linear(64, 64), nn.Mish(True))
    return nn.Sequential(*layers)


NETWORKS: dict[str, Any] = {
    "activations": lambda: (WithLoss(activated_in_place()), (torch.randn(64, 8),)),
    "resnet": lambda: (WithLoss(ResNet((1, 2, 1, 1), 10)), (torch.randn(2, 3, 16, 16),)),
    "unet": lambda: (WithLoss(UNet(widths=(4, 8))), (torch.randn(2, 3, 16, 16),)),
    "gpt2": lambda: (WithLoss(small_gpt()), (torch.zeros(2, 16, dtype=torch.int64),)),
}


Case = tuple[nn.Module, tuple[Any, ...]]


@pytest.fixture(scope="module", params=sorted(NETWORKS))
def network(request: pytest.FixtureRequest) -> Case:
    torch.manual_seed(0)
    module, args = NETWORKS[request.param]()
    return module.train(), args


@pytest.fixture(scope="module")
def stored(network: Case) -> nn.Module:
    """A network trained by the plan that stores all."""
    made = planned(*network, "1GB", "keep-all")
    made(*network[1]).backward()  # on a card the first step takes the segment of the pool
    return made


class TestNetworks:
    def test_storing_all_takes_no_more_than_eager_with_modules_in_place(self, network: Case, stored: nn.Module) -> None:
        own, eager = measured(stored, network[1]), eager_peaks(*network)
        assert all(one <= other for one, other in zip(own, eager, strict=True))

    def test_storing_all_peaks_where_predicted(self, network: Case, stored: nn.Module) -> None:
        assert measured(stored, network[1]) == predicted(stored)

    def test_training_is_bitwise_equal(self, network: Case, stored: nn.Module) -> None:
        assert train(stored, network[1], steps=2) == train(network[0], network[1], steps=2)


class InPlaceNet(nn.Module):
    """Random layers, norms and calls in place, on 8 rows of 6 numbers, to a scalar loss."""

    def __init__(self, seed: int, depth: int) -> None:
        super().__init__()
        self.kinds = torch.randint(8, (depth,), generator=seeded(seed)).tolist()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in self.kinds)
        self.norm = nn.ModuleList(nn.BatchNorm1d(6) for _ in self.kinds)

    def forward(self, x: Tensor) -> Tensor:
        for kind, layer, norm in zip(self.kinds, self.layers, self.norm, strict=True):
            if kind == 0:
                x = layer(x).relu_()
            elif kind == 1:
                x = F.relu(norm(layer(x)), inplace=True)
            elif kind == 2:
                x = F.dropout(layer(x), 0.4, inplace=True)
            elif kind == 3:
                x = layer(x).add_(x)
            elif kind == 4:
                x = F.leaky_relu(norm(x), inplace=True)
            elif kind == 5:
                x = layer(norm(x)).tanh_().mul(0.5)
            elif kind == 6:
                x = norm(layer(x)).add_(layer(x)).relu_()
            else:
                x = layer(x)
        return x.exp().mean()


class TestRandomNets:
    SETTINGS = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])

    @SETTINGS
    @given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from(("keep-all", "sqrt", "segments:2", "greedy")))
    def test_training_gives_the_same_bits_in_the_bytes_predicted(self, seed: int, depth: int, strategy: str) -> None:
        module, args = InPlaceNet(seed, depth).train(), (torch.randn(8, 6),)
        trained = planned(module, args, "1GB", strategy)
        assert train(trained, args, steps=2) == train(module, args, steps=2)
        assert measured(trained, args) == predicted(trained)
