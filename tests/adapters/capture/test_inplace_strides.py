"""A tensor that is written in place keeps its layout, so that its readers compute the bits of eager training."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch import plan_of, within_budget
from torch import Tensor, nn

from models.meters.storage_meter import StorageMeter
from tests.modules.torch_training import measured, planned, predicted, train

WIDTH = 40
"""No multiple of AVX2's or AVX-512's registers, unrolled twice: the rest of a row takes another path."""


def turned_triangle(x: Tensor) -> Tensor:
    return torch.tril(x.detach().contiguous(), out=torch.empty(x.shape[::-1]).t())


Call = Callable[[Tensor, Tensor], Tensor]
OVER: dict[str, Call] = {
    "fill": lambda x, mask: x.masked_fill_(mask, -1.0),
    "cumulative sum": lambda x, mask: x.cumsum_(1),
    "lower triangle": lambda x, mask: x.tril_(),
    "rows added": lambda x, mask: x.index_add_(0, torch.tensor([0, 2]), x.detach()[:2]),
    "rows scattered": lambda x, mask: x.scatter_add_(0, torch.zeros(2, x.shape[1], dtype=torch.int64), x.detach()[:2]),
    "norms cut": lambda x, mask: x.renorm_(2, 0, 1.0),
    "dropout": lambda x, mask: F.dropout(x, 0.3, inplace=True),
    "a sum, through a view of all": lambda x, mask: (x.detach().cumsum_(1), x)[1],
    "a sum, with one dimension more": lambda x, mask: (x.unsqueeze(0).cumsum_(2), x)[1],
    "a triangle, named out": lambda x, mask: x * turned_triangle(x).sigmoid().sum(1, keepdim=True),
    "normal numbers into a part": lambda x, mask: x * torch.empty(x.shape[0], 50)[:, 3:19].normal_(),
    "random numbers": lambda x, mask: x * torch.empty_like(x).bernoulli_(0.3),
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


def test_dropout_over_a_channels_last_image_is_bitwise_equal() -> None:
    torch.manual_seed(0)
    images = lambda x: x.view(4, 4, 5, 8).contiguous(memory_format=torch.channels_last) * 1  # noqa: E731
    module, args = Over(OVER["dropout"], images), (torch.randn(16, WIDTH),)
    assert train(planned(module, args, "1GB", "segments:2"), args, steps=2) == train(module, args, steps=2)


class Pieces(nn.Module):
    """Pieces of a product, each written over in turn."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.call = nn.Parameter(torch.randn(WIDTH, WIDTH)), call

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.call(piece) for piece in (x @ self.weight).unsafe_chunk(5, 1)]).exp().mean()


def test_the_peaks_of_pieces_of_pieces_are_the_predicted_ones() -> None:
    halves = lambda x: sum(half.mul_(2).sum() for half in x.unsafe_chunk(2, 0))  # noqa: E731
    module, args = Pieces(halves), (torch.randn(16, WIDTH),)
    trained = planned(module, args)
    assert measured(trained, args) == predicted(trained)


OVER_PIECES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoids": lambda x: x.add_(1).sigmoid_(),
    "tanhs": lambda x: x.mul_(2).tanh_(),
    "dropouts": lambda x: F.dropout(x, 0.3, inplace=True).sigmoid_(),
}


@pytest.mark.parametrize("name", OVER_PIECES)
def test_calls_over_the_pieces_of_a_tensor_are_bitwise_equal(name: str) -> None:
    torch.manual_seed(0)
    module, args = Pieces(OVER_PIECES[name]), (torch.randn(16, WIDTH),)
    assert train(planned(module, args, "1GB", "segments:2"), args, steps=2) == train(module, args, steps=2)


class Recurrent(nn.Module):
    """A recurrent layer of a width that fills no register, with its last state in the loss."""

    def __init__(self, build: Callable[..., nn.Module], **options: object) -> None:
        super().__init__()
        self.layer = build(WIDTH, WIDTH, **options)

    def forward(self, x: Tensor) -> Tensor:
        output, state = self.layer(x)
        return output.square().mean() + sum(last.sum() for last in (state if isinstance(state, tuple) else (state,)))


LAYERS = {
    "GRU": lambda: Recurrent(nn.GRU),
    "GRU, both directions": lambda: Recurrent(nn.GRU, bidirectional=True, num_layers=2, dropout=0.3),
    "GRU in float64": lambda: Recurrent(nn.GRU).double(),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "LSTM, both directions": lambda: Recurrent(nn.LSTM, bidirectional=True),
    "LSTM without bias": lambda: Recurrent(nn.LSTM, bias=False, batch_first=True),
    "LSTM of two layers with dropout": lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.3, batch_first=True),
    "LSTM in float64": lambda: Recurrent(nn.LSTM).double(),
    "LSTM with a projection": lambda: Recurrent(nn.LSTM, proj_size=24),
    "RNN": lambda: Recurrent(nn.RNN),
}
STEPS = torch.randn(3, 16, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
class TestRecurrent:
    @pytest.mark.parametrize("strategy", ["keep-all", "segments:2"])
    def test_training_is_bitwise_equal(self, name: str, strategy: str) -> None:
        torch.manual_seed(0)
        module = LAYERS[name]()
        args = (STEPS.to(next(module.parameters()).dtype),)
        assert train(planned(module, args, "1GB", strategy), args, steps=2) == train(module, args, steps=2)

    def test_the_measured_peaks_are_the_predicted_ones(self, name: str) -> None:
        module = LAYERS[name]()
        args = (STEPS.to(next(module.parameters()).dtype),)
        trained = planned(module, args, "1GB", "segments:2")
        assert measured(trained, args) == predicted(trained)

    def test_storing_all_takes_no_more_than_eager(self, name: str) -> None:
        module = LAYERS[name]()
        args = (STEPS.to(next(module.parameters()).dtype),)
        peaks = []
        for one in (planned(module, args), module):
            with StorageMeter([*module.parameters(), *args]) as meter:
                one(*args).backward()
            peaks.append(meter.peak().nbytes)
            module.zero_grad(set_to_none=True)
        assert peaks[0] <= peaks[1]


def test_the_workspace_of_an_lstm_can_be_measured() -> None:
    module, args = LAYERS["LSTM"](), (STEPS.float(),)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained = within_budget(module, args, budget="100%")
    assert plan_of(trained).peak.activation_nbytes >= predicted(trained)[1]
