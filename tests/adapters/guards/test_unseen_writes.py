"""Writes that PyTorch does not dispatch: they are executed, or named, and never left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError, within_budget
from torch import Tensor, nn

from tests.modules.devices import cpu_only
from tests.modules.torch_training import bits, planned, train

X = (torch.randn(16, 8),)


class Averaged(nn.Module):
    """A running mean that is assigned."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.data = self.mean.data * 0.9 + x.mean(0) * 0.1
        return self.layer(x - self.mean).square().sum()


class Spelled(Averaged):
    """Assigns its mean in another spelling."""

    def __init__(self, assign: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.assign = assign

    def forward(self, x: Tensor) -> Tensor:
        self.assign(self.mean, self.mean * 0.9 + x.mean(0) * 0.1)
        return self.layer(x - self.mean).square().sum()


SPELLINGS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "of all tensors": lambda tensor, value: torch.Tensor.data.__set__(tensor, value),
    "of its type": lambda tensor, value: type(tensor).data.__set__(tensor, value),
    "setattr": lambda tensor, value: setattr(tensor, "data", value),
    "object.__setattr__": lambda tensor, value: object.__setattr__(tensor, "data", value),
}


class Renormed(nn.Linear):
    """A layer whose weight is assigned before it is used, as EEGNet's."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.5)
        return super().forward(x)


class Grown(Averaged):
    """A buffer that is assigned data of another shape."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean.data = x.mean(0, keepdim=True)
        return self.layer(x).square().sum()


class TestDataAssignments:
    def test_a_buffer_is_written(self) -> None:
        assert train(planned(Averaged(), X, "min"), X, steps=3) == train(Averaged(), X, steps=3)

    @pytest.mark.parametrize("spelling", SPELLINGS)
    def test_a_buffer_is_written_in_another_spelling(self, spelling: str) -> None:
        assign = SPELLINGS[spelling]
        assert train(planned(Spelled(assign), X, "min"), X, steps=3) == train(Spelled(assign), X, steps=3)

    def test_other_memory_is_refused(self) -> None:
        with pytest.raises(UnsupportedModuleError, match="gives one of its tensors other memory by set_"):
            planned(Spelled(lambda tensor, value: tensor.set_(value)), X)

    def test_a_parameter_that_takes_a_gradient_is_refused(self) -> None:
        with pytest.raises(
            UnsupportedModuleError, match="changes parameter 'weight', which takes a gradient, in place"
        ):
            planned(Renormed(8, 8), X)

    def test_data_of_another_shape_is_refused(self) -> None:
        with pytest.raises(UnsupportedModuleError, match=r"a tensor of shape \[8\] is given data of another shape"):
            planned(Grown(), X)

    def test_planning_leaves_the_module_as_it_was(self) -> None:
        module = Averaged()
        planned(module, X)
        assert bits(module.mean) == bits(Averaged().mean)


class Images(nn.Module):
    """Bytes, scaled to numbers: [8, 64] -> []. Eager training keeps the numbers, not the bytes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.float() / 255).square().mean()


@cpu_only("arguments on the host")
class TestArgumentsOfALoader:
    def images(self) -> np.ndarray:
        return np.random.RandomState(0).randint(0, 255, (64, 64)).astype(np.uint8)

    def bound(self, budget: str) -> nn.Module:
        return within_budget(Images(), (torch.from_numpy(self.images()),), budget=budget, device="cpu")

    def test_one_that_is_filled_again_before_a_backward_that_reads_it_is_an_error(self) -> None:
        buffer = self.images()
        loss = self.bound("min")(torch.from_numpy(buffer))
        buffer[:] = 0
        with pytest.raises(RuntimeError, match="memory of argument 0 was written outside of torch after the forward"):
            loss.backward()

    def test_a_plan_that_does_not_read_it_again_trains_on(self) -> None:
        buffer, found = self.images(), []
        for module in (self.bound("100%"), Images()):
            buffer[:] = self.images()
            loss = module(torch.from_numpy(buffer))
            buffer[:] = 0
            loss.backward()
            found.append([bits(p.grad) for p in module.parameters() if p.grad is not None])
        assert found[0] == found[1]

    def test_the_remedy_works(self) -> None:
        buffer = self.images()
        loss = self.bound("min")(torch.from_numpy(buffer).clone())
        buffer[:] = 0
        loss.backward()
