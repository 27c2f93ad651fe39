"""A bound module goes through a pickle with its plans, and trains on by them to the same bits."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from multiprocessing import get_context
from multiprocessing.queues import Queue
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of, plans_of, predict, within_budget
from ogc_plan.adapters.pytorch.binding import kept_plans
from ogc_plan.adapters.pytorch.binding.pickled_plan import plan_from, text_of
from ogc_plan.planner.errors import AdapterError, PlanMismatchError, PlanVersionError
from torch import Tensor, nn

from tests.modules.devices import STANDIN
from tests.modules.generators import seeded
from tests.modules.torch_training import alternating, planned

X = torch.randn(64, 6, generator=seeded(0))
LARGE = torch.randn(96, 6, generator=seeded(1))


class Block(nn.Module):
    """Norm, dropout and enough layers to recompute; its first and last weight are one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.dropout(torch.relu(self.norm(self.first(x))), 0.2, True)
        return torch.tanh(self.last(torch.sin(torch.exp(-h))))


class Named(Block):
    """Pickles its name only, and finds the rest again."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.lines = "named", [1, 2]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "lines"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "lines": [1, 2]}  # replaces what is there, as some classes do


class Around(nn.Module):
    """A bound block inside an unbound whole."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(6, 6), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.before(x))


class ByName(Block):
    """Pickles as the name of a global, as singletons do."""

    def __reduce_ex__(self, protocol: Any) -> str:
        return "SINGLETON"


@pytest.fixture
def plain() -> Block:
    torch.manual_seed(0)
    return Block()


@pytest.fixture
def trained(plain: Block) -> nn.Module:
    return planned(plain, (X,), "min", "greedy")


@pytest.fixture
def both(plain: Block) -> nn.Module:
    """A module with plans for two sizes."""
    made = within_budget(plain, (X,), budget="1GB", device="cpu", strategy="greedy")
    with pytest.warns(UserWarning, match="planned Block again"):
        made(LARGE).sum()
    return made


def again(module: nn.Module, protocol: int | None = None) -> Any:
    return pickle.loads(pickle.dumps(module, protocol))


def steps(module: nn.Module, batches: tuple[Tensor, ...] = (X, X, X)) -> list[bytes]:
    return alternating(module, batches)


def steps_into(results: Queue[list[bytes]], module: nn.Module) -> None:
    results.put(steps(module))


class TestTrainsOn:
    @pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
    def test_a_loaded_module_trains_to_the_bits_of_a_plain_module(
        self, plain: Block, trained: nn.Module, protocol: int
    ) -> None:
        assert steps(again(trained, protocol)) == steps(copy.deepcopy(plain))

    def test_a_module_saved_during_training_trains_on(self, plain: Block, trained: nn.Module) -> None:
        reference = copy.deepcopy(plain)
        steps(reference), steps(trained)
        assert steps(again(trained)) == steps(reference)

    @pytest.mark.skipif(STANDIN, reason="a tensor of the stand-in's card cannot be sent")
    def test_a_module_sent_to_another_process_trains_on(self, plain: Block, trained: nn.Module) -> None:
        context = get_context("spawn")
        results: Queue[list[bytes]] = context.Queue()
        process = context.Process(target=steps_into, args=(results, copy.deepcopy(trained)))
        process.start()
        found = results.get(timeout=120)
        process.join()
        assert found == steps(copy.deepcopy(plain))

    def test_a_bound_block_of_a_saved_module_trains_on(self, plain: Block) -> None:
        whole = Around(plain)
        expected = steps(copy.deepcopy(whole))
        whole.inner = planned(whole.inner, (X.clone().requires_grad_(),), "min", "greedy")
        file = io.BytesIO()
        torch.save(whole, file)
        file.seek(0)
        assert steps(torch.load(file, weights_only=False)) == expected

    def test_a_module_whose_class_restores_its_state_trains_on(self) -> None:
        torch.manual_seed(0)
        plain = Named()
        assert steps(again(planned(plain, (X,), "min", "greedy"))) == steps(copy.deepcopy(plain))


class TestKeeps:
    def test_a_plan_survives_two_pickles_without_a_call(self, trained: nn.Module) -> None:
        assert plan_of(again(again(trained))) == plan_of(trained)

    def test_tied_parameters_stay_tied(self, trained: nn.Module) -> None:
        loaded = again(trained)
        assert loaded.first.weight is loaded.last.weight

    def test_a_loaded_module_has_the_plans_of_all_shapes(self, both: nn.Module) -> None:
        assert set(map(text_of, plans_of(again(both)))) == set(map(text_of, plans_of(both)))

    def test_a_shape_met_before_is_not_planned_again(self, both: nn.Module) -> None:
        loaded = again(both)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded(LARGE), loaded(X)
        assert set(map(text_of, plans_of(loaded))) == set(map(text_of, plans_of(both)))

    def test_a_module_saved_over_and_over_keeps_no_more_plans_than_one_that_trains_on(
        self, plain: Block, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kept_plans, "SIZES", 1)
        module = within_budget(plain, budget="1GB", device="cpu", strategy="greedy", max_plans=1)
        for rows in (32, 48, 64, 80):
            module(LARGE[:rows]).sum()
            module = again(module)
        assert len(plans_of(module)) == 2

    def test_all_shapes_train_to_the_same_bits(self, plain: Block, both: nn.Module) -> None:
        reference, batches = copy.deepcopy(plain), (LARGE, X, LARGE)
        reference.load_state_dict(both.state_dict())
        assert steps(again(both), batches) == steps(reference, batches)


class TestCopies:
    def test_a_deep_copy_of_a_loaded_module_trains_to_the_same_bits(self, plain: Block, trained: nn.Module) -> None:
        assert steps(copy.deepcopy(again(trained))) == steps(copy.deepcopy(plain))

    def test_a_shallow_copy_trains_to_the_same_bits(self, plain: Block, trained: nn.Module) -> None:
        reference = copy.deepcopy(plain)
        assert steps(copy.copy(trained)) == steps(reference)


class TestRefuses:
    def test_a_first_call_with_other_arguments_is_refused(self, trained: nn.Module) -> None:
        with pytest.raises(PlanMismatchError, match="pickled with the module does not fit its first call"):
            again(trained)(LARGE)

    def test_a_prediction_before_the_first_call_is_refused(self, trained: nn.Module) -> None:
        with pytest.raises(AdapterError, match=r"has not been called since.*call it once in training mode"):
            predict(again(trained))

    def test_pickling_a_class_that_pickles_as_a_name_is_refused(self) -> None:
        with pytest.raises(AdapterError, match="a planned ByName cannot be pickled: its class has a way of its own"):
            pickle.dumps(planned(ByName(), (X,), "min", "greedy"))

    def test_a_pickled_plan_of_another_version_is_refused(self, trained: nn.Module) -> None:
        with pytest.raises(PlanVersionError, match="plan version 9 is unknown"):
            plan_from(text_of(plan_of(trained)).replace(b'"version": 1', b'"version": 9'))
