"""Calls of a planned step write the buffers of a module themselves, where nothing else sees old or new values."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch import profile
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.modules.torch_modules import SharedNorm
from tests.modules.torch_training import CountedCalls, Loss, Trained, backward_calls, bits, planned, train

X = torch.randn(4, 3, 8, 8)
Forward = Callable[[Any, Tensor], Any]


class Normed(nn.Module):
    """A convolution with a norm, a convolution after it, and counts, which ``run`` uses."""

    def __init__(self, run: Forward, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.run = run
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = norm or nn.BatchNorm2d(4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("other", torch.zeros(()))

    def forward(self, x: Tensor, *args: Any) -> Any:
        return self.run(self, x, *args)

    def rest(self, h: Tensor) -> Tensor:
        """What follows the norm: a plan of few bytes runs the norm again for its backward."""
        return self.second((5 * h).sin()).tanh()


def plain(net: Any, x: Tensor) -> Any:
    return net.rest(net.norm(net.first(x)))


def rows(values: Tensor) -> Tensor:
    """Statistics as they multiply images."""
    return values.view(1, -1, 1, 1)


def counting(net: Any, x: Tensor) -> Any:
    net.count.add_(0.5)
    return plain(net, x)


def read_before(net: Any, x: Tensor) -> Any:
    h = net.first(x) * rows(net.norm.running_mean + 1)
    return net.rest(net.norm(h))


def read_between(net: Any, x: Tensor) -> Any:
    h = net.norm(net.first(x)) * rows(net.norm.running_var)
    return net.rest(net.norm(h))


def read_after(net: Any, x: Tensor) -> Any:
    return net.rest(net.norm(net.first(x)) * rows(net.norm.running_var))


def read_after_two(net: Any, x: Tensor) -> Any:
    return net.rest(net.norm(net.norm(net.first(x)).relu()) * rows(net.norm.running_var))


def read_by_a_backward(net: Any, x: Tensor) -> Any:
    h = net.first(x)
    return net.rest(net.norm(h)).sum() + (h * rows(net.norm.running_mean)).sin().sum()


def in_evaluation(net: Any, x: Tensor) -> Any:
    h, norm = net.first(x), net.norm
    h = F.batch_norm(h, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    return net.rest(norm(h))


def returned(net: Any, x: Tensor) -> Any:
    return plain(net, x), net.norm.running_mean.clone()


def returned_itself(net: Any, x: Tensor) -> Any:
    return plain(net, x), net.norm.running_mean, net.norm.num_batches_tracked


def kept_elsewhere(net: Any, x: Tensor) -> Any:
    total = net.count + 1
    net.count.copy_(total)
    net.other.copy_(total)
    return plain(net, x)


def returned_sum(net: Any, x: Tensor) -> Any:
    total = net.count + 1
    net.count.copy_(total)
    return plain(net, x), total


def counted_twice(net: Any, x: Tensor) -> Any:
    net.count.add_(1).add_(0.25)
    return plain(net, x) * net.count


def thrown_away(net: Any, x: Tensor) -> Any:
    h = net.first(x)
    net.norm(h.detach())
    return net.rest(h)


READ_ELSEWHERE = [
    read_before, read_between, read_after, read_after_two, read_by_a_backward, in_evaluation, returned,
    returned_itself, kept_elsewhere, returned_sum, counted_twice, thrown_away,
]  # fmt: skip


def with_gaps() -> nn.Module:
    """A module, the same at each call, with statistics that are every second element of their memory."""
    torch.manual_seed(1)
    module = Normed(plain)
    nn.init.uniform_(module.norm.weight)
    nn.init.uniform_(module.norm.bias)
    module.norm.running_mean, module.norm.running_var = torch.zeros(8)[::2], torch.ones(8)[::2]
    return module


def trained_in_place(module: nn.Module) -> list[bytes]:
    """Gradients and buffers after two steps of the module itself: in a copy statistics would have no gaps."""
    for _ in range(2):
        module(X).sum().backward()
    return [bits(each) for each in (*(parameter.grad for parameter in module.parameters()), *module.buffers())]


def in_16_bits(net: Any, x: Tensor) -> Any:
    return net.rest(net.norm(net.first(x).bfloat16()).float())


def squares(output: Any) -> Tensor:
    """A loss of all outputs that take a gradient."""
    leaves = (leaf for leaf in pytree.tree_leaves(output) if leaf.requires_grad)
    return torch.stack([leaf.square().sum() for leaf in leaves]).sum()


def last(output: Any) -> Tensor:
    """A loss that leaves out all outputs but the last one."""
    return squares(output[-1])


def trained(module: nn.Module, budget: str = "", loss: Loss = squares) -> Trained:
    """What three steps leave behind, planned if there is a budget."""
    return train(planned(module, (X,), budget) if budget else module, (X,), steps=3, loss=loss)


def writes_of(run: Callable[[], Any]) -> Counter[str]:
    """How often a forward calls norms, and what writes over tensors or casts them."""
    with CountedCalls() as counted:
        run()
    names = (name for name in counted.count if "batch_norm" in name or name in ("add_", "copy_", "_to_copy"))
    return Counter({name: counted.count[name] for name in names})


def written(module: nn.Module, *args: Any) -> list[str]:
    """The names of the buffers that calls write."""
    joint = capture(module, args or (X,))
    return [joint.primals[primal].name for primal, _ in joint.writes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_planned_step_writes_statistics_by_the_calls_of_eager(dtype: torch.dtype) -> None:
    module, x = Normed(counting).to(dtype), X.to(dtype)
    bound = planned(copy.deepcopy(module), (x,))
    assert writes_of(lambda: bound(x)) == writes_of(lambda: module(x))


@pytest.mark.values
def test_a_norm_runs_again_for_its_backward() -> None:
    assert backward_calls(planned(Normed(plain), (X,), "min"), (X,))["native_batch_norm"] == 1


@pytest.mark.values
@pytest.mark.parametrize("budget", ["100%", "min"])
def test_statistics_move_once_however_often_the_norm_runs(budget: str) -> None:
    module = Normed(counting)
    assert trained(module, budget) == trained(module)


@pytest.mark.values
@pytest.mark.parametrize("budget", ["100%", "min"])
@pytest.mark.parametrize("run", READ_ELSEWHERE)
def test_buffers_that_something_else_sees_have_the_bits_of_eager(run: Forward, budget: str) -> None:
    module = Normed(run)
    assert trained(module, budget) == trained(module)


@pytest.mark.values
@pytest.mark.parametrize("budget", ["100%", "min"])
@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4, track_running_stats=False), nn.BatchNorm2d(4, momentum=0.0),
        nn.BatchNorm2d(4).eval(), nn.SyncBatchNorm(4), nn.InstanceNorm2d(4, track_running_stats=True),
    ],
    ids=["plain", "without statistics", "that stay", "frozen", "synchronized", "of instances"],
)  # fmt: skip
def test_every_norm_has_the_bits_of_eager(norm: nn.Module, budget: str) -> None:
    module = Normed(plain, norm)
    assert trained(module, budget) == trained(module)


@pytest.mark.values
@pytest.mark.parametrize("affine", [False, True])
def test_a_norm_of_16_bits_with_statistics_of_32_has_the_bits_of_eager_when_it_runs_again(affine: bool) -> None:
    module = Normed(in_16_bits, nn.BatchNorm2d(4, affine=affine))
    assert trained(module, "min") == trained(module)


@pytest.mark.values
@pytest.mark.parametrize("budget", ["100%", "min"])
def test_a_norm_whose_statistics_have_gaps_has_the_bits_of_eager(budget: str) -> None:
    one, other = with_gaps(), with_gaps()
    assert trained_in_place(planned(one, (X,), budget)) == trained_in_place(other)


def test_a_norm_that_is_called_twice_leaves_its_statistics_to_the_step() -> None:
    assert written(SharedNorm()) == []


def test_a_norm_whose_statistics_are_read_before_it_leaves_them_to_the_step() -> None:
    assert written(Normed(read_before)) == ["norm.num_batches_tracked"]


def test_two_norms_that_share_their_statistics_leave_them_to_the_step() -> None:
    module = nn.Sequential(Normed(plain), nn.BatchNorm2d(4))
    module[1].running_mean, module[1].running_var = module[0].norm.running_mean, module[0].norm.running_var
    assert written(module) == ["0.norm.num_batches_tracked", "1.num_batches_tracked"]


def test_a_number_among_the_arguments_changes_nothing() -> None:
    module = Normed(lambda net, x, factor: plain(net, x) * factor)
    assert written(module, X, 3) == written(Normed(plain))


@pytest.mark.values
def test_a_backward_that_reads_statistics_outside_of_the_step_runs_as_in_eager() -> None:
    module = planned(Normed(plain), (X,))
    outside = (module.norm.running_mean * module.norm.weight).sum()
    module(X)
    outside.backward()
    assert bits(module.norm.weight.grad) == bits(module.norm.running_mean)


@pytest.mark.values
def test_a_step_that_leaves_out_an_output_moves_statistics_once() -> None:
    module = Normed(lambda net, x: (plain(net, x), net.first(x).exp()))
    assert trained(module, "min", last) == trained(module, loss=last)


def test_measuring_times_leaves_statistics_and_counts_as_they_are() -> None:
    module = Normed(counting)
    before = [bits(buffer) for buffer in module.buffers()]
    profile(module, (X,))
    assert [bits(buffer) for buffer in module.buffers()] == before
