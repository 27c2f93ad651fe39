"""The backward in parts: gradients are accumulated, and hooks called, while the rest of it is still to come."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from ogc_plan.adapters.pytorch import bind, export, plan_of, predict
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.step import gradient_release
from ogc_plan.adapters.pytorch.step.annotate import annotate
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from ogc_plan.planner import pipeline
from ogc_plan.planner.errors import PlanMismatchError
from ogc_plan.planner.model import from_annotation, load_model
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.training_graph import OpCost
from torch import Tensor, nn

from models.meters.step_meters import by_storages
from models.meters.storage_meter import StorageMeter
from tests.modules.generators import seeded
from tests.modules.torch_training import CountedCalls, bits, planned

WIDTH, DEPTH = 48, 8
X = torch.randn(4, WIDTH, generator=seeded(3))


class Chain(nn.Module):
    """Linear layers with dropout; the first weight is used at the end again, the third layer has no gradient."""

    def __init__(self, *, tied: bool = False, frozen: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        if tied:
            self.layers[-1].weight = self.layers[0].weight
        if frozen:
            self.layers[2].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.dropout(torch.tanh(layer(x)), 0.2, True)
        return x.square().sum()


class Branches(nn.Module):
    """Branches of unequal depth whose backwards may run in several orders; one of them has two gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.branches = nn.ModuleList(
            nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(depth)))
            for depth in (1, 3, 2)
        )
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        found = [branch(x * self.scale) for branch in self.branches]
        weights = torch.softmax(torch.cat([self.leave(y) for y in found], dim=1), dim=1)
        joined = torch.stack(found, dim=2) * weights[:, None]
        return joined.sum(2).square().sum() + (x.detach() * self.leave.weight).sum()


class Apart(nn.Module):
    """A layer whose result is read by another one that gives it no gradient; its backward may come after that one's."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.first, self.apart, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(torch.tanh(self.enter(x)))
        return self.apart(torch.tanh(x.detach())).square().sum() + self.last(torch.tanh(x)).square().sum()


KINDS: dict[str, dict[str, bool]] = {"plain": {}, "tied": {"tied": True}, "frozen": {"frozen": True}}
OF_EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts in a network as small as these."""
    monkeypatch.setattr(gradient_release, "LEAST_NBYTES", 0)


def pair(kind: str = "plain", budget: str = "min") -> tuple[nn.Module, nn.Module]:
    """A plain network and one that trains by a plan, with weights of their own."""
    torch.manual_seed(0)
    plain = Chain(**KINDS[kind])
    return plain, planned(copy.deepcopy(plain), (X,), budget, "greedy" if budget == "min" else "keep-all")


def accumulated(module: nn.Module) -> list[bytes | None]:
    """The gradients after three micro-batches."""
    torch.manual_seed(1)
    for scale in (1.0, 2.0, 3.0):
        module(X * scale).backward()
    return [None if p.grad is None else bits(p.grad) for p in module.parameters()]


def peak(module: nn.Module) -> int:
    """Of everything, in one more step."""
    return by_storages(lambda: stepped(module), module, (X,)).total_nbytes


def stepped(module: nn.Module) -> Tensor:
    loss: Tensor = module(X)
    loss.backward()
    return loss


def set_nbytes(module: nn.Module) -> int:
    return sum(p.nbytes for p in module.parameters() if p.requires_grad)


def activation_nbytes(module: nn.Module) -> int:
    return X.nbytes + predict(module, kernel_workspace=False).activation_nbytes


class TestAccumulating:
    @OF_EVERY_KIND
    @pytest.mark.parametrize("budget", ["min", "100%"])
    def test_three_batches_add_up_to_the_bits_of_eager(self, kind: str, budget: str) -> None:
        plain, trained = pair(kind, budget)
        assert accumulated(trained) == accumulated(plain)

    def test_no_second_set_of_gradients_lives(self) -> None:
        trained = pair()[1]
        stepped(trained)
        assert peak(trained) < 2.3 * set_nbytes(trained) + activation_nbytes(trained)

    @OF_EVERY_KIND
    @pytest.mark.parametrize("budget", ["min", "100%"])
    def test_the_peak_is_the_predicted_one(self, kind: str, budget: str) -> None:
        trained = pair(kind, budget)[1]
        stepped(trained)
        expected = predict(trained, kernel_workspace=False, gradients_present=True)
        assert peak(trained) == expected.total_nbytes


