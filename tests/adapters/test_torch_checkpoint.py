"""Torch's own checkpoint as a target: what is predicted for wrapped modules is what a real step of them holds."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.torch_checkpoint.choose_modules import choose
from ogc_plan.adapters.torch_checkpoint.eager_step import SAVES_NOTHING, EagerStep, batch_norms, eager_step
from ogc_plan.adapters.torch_checkpoint.emit import Emission, select_ops, wrap_modules
from ogc_plan.adapters.torch_checkpoint.emitted_files import policy_file
from ogc_plan.adapters.torch_checkpoint.region_recompute import Wrapped, nested
from ogc_plan.adapters.torch_checkpoint.regions import Region, candidate_regions
from ogc_plan.adapters.torch_checkpoint.wrapped_schedule import WrappedStep, replayed
from ogc_plan.planner.errors import InfeasibleBudgetError, PlanMismatchError
from ogc_plan.planner.plan_file.record import Plan
from torch import Tensor, nn

from models.meters.step_meters import by_allocator
from tests.modules.checkpoint_modules import (
    CASES,
    Arguments,
    Held,
    Perceptron,
    Shifts,
    budgeted,
    built,
    called,
    calls,
    stepped,
    stored,
    wrap,
)
from tests.modules.devices import cpu_only
from tests.modules.torch_modules import Attention, Moving


class Prepared:
    """A module, its plan that stores everything, the same step as eager PyTorch runs it, and its modules."""

    def __init__(self, module: nn.Module, args: Arguments) -> None:
        self.module, self.args = module, args
        self.plan: Plan = stored(module, args)
        self.step: EagerStep = tensors_only(eager_step(self.plan))
        self.regions = candidate_regions(self.step, called(module))
        self.whole = replayed(self.step, ()).peak_nbytes

    def emission(self, make: Callable[[Plan, Any], Emission], share: float) -> Emission:
        return make(budgeted(self.plan, int(self.whole * share)), called(self.module))

    def region(self, path: str) -> Region:
        return next(region for region in self.regions if region.path == path)


def tensors_only(step: EagerStep) -> EagerStep:
    """Without generator states, which a meter of tensors does not see."""
    return replace(step, state_nbytes=0)


@pytest.fixture(scope="module", params=sorted(CASES))
def prepared(request: pytest.FixtureRequest) -> Prepared:
    return Prepared(*built(request.param))


def disjoint(regions: list[Region], seed: int) -> list[Region]:
    """Some regions that do not overlap, in order."""
    choice = random.Random(seed)
    found: list[Region] = []
    for region in choice.sample(regions, len(regions)):
        if choice.random() < 0.5 and all(set(region.ops).isdisjoint(other.ops) for other in found):
            found.append(region)
    return sorted(found, key=lambda region: region.first)


SAVING_NOTHING: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + x, "sub": lambda x: x - x, "mean": lambda x: x.mean(2), "sum": lambda x: x.sum(1),
    "cat": lambda x: torch.cat([x, x]), "stack": lambda x: torch.stack([x, x]), "neg": lambda x: -x,
    "roll": lambda x: x.roll(1), "flip": lambda x: x.flip(2), "tril": lambda x: x.tril(),
    "repeat": lambda x: x.repeat(2, 1, 1, 1), "cumsum": lambda x: x.cumsum(1), "clone": lambda x: x.clone(),
    "expand": lambda x: x.expand(3, 4, 6, 6), "unfold": lambda x: x.unfold(2, 2, 2), "unbind": lambda x: x.unbind(1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2), "upsample_nearest2d": lambda x: F.interpolate(x, scale_factor=2),
    "upsample_bilinear2d": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "constant_pad_nd": lambda x: F.pad(x, (1, 1)), "rsub": lambda x: torch.rsub(x, 2),
}  # fmt: skip


@pytest.fixture
def usual_kernels() -> Iterator[None]:
    """On a card these tests ask for deterministic kernels (conftest.py), which may save more."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(before, warn_only=True)


