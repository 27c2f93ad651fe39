"""Odd modules: trained to the bits of eager, or refused by name; never quietly different."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch import UnsupportedModuleError, bind, plan_of, within_budget
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.execution.codegen import generate
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from ogc_plan.planner import read_plan, write_plan
from ogc_plan.planner.errors import BudgetSyntaxError, OgcPlanError, PlanMismatchError
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.solution import Decisions
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.modules.devices import STANDIN, cpu_only
from tests.modules.failure_modules import Between, recompute_all
from tests.modules.torch_modules import ODD, FusedSquares
from tests.modules.torch_training import bits, measured, planned, predicted, train


class Rounded(torch.autograd.Function):
    """Rounds, and lets the gradient pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def reversed_by_a_hook(x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: -gradient)
    return x


def enlarged(mode: str) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x.view(1, 1, -1, 6), scale_factor=2, mode=mode).view(-1, 6)


def positive(x: Tensor) -> Tensor:
    return x.T @ x + torch.eye(6)


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "a custom backward": Rounded.apply,
    "a hook on a tensor": reversed_by_a_hook,
    "bilinear interpolation": enlarged("bilinear"),
    "in-place on a view": lambda x: x.clone().index_fill_(0, torch.tensor([0]), 2.0).mul_(x),
    "chunks": lambda x: torch.cat(x.chunk(3, dim=1)[::-1], dim=1),
    "a sort": lambda x: x.sort(dim=1).values * x,
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x) @ x,
    "a checkpoint inside": lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False),
    "a detached branch": lambda x: x * x.detach().sigmoid(),
    "in place after a view": lambda x: (x * 2).view(-1, 3).sin_(),
    "in place on a part": lambda x: torch.cat([x.exp(), x.sin()]).index_copy_(0, torch.arange(8), x),
    "in place after a norm": lambda x: F.layer_norm(x, [6]).relu_(),
    "in place after a batch norm": lambda x: F.relu_(F.batch_norm(x, None, None, training=True)),
    "in place twice": lambda x: (x * 2).add_(1).sigmoid_(),
    "an inverse": lambda x: x @ torch.linalg.inv(positive(x)),
    "a solution": lambda x: torch.linalg.solve(positive(x), x.T).T,
    "factors": lambda x: x @ torch.linalg.cholesky(positive(x)) @ torch.linalg.lu_factor(positive(x))[0],
    "in place into an output": lambda x: torch.zeros(8, 6).copy_(x).add_(x),
}


SOLVER = pytest.mark.skipif(STANDIN, reason="cuSOLVER needs a card")
BY_SOLVER = ("an inverse", "a solution", "factors")


@pytest.mark.parametrize("name", [pytest.param(name, marks=SOLVER) if name in BY_SOLVER else name for name in BETWEEN])
def test_a_module_trains_to_the_bits_of_eager(name: str) -> None:
    torch.manual_seed(0)
    module, args = Between(BETWEEN[name]), (torch.randn(8, 6, requires_grad=True),)
    plain = train(module, args, steps=3)
    assert train(planned(module, args, "min"), args, steps=3) == plain
    assert train(recompute_all(module, args), args, steps=3) == plain


@SOLVER
def test_a_check_of_linear_algebra_raises_in_a_planned_step_too() -> None:
    trained = planned(Between(lambda x: x @ torch.linalg.cholesky(x.T @ x)), (torch.randn(8, 6),))
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        trained(torch.zeros(8, 6))


class Offsets(nn.Module):
    """Three parameters with the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.offsets = nn.ParameterList(torch.randn(8, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.offsets
        return self.layer(x) + first + second + third


def test_parameters_of_one_gradient_each_get_it() -> None:
    module, args = Offsets(), (torch.randn(8, 6),)
    assert train(planned(module, args, "min"), args, loss=torch.sum) == train(module, args, loss=torch.sum)


CELLS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "an LSTM": (lambda: nn.LSTM(40, 40), (3, 16, 40)),
    "an LSTM without bias": (lambda: nn.LSTM(40, 40, bias=False, batch_first=True), (3, 16, 40)),
    "an LSTM with a projection": (lambda: nn.LSTM(40, 40, proj_size=24), (3, 16, 40)),
    "an RNN": (lambda: nn.RNN(40, 40), (3, 16, 40)),
    "a GRU in both directions": (lambda: nn.GRU(40, 40, bidirectional=True, num_layers=2, dropout=0.3), (3, 16, 40)),
    "a deep GRU with dropout": (lambda: nn.GRU(6, 6, num_layers=2, dropout=0.3), (2, 5, 6)),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **CELLS,
    "dropout in 16 bits": (lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3)).bfloat16(), (5, 6)),
    "a transposed convolution": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (2, 3, 5, 5)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), (3, 6)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), (3, 6)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (2, 3, 5, 5)),
    "a frozen batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3).eval()), (2, 3, 5, 5)),
    "RMS norm": (lambda: nn.RMSNorm(6), (3, 6)),
}

RECURRENT = cpu_only("cuDNN's recurrent layers are refused: tests/cuda/test_recurrent.py")


class FoundLast(nn.Linear):
    """No later call than that of the function has a backward."""

    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x)
        return h.exp() + FusedSquares.apply(h)


def test_a_gradient_found_in_the_forward_is_added_as_in_eager_training() -> None:
    module, args = FoundLast(6, 6), (torch.randn(8, 6, requires_grad=True),)
    plain = train(module, args, loss=torch.sum)
    assert train(planned(module, args, "min"), args, loss=torch.sum) == plain


class Squared(nn.Module):
    """The mean square of everything that a layer returns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return sum(leaf.float().square().mean() for leaf in pytree.tree_leaves(self.layer(x)))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", [pytest.param(name, marks=RECURRENT if name in CELLS else ()) for name in LAYERS])
