"""Traced tensors have the strides that kernels give, and calls are the kernels of eager training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.joint import Joint
from torch import Tensor, fx, nn

from tests.modules.torch_training import measured, planned, predicted, train

IMAGES = (torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0)),)


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
    "smooth loss": lambda: Transposed(lambda _, h: F.smooth_l1_loss(h, h.detach().cos(), reduction="none")),
    "gelu": lambda: Transposed(lambda _, h: F.gelu(h)),
    "cumulative sum": lambda: Transposed(lambda _, h: h.cumsum(1)),
    "padding": lambda: Transposed(lambda _, h: F.pad(h, (1, 0))[..., 1:]),
    "nearest": lambda: Enlarging("nearest"),
    "nearest, exact": lambda: Enlarging("nearest-exact"),
    "bilinear": lambda: Enlarging("bilinear"),
    "area": lambda: Enlarging("area"),
}


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return NETS[request.param]()


def otherwise(joint: Joint) -> list[str]:
    """Calls whose results have other strides than traced, each run on tensors of the strides before it."""
    real: dict[fx.Node, Any] = {}
    found = []
    for node in joint.graph.nodes:
        if node.op == "placeholder":
            like = node.meta["val"]
            real[node] = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).fill_(0.5)
        elif node.op == "get_attr":
            real[node] = getattr(joint.graph.owning_module, str(node.target))
        elif node.op == "call_function":
            real[node] = node.target(*fx.map_arg(node.args, real.get), **fx.map_arg(node.kwargs, real.get))
            made, traced = real[node], node.meta["val"]
            pairs = zip(made, traced, strict=True) if isinstance(made, (tuple, list)) else [(made, traced)]
            tensors = [(m, t) for m, t in pairs if isinstance(m, Tensor) and isinstance(t, Tensor)]
            found += [node.name for m, t in tensors if m.stride() != t.stride() and m.numel() > 1]
    return found


class TestLayouts:
    def test_every_result_has_the_strides_that_were_traced(self, net: nn.Module) -> None:
        assert otherwise(capture(net, IMAGES)) == []

    def test_training_is_bitwise_equal(self, net: nn.Module) -> None:
        assert train(planned(net, IMAGES, "1GB", "segments:2"), IMAGES, steps=2) == train(net, IMAGES, steps=2)

    def test_the_measured_peaks_are_the_predicted_ones(self, net: nn.Module) -> None:
        trained = planned(net, IMAGES, "1GB", "segments:2")
        assert measured(trained, IMAGES) == predicted(trained)

    @pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
    def test_an_enlargement_is_the_call_of_eager(self, mode: str) -> None:
        calls = {str(node.target) for node in capture(Enlarging(mode), IMAGES).graph.nodes}
        exact = "_upsample_nearest_exact2d" if "exact" in mode else "upsample_nearest2d"
        assert {f"aten.{exact}.default", f"aten.{exact}_backward.default"} <= calls


@torch.library.custom_op("aten::ogc_plan_refuses_halves", mutates_args=())
def refuses_halves(x: Tensor) -> Tensor:
    """Twice its input."""
    if (x == 0.5).all():
        raise ValueError("all of them one half")
    return x * 2


refuses_halves.register_fake(torch.empty_like)
refuses_halves.register_autograd(lambda ctx, gradient: gradient * 2)


def test_a_call_that_refuses_to_run_on_stand_ins_is_named() -> None:
    with pytest.warns(UserWarning, match="ogc_plan_refuses_halves.default lays out .* one half"):
        capture(Transposed(lambda _, h: refuses_halves(h)), IMAGES)


def test_no_call_of_these_networks_has_unknown_strides() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for build in NETS.values():
            capture(build(), IMAGES)