class TestPrediction:
    def test_the_step_without_a_checkpoint_is_that_of_eager_training(self, prepared: Prepared) -> None:
        assert prepared.whole == stepped(prepared.module, prepared.args).peak_nbytes

    @pytest.mark.parametrize("seed", range(3))
    def test_the_peak_of_nested_checkpoints_is_predicted_to_the_byte(self, prepared: Prepared, seed: int) -> None:
        choice = random.Random(seed)
        chosen = [region for region in prepared.regions if choice.random() < (0.6 if len(region.ops) > 2 else 0.1)]
        made = replayed(prepared.step, nested(prepared.step, chosen))
        real = stepped(wrap(prepared.module, [region.path for region in chosen]), prepared.args)
        assert made.peak_nbytes == real.peak_nbytes

    @pytest.mark.parametrize("seed", range(2))
    def test_the_recomputed_calls_are_those_that_torch_recomputes(self, prepared: Prepared, seed: int) -> None:
        choice = random.Random(seed)
        chosen = [region for region in prepared.regions if choice.random() < 0.5]
        entries = [call for entry in nested(prepared.step, chosen) for call in entry.all()]
        again = Counter(prepared.step.graph.ops[index].op_type for call in entries for index in call.region.recomputed)
        real = calls(wrap(prepared.module, [region.path for region in chosen]), prepared.args)
        real.subtract(calls(prepared.module, prepared.args))
        kinds = ("addmm", "convolution", "native_layer_norm", "gelu", "tanh")
        assert {kind: again[kind] for kind in kinds} == {kind: real[kind] for kind in kinds}

    @pytest.mark.parametrize(
        "paths",
        [
            ["layers.0", "layers.1", "layers.2", "layers.3", "layers.3.1", "layers.2.1"],
            ["layers", *(f"layers.{i}" for i in range(4)), "layers.3.1", "layers.3.3"],
        ],
    )
    def test_an_argument_that_only_a_checkpoint_keeps_is_counted(self, paths: list[str]) -> None:
        torch.manual_seed(0)
        shifts = Prepared(Shifts(), (torch.randn(64, 16),))
        made = replayed(shifts.step, nested(shifts.step, [shifts.region(path) for path in paths]))
        assert made.peak_nbytes == stepped(wrap(shifts.module, paths), shifts.args).peak_nbytes

    def test_an_output_that_the_caller_holds_exists_a_second_time(self) -> None:
        torch.manual_seed(0)
        held = Prepared(Held(), (torch.randn(64, 32),))
        made = replayed(held.step, [Wrapped(held.region("first")), Wrapped(held.region("second"))])
        real = stepped(wrap(held.module, ["first", "second"]), held.args)
        assert abs(made.peak_nbytes - real.peak_nbytes) <= 8  # the meter's own loss and its gradient

    @cpu_only("states of a card's generator are in host memory")
    def test_each_wrapped_call_keeps_a_generator_state_and_a_second_one_while_it_runs_again(self) -> None:
        module, args = Perceptron(depth=3, width=8), (torch.randn(2, 8),)
        step, paths = eager_step(stored(module, args)), [f"layers.{i}" for i in range(3)]
        regions = [region for region in candidate_regions(step, called(module)) if region.path in paths]
        made = replayed(step, [Wrapped(region) for region in regions])
        wrapped = wrap(module, paths)

        def one() -> Tensor:
            output: Tensor = wrapped(*args)
            output.backward()
            return output

        one()
        for parameter in wrapped.parameters():
            parameter.grad = None
        assert 0 <= made.peak_nbytes - by_allocator(one, wrapped, args).activation_nbytes < 500

    @pytest.mark.usefixtures("usual_kernels")
    @pytest.mark.parametrize("name", SAVING_NOTHING)
    def test_autograd_saves_nothing_for_the_ops_of_the_table(self, name: str) -> None:
        saved: list[Tensor] = []
        x = torch.randn(1, 4, 6, 6, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda packed: packed):
            SAVING_NOTHING[name](x)
        assert (name in SAVES_NOTHING, saved) == (True, [])


