"""Traced tensors have the strides that kernels give, also where a call writes in place, and train to the same bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from torch import Tensor, nn

from tests.modules.devices import DEVICE_TYPE
from tests.modules.generators import seeded
from tests.modules.torch_training import measured, planned, predicted, train

IMAGES = (torch.randn(2, 4, 8, 8, generator=seeded(0)),)


class Transposed(nn.Module):
    """A function of a transposed activation, and a view of what it makes: [2, 4, 8, 8] -> []."""

    def __init__(self, of: Callable[[Transposed, Tensor], Tensor]) -> None:
        super().__init__()
        self.of = of
        self.first, self.second = nn.Linear(64, 6), nn.Linear(6, 6)
        self.batch, self.layer, self.group = nn.BatchNorm1d(6), nn.LayerNorm(4), nn.GroupNorm(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.of(self, self.first(x.flatten(2)).transpose(1, 2))  # [2, 6, 4]
        return self.second(h.transpose(1, 2).reshape(-1, 6)).square().mean()


class Enlarging(nn.Module):
    """An upsampling whose gradient comes in channels last from a convolution: [2, 4, 8, 8] -> []."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.first, self.last = nn.Conv2d(4, 32, 1), nn.Conv2d(32, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.interpolate(self.first(x), scale_factor=2, mode=self.mode)
        return self.last(h.contiguous(memory_format=torch.channels_last)).square().mean()


NETS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: Transposed(lambda net, h: net.batch(h)),
    "layer norm": lambda: Transposed(lambda net, h: net.layer(h)),
    "group norm": lambda: Transposed(lambda net, h: net.group(h)),
    "dropout": lambda: Transposed(lambda _, h: F.dropout(h, 0.3).sin()),
    "softmax": lambda: Transposed(lambda _, h: h.softmax(1)),
    "loss": lambda: Transposed(lambda _, h: F.mse_loss(h, h.detach().cos(), reduction="none")),
    "gelu": lambda: Transposed(lambda _, h: F.gelu(h)),
    "nearest": lambda: Enlarging("nearest"),
    "nearest, exact": lambda: Enlarging("nearest-exact"),
    "bilinear": lambda: Enlarging("bilinear"),
    "area": lambda: Enlarging("area"),
}
OF_ITSELF = pytest.mark.skipif(DEVICE_TYPE != "cpu", reason="the backward of its kernel adds in any order")


@pytest.fixture(scope="module", params=[*(n for n in NETS if n != "area"), pytest.param("area", marks=OF_ITSELF)])
def nets(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    """A network and the same planned, without a warning of unknown strides."""
    torch.manual_seed(0)
    net = NETS[request.param]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return net, planned(net, IMAGES, "1GB", "segments:2")


class TestLayouts:
    def test_training_is_bitwise_equal(self, nets: tuple[nn.Module, nn.Module]) -> None:
        net, trained = nets
        assert train(trained, IMAGES, steps=2) == train(net, IMAGES, steps=2)

    def test_the_measured_peaks_are_the_predicted_ones(self, nets: tuple[nn.Module, nn.Module]) -> None:
        trained = nets[1]
        assert measured(trained, IMAGES) == predicted(trained)


@torch.library.custom_op("aten::ogc_plan_refuses_halves", mutates_args=())
def refuses_halves(x: Tensor) -> Tensor:
    """Twice its input."""
    if (x == 0.5).all():
        raise ValueError("all of them one half")
    return x * 2


refuses_halves.register_fake(torch.empty_like)
refuses_halves.register_autograd(lambda ctx, gradient: gradient * 2)


@pytest.mark.values
def test_a_call_that_refuses_to_run_on_stand_ins_is_named() -> None:
    with pytest.warns(UserWarning, match="ogc_plan_refuses_halves.default lays out .* one half"):
        capture(Transposed(lambda _, h: refuses_halves(h)), IMAGES)


WIDTH = 40
"""No multiple of AVX2's or AVX-512's registers, unrolled twice: the rest of a row takes another path."""


def turned_triangle(x: Tensor) -> Tensor:
    return torch.tril(x.detach().contiguous(), out=torch.empty(x.shape[::-1]).t())


Call = Callable[[Tensor, Tensor], Tensor]
OVER: dict[str, Call] = {
    "fill": lambda x, mask: x.masked_fill_(mask, -1.0),
    "lower triangle": lambda x, mask: x.tril_(),
    "rows added": lambda x, mask: x.index_add_(0, torch.tensor([0, 2]), x.detach()[:2]),
    "norms cut": lambda x, mask: x.renorm_(2, 0, 1.0),
    "dropout": lambda x, mask: F.dropout(x, 0.3, inplace=True),
    "a sum, through a view of all": lambda x, mask: (x.detach().cumsum_(1), x)[1],
    "a triangle, named out": lambda x, mask: x * turned_triangle(x).sigmoid().sum(1, keepdim=True),
    "normal numbers into a part": lambda x, mask: x * torch.empty(x.shape[0], 50)[:, 3:19].normal_(),
    "random numbers, packed": lambda x, mask: x * torch.bernoulli(x.detach(), 0.3),
}
"""Calls over a transposed tensor; out of place their results are contiguous."""


class Over(nn.Module):
    """A product in another layout, written in place and summed by rows."""

    def __init__(self, call: Call, turned: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.call, self.turned = nn.Parameter(torch.randn(WIDTH, WIDTH)), call, turned
        self.register_buffer("mask", torch.rand(WIDTH, 16) > 0.5)

    def forward(self, x: Tensor) -> Tensor:
        written = self.call(self.turned(x @ self.weight), self.mask)
        return written.sigmoid().sum(1).square().mean()


@pytest.mark.parametrize("name", OVER)
def test_a_call_over_a_transposed_tensor_is_bitwise_equal(name: str) -> None:
    torch.manual_seed(0)
    module, args = Over(OVER[name], lambda x: x.t() * 1), (torch.randn(16, WIDTH),)
    assert train(planned(module, args, "1GB", "segments:2"), args, steps=2) == train(module, args, steps=2)