class TestHooks:
    @staticmethod
    def updating(module: nn.Module, steps: int = 3) -> list[bytes]:
        """Train with an optimizer inside the backward, which leaves no gradient behind."""

        def update(parameter: Tensor) -> None:
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(update)
        torch.manual_seed(1)
        for _ in range(steps):
            stepped(module)
        return [bits(parameter) for parameter in module.parameters()]

    @OF_EVERY_KIND
    def test_an_optimizer_in_them_trains_to_the_bits_of_eager(self, kind: str) -> None:
        plain, trained = pair(kind)
        assert self.updating(trained) == self.updating(plain)

    def test_an_optimizer_in_them_needs_no_full_set_of_gradients(self) -> None:
        trained = pair()[1]
        self.updating(trained, steps=1)
        assert peak(trained) < 1.3 * set_nbytes(trained) + activation_nbytes(trained)

    def test_a_hook_that_overwrites_a_needed_parameter_is_refused(self) -> None:
        trained = pair()[1]
        first, last = trained.layers[0].weight, trained.layers[-1].weight

        def overwrite(_: Tensor) -> None:
            first.detach().zero_()

        last.register_post_accumulate_grad_hook(overwrite)
        with pytest.raises(RuntimeError, match=r"layers\.0\.weight was modified in place after the forward"):
            stepped(trained)

    def test_a_step_after_a_hook_that_raises_is_that_of_eager(self) -> None:
        plain, trained = pair()

        def fail(_: Tensor) -> None:
            raise ValueError("no")

        hook = trained.layers[4].weight.register_post_accumulate_grad_hook(fail)
        with pytest.raises(ValueError, match="no"):
            stepped(trained)
        hook.remove()
        trained.zero_grad()
        assert accumulated(trained) == accumulated(plain)


class TestAskingForSome:
    @OF_EVERY_KIND
    def test_each_gradient_alone_is_that_of_eager(self, kind: str) -> None:
        found = []
        for module in pair(kind):
            alone = []
            for parameter in module.parameters():
                if parameter.requires_grad:
                    torch.manual_seed(1)
                    alone += [bits(g) for g in torch.autograd.grad(module(X), [parameter])]
            found.append(alone)
        assert found[0] == found[1]

    def test_a_backward_into_some_leaves_the_others_alone(self) -> None:
        trained = pair()[1]
        trained(X).backward(inputs=[trained.layers[5].weight])
        assert [n for n, p in trained.named_parameters() if p.grad is not None] == ["layers.5.weight"]

    def test_parts_without_requested_gradients_do_not_run(self) -> None:
        trained = pair(budget="100%")[1]

        def count(asked: Callable[[Tensor], object]) -> int:
            loss = trained(X)
            with CountedCalls() as counted:
                asked(loss)
            return counted.count.total()

        last = trained.layers[-1].bias
        assert count(lambda loss: torch.autograd.grad(loss, [last])) < count(lambda loss: loss.backward()) / 3

    def test_values_saved_for_parts_that_do_not_run_are_freed(self) -> None:
        trained = pair(budget="100%")[1]
        gc.collect()
        with StorageMeter([*trained.parameters(), X]) as meter:
            loss = trained(X)
            torch.autograd.grad(loss, [trained.layers[-1].bias])
            for _ in range(100):  # autograd's thread of a card hands the gradient over a moment before it lets go
                if meter.live_nbytes > loss.nbytes:
                    time.sleep(0.01)
            assert meter.live_nbytes == loss.nbytes