class TestTraining:
    @pytest.mark.values
    def test_wrapped_modules_train_to_the_same_bits(self, prepared: Prepared) -> None:
        chosen = prepared.emission(wrap_modules, 0.7)
        real = stepped(wrap(prepared.module, chosen.paths), prepared.args)
        assert real.equals(stepped(prepared.module, prepared.args))

    @pytest.mark.values
    def test_a_policy_trains_to_the_same_bits(self, prepared: Prepared) -> None:
        real = stepped(applied(prepared.emission(select_ops, 0.7), prepared.module), prepared.args)
        assert real.equals(stepped(prepared.module, prepared.args))

    @pytest.mark.parametrize("seed", range(2))
    def test_the_peak_of_a_random_policy_is_predicted_to_the_byte(self, prepared: Prepared, seed: int) -> None:
        made = replayed(prepared.step, list(any_policy(prepared, seed)))
        chosen = replace(prepared.emission(select_ops, 0.8), made=made)
        assert made.peak_nbytes == stepped(applied(chosen, prepared.module), prepared.args).peak_nbytes

    def test_attention_that_drops_out_is_not_saved(self) -> None:
        """The dropout after it, run again, would draw the numbers of the attention."""
        torch.manual_seed(0)
        dropping = Prepared(nn.Sequential(*(Attention() for _ in range(3))), (torch.randn(4, 64, 16),))
        wrapped = dropping.emission(select_ops, 0.7).made.wrapped
        saved = [dropping.step.graph.ops[index].op_type for entry in wrapped for index in entry.saved]
        assert [kind for kind in saved if "attention" in kind] == []

    @pytest.mark.values
    def test_a_root_of_the_momentum_makes_all_moves_of_statistics_one(self) -> None:
        residual = Prepared(*built("residual"))
        made = replayed(residual.step, nested(residual.step, [residual.region("layers"), residual.region("layers.1")]))
        again = [i for entry in made.wrapped for call in entry.all() for i in call.region.recomputed]
        wrapped = wrap(residual.module, ["layers", "layers.1"])
        for path, runs in batch_norms(residual.step, again).items():
            norm = wrapped.get_submodule(path)
            assert isinstance(norm, nn.BatchNorm2d)
            norm.momentum = 1 - (1 - (norm.momentum or 0)) ** (1 / runs)
        stepped(wrapped, residual.args)
        stepped(residual.module, residual.args)
        pairs = zip(wrapped.buffers(), residual.module.buffers(), strict=True)
        assert all(torch.allclose(mine, theirs) for mine, theirs in pairs if mine.is_floating_point())


def any_policy(prepared: Prepared, seed: int) -> Iterator[Wrapped]:
    """Some wrapped modules with random products and convolutions saved in them."""
    choice = random.Random(seed)
    for region in disjoint(prepared.regions, seed):
        kinds = ("addmm", "convolution", "native_layer_norm")
        able = [i for i in region.recomputed if prepared.step.graph.ops[i].op_type in kinds and seen(prepared.step, i)]
        yield Wrapped(region, frozenset(i for i in able if choice.random() < 0.5))


def seen(step: EagerStep, index: int) -> bool:
    """Whether some backward reads what an op makes: nothing then writes over it in place."""
    made = step.graph.ops[index].writes[0]
    return any(op.backward is not None and made in op.backward.reads for op in step.graph.ops)


def loaded(source: str) -> dict[str, Any]:
    """The names that a policy file defines."""
    space: dict[str, Any] = {}
    exec(compile(source, "policy.py", "exec"), space)
    return space


def applied(emission: Emission, module: nn.Module) -> nn.Module:
    """A copy of the module under the policy file of an emission."""
    wrapped: nn.Module = loaded(policy_file(emission))["apply"](wrap(module, ()))
    return wrapped


class TestCandidates:
    def test_a_list_of_modules_is_no_candidate(self) -> None:
        assert "layers" not in {region.path for region in Prepared(*built("transformer")).regions}

    @pytest.mark.parametrize("apart", [False, True], ids=["in a row", "with a call between"])
    def test_a_module_called_twice_is_no_candidate(self, apart: bool) -> None:
        assert paths_of(Twice(apart=apart)) == {"other", "other.0", "other.1", "other.2"}

    def test_a_module_with_an_op_that_must_run_once_is_no_candidate(self) -> None:
        assert paths_of(nn.Sequential(Moving(), nn.Linear(6, 6))) == {"0.linear", "1"}