def test_a_layer_trains_to_the_bits_of_eager_in_the_bytes_predicted(name: str) -> None:
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    module = Squared(build())
    args = (torch.randn(shape, dtype=next(module.parameters()).dtype),)
    trained = planned(module, args, "1GB", "segments:2")
    assert train(trained, args, steps=3) == train(module, args, steps=3)
    assert measured(trained, args) == predicted(trained)


def test_a_dropout_of_everything_draws_nothing_as_in_eager_training() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Dropout(1.0, inplace=True), nn.Linear(6, 6), nn.Dropout(0.5))
    args = (torch.randn(4, 6),)
    trained = planned(module, args, "1GB", "segments:2")
    assert train(trained, args, steps=2, loss=torch.sum) == train(module, args, steps=2, loss=torch.sum)


class Classifier(nn.Module):
    """Layers and a loss whose call has two results."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.Tanh())))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layers(x), torch.arange(8) % 6)


class TestSurroundings:
    def net(self) -> tuple[nn.Sequential, tuple[Tensor, ...]]:
        return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6)), (torch.randn(4, 6),)

    def test_a_bound_module_can_be_bound_again(self) -> None:
        module, args = self.net()
        again = within_budget(within_budget(module, args, budget="100%"), (torch.randn(7, 6),), budget="100%")
        assert again(torch.randn(7, 6)).shape == (7, 6)

    def test_a_bound_module_inside_another_is_refused(self) -> None:
        module, args = self.net()
        outer = nn.Sequential(within_budget(module, args, budget="100%"), nn.Linear(6, 2))
        with pytest.raises(UnsupportedModuleError, match="submodule '0' is bound to a plan already"):
            within_budget(outer, args, budget="100%")

    def test_a_forward_that_is_no_method_of_the_module_is_refused(self) -> None:
        module, args = self.net()
        module.forward = lambda x: x
        with pytest.raises(UnsupportedModuleError, match="was replaced by a function that is no method of it"):
            planned(module, args)

    @pytest.mark.values
    def test_a_loss_that_is_scaled_in_place_gives_the_gradients_of_eager(self) -> None:
        """The call that makes it is recomputed for its other result; transformers' Trainer scales losses so."""
        args, found = (torch.ones(8, 6),), []
        for module in (within_budget(Classifier(), args, budget="min", recompute=["getitem_1"]), Classifier()):
            loss = module(*args)
            loss *= 2
            loss.backward()
            found.append([bits(p.grad) for p in module.parameters() if p.grad is not None])
        assert found[0] == found[1]

    @cpu_only("bytes of a card hold its context too: tests/cuda/test_cap.py")
    def test_gradients_that_a_byte_budget_does_not_cover_cause_a_warning(self) -> None:
        module, args = self.net()
        enough = plan_of(within_budget(module, args, budget="100%")).peak.total_nbytes
        trained = within_budget(module, args, budget=enough)
        trained(*args).sum().backward()
        with pytest.warns(UserWarning, match="grad_accumulation=True"):
            trained(*args)

    @pytest.mark.values
    @cpu_only("bytes of a card hold its context too: tests/cuda/test_cap.py")
    def test_under_a_byte_budget_arguments_may_be_no_tensors(self) -> None:
        class Scaled(nn.Linear):
            def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
                y = super().forward(x)
                return y if scale is None else y * scale

        module, args = Scaled(64, 64), (torch.ones(2, 64), None)
        enough = plan_of(within_budget(module, args, budget="100%")).peak.total_nbytes
        assert torch.equal(within_budget(module, args, budget=enough, optimizer="none")(*args), module(*args))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: within_budget(lambda x: x, (torch.ones(1),), budget="1GB"), "is no torch.nn.Module"),
        (lambda: within_budget(nn.Linear(2, 2), torch.ones(1, 2), budget="1GB"), "args is a Tensor, not a tuple"),
        (lambda: within_budget(nn.Linear(2, 2, device="meta"), (torch.ones(1, 2),), budget="1GB"), "meta device"),
    ],
    ids=["a function", "a tensor for the arguments", "the meta device"],
)
def test_a_call_that_cannot_work_says_why_in_one_line(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(OgcPlanError, match=message) as refused:
        call()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("budget", [0.6, None])
def test_a_budget_that_is_no_text_and_no_whole_number_is_refused(budget: Any) -> None:
    with pytest.raises(BudgetSyntaxError, match="no text and no whole number"):
        within_budget(nn.Linear(2, 2), (torch.ones(1, 2),), budget=budget)


def test_a_plan_whose_graph_was_changed_is_refused(tmp_path: Any) -> None:
    build, arguments = ODD["moving buffer"]
    module, args = build(), arguments()
    write_plan(plan_of(within_budget(module, args, budget="100%")), tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"once": true', '"once": false'))
    with pytest.raises(PlanMismatchError):
        bind(module, read_plan(tmp_path / "plan.json"), args)


def test_a_plan_that_draws_random_numbers_in_another_order_is_refused() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return (F.dropout(x * self.weight, 0.5) + F.dropout(x.sin() * self.weight, 0.5)).sum()

    module, args = Branches(), (torch.randn(4, 6),)
    step = TracedStep(capture(module, args))
    first, second = (i for i, op in enumerate(step.ops) if op.random)
    moved = [first, first + 1]  # a product, and the dropout that writes over it
    order = [i for i in range(len(step.graph.ops)) if i not in moved]
    order[order.index(second) + 1 : order.index(second) + 1] = moved
    backward = [~i for i in step.graph.backward_order]
    with pytest.raises(PlanMismatchError, match="random ops in another order"):
        generate(step, lower(step.graph, Decisions((*order, *backward))))