class TestKeepingTheGraph:
    @OF_EVERY_KIND
    def test_two_backwards_add_up_to_the_bits_of_eager(self, kind: str) -> None:
        found = []
        for module in pair(kind):
            torch.manual_seed(1)
            loss = module(X)
            loss.backward(retain_graph=True)
            loss.backward()
            found.append([bits(p.grad) for p in module.parameters() if p.grad is not None])
        assert found[0] == found[1]

    def test_a_second_backward_over_a_freed_graph_is_refused(self) -> None:
        loss = stepped(pair()[1])
        with pytest.raises(RuntimeError, match="this step has run backward already"):
            loss.backward()


def made_to_accumulate(module: nn.Module, budget: str = "min", strategy: str = "greedy") -> nn.Module:
    """Planned for a step that finds gradients, everything counted."""
    return planned(module, (X,), budget, strategy, scope=Scope.TOTAL, grad_accumulation=True)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    **{kind: partial(Chain, **options) for kind, options in KINDS.items()},
    "branches": Branches,
    "apart": Apart,
}


class TestPlannedToAccumulate:
    @pytest.mark.parametrize(
        ("name", "budget", "strategy"),
        [
            *((name, "min", "greedy") for name in NETWORKS),
            ("plain", "100%", "keep-all"),
            ("branches", "min", "optimal"),
            ("apart", "min", "optimal"),
        ],
    )
    def test_the_plan_says_what_is_predicted_and_measured(self, name: str, budget: str, strategy: str) -> None:
        trained = made_to_accumulate(NETWORKS[name](), budget, strategy)
        stepped(trained)
        expected = plan_of(trained).peak.total_nbytes
        predicted = predict(trained, gradients_present=True)
        assert (predicted.total_nbytes, peak(trained)) == (expected, expected)

    def test_a_budget_that_two_full_sets_would_break_is_kept(self) -> None:
        module = Chain()
        two_sets = plan_of(made_to_accumulate(module)).graph.without_ends()
        floor = build_problem(two_sets, (OpCost(1, 1),) * len(two_sets.ops), Scope.TOTAL).floor_nbytes
        trained = made_to_accumulate(module, f"{floor - 1}B", "optimal")
        stepped(trained)
        assert peak(trained) < floor

    def test_a_plan_that_frees_gradients_earlier_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = Chain()
        made = plan_of(made_to_accumulate(module))
        monkeypatch.setattr(gradient_release, "LEAST_NBYTES", 2**40)
        with pytest.raises(PlanMismatchError, match="frees gradients earlier than this program does"):
            bind(module, made, (X,))

    @pytest.mark.parametrize(("rows", "several"), [(4, True), (16384, False)])
    def test_parts_that_are_small_beside_the_tensors_of_the_step_are_one(self, rows: int, several: bool) -> None:
        step = TracedStep(capture(Chain(), (torch.randn(rows, WIDTH, generator=seeded(3)),)))
        assert (len(gradient_release.groups_of(step)) > 1) == several

    def test_a_plan_for_two_full_sets_is_an_upper_bound(self) -> None:
        module = Chain()
        step = TracedStep(capture(module, (X,)))
        annotation = annotate(step, measure=False).annotation
        older = replace(annotation, graph=annotation.graph.without_ends())
        made = pipeline.plan(from_annotation(older, name="older", grad_accumulation=True), "min", scope=Scope.TOTAL)
        trained = bind(module, made, (X,))
        stepped(trained)
        assert peak(trained) < made.peak.total_nbytes

    def test_a_plan_made_from_the_exported_file_is_exact_too(self, tmp_path: Path) -> None:
        module = Chain()
        export(module, (X,), tmp_path / "chain.onnx")
        model = load_model(tmp_path / "chain.onnx", grad_accumulation=True)
        trained = bind(module, pipeline.plan(model, "min", scope=Scope.TOTAL, strategy="greedy"), (X,))
        expected = predict(trained, gradients_present=True).total_nbytes
        assert plan_of(trained).peak.total_nbytes == expected