class Twice(nn.Module):
    """A module and an activation that are each called twice."""

    def __init__(self, *, apart: bool) -> None:
        super().__init__()
        self.apart = apart
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.activation = nn.GELU()
        self.other = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        x = self.inner(x.exp() if self.apart else x)
        x = self.activation(x)
        return self.other(self.activation(x.exp() if self.apart else x))


def paths_of(module: nn.Module) -> set[str]:
    """The paths of the modules that can be wrapped."""
    plan = stored(module, (torch.randn(3, 6),))
    return {region.path for region in candidate_regions(eager_step(plan), called(module))}


@dataclass(frozen=True)
class Every:
    """A step, its modules, and the replays of all ways to wrap them; the first wraps none."""

    step: EagerStep
    regions: list[Region]
    made: list[WrappedStep]


class TestChoice:
    @pytest.fixture(scope="class")
    @classmethod
    def every(cls) -> Every:
        """Every way to wrap a small network: all subsets of its modules."""
        first = nn.Sequential(nn.Sequential(nn.Linear(8, 32), nn.GELU()), nn.Sequential(nn.Linear(32, 8), nn.Tanh()))
        module = nn.Sequential(first, nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8), nn.Tanh()))
        step = tensors_only(eager_step(stored(module, (torch.randn(16, 8),))))
        regions = candidate_regions(step, called(module))
        chosen = (itertools.compress(regions, bits) for bits in itertools.product((0, 1), repeat=len(regions)))
        return Every(step, regions, [replayed(step, nested(step, subset)) for subset in chosen])

    @pytest.mark.parametrize("percent", range(45, 100, 15))
    def test_no_other_set_of_modules_within_the_budget_recomputes_less(self, every: Every, percent: int) -> None:
        budget = every.made[0].peak_nbytes * percent // 100
        least = min((made.recompute_ns for made in every.made if made.peak_nbytes <= budget), default=None)
        best, _ = choose(every.step, every.regions, budget, selective=False)
        assert (None if best is None else best.recompute_ns) == least

    def test_the_smallest_peak_that_is_named_is_that_of_the_best_set(self, every: Every) -> None:
        smallest = min(made.peak_nbytes for made in every.made)
        assert choose(every.step, every.regions, 1, selective=False)[1].peak_nbytes == smallest

    def test_saving_ops_never_costs_more_than_wrapping_alone(self, prepared: Prepared) -> None:
        selective, plain = prepared.emission(select_ops, 0.7), prepared.emission(wrap_modules, 0.7)
        assert selective.overhead <= plain.overhead

    def test_a_budget_for_everything_wraps_nothing(self, prepared: Prepared) -> None:
        assert prepared.emission(wrap_modules, 2).paths == ()

    def test_a_budget_below_every_set_names_the_smallest_peak(self, prepared: Prepared) -> None:
        with pytest.raises(
            InfeasibleBudgetError, match=r"no set of modules \(\d+ to choose from\) .* the smallest .* reached is"
        ):
            prepared.emission(wrap_modules, 0.01)

    def test_the_chosen_peak_is_within_the_budget(self, prepared: Prepared) -> None:
        chosen = prepared.emission(wrap_modules, 0.7)
        assert chosen.made.peak_nbytes <= chosen.plan.budget.nbytes

    def test_a_plan_without_module_paths_is_refused(self) -> None:
        plan = replace(stored(Perceptron(1), (torch.randn(2, 32),)), modules=())
        with pytest.raises(PlanMismatchError, match="names no module"):
            wrap_modules(plan, frozenset({"layers"}))

    def test_the_budget_of_the_total_counts_parameters_too(self, prepared: Prepared) -> None:
        total = replayed(replace(prepared.step, scope=type(prepared.step.scope).TOTAL), ()).peak_nbytes
        assert total > prepared.whole + prepared.plan.graph.stationary.parameter_nbytes
