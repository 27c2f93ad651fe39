"""The largest batch of a module within a memory: every size is planned as `within_budget` plans it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import fit, plan_of, within_budget
from ogc_plan.adapters.pytorch.binding import largest_batch
from ogc_plan.planner.errors import AdapterError, BudgetError, InfeasibleBudgetError, UsageError
from ogc_plan.planner.trade_offs.largest_input import Fit
from torch import Tensor, nn

from models.meters.step_meters import by_allocator, clear_gradients
from tests.modules.devices import cpu_only

pytestmark = cpu_only("a memory of a card holds its context too: tests/cuda/test_fit.py")
MEMORY = "1MB"
STEP = 2


class Net(nn.Module):
    """Convolutions with norms; the images may come by name, beside something that has no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x)).relu()
        return x if scale is None else x * scale


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 8, 16, 16)


@pytest.fixture(scope="module")
def found() -> Fit:
    return fit(Net(), (images(),), memory=MEMORY, device="a100", effort="fast", multiple_of=STEP)


def peak(batch: int, **options: Any) -> Any:
    """The plan of a batch within the memory."""
    return plan_of(within_budget(Net(), (images(batch),), budget=MEMORY, device="a100", effort="fast", **options)).peak


def test_the_largest_batch_is_planned_as_within_budget_plans_it(found: Fit) -> None:
    assert peak(found.largest.size) == found.largest.plan.peak


def test_the_next_batch_has_no_plan(found: Fit) -> None:
    with pytest.raises(InfeasibleBudgetError):
        peak(found.largest.size + STEP)


def test_the_largest_batch_without_recomputation_is_the_last_that_stores_everything(found: Fit) -> None:
    assert found.without is not None
    stored = [peak(found.without.size + more).store_all_total_nbytes <= 10**6 for more in (0, STEP)]
    assert stored == [True, False]


def test_a_step_of_the_largest_batch_stays_within_the_memory(found: Fit) -> None:
    x = images(found.largest.size)
    model = within_budget(Net(), (x,), budget=MEMORY, device="a100", effort="fast")
    clear_gradients(model, (x,))
    assert by_allocator(lambda: model(x).sum().backward(), model, (x,)).total_nbytes <= 10**6


def test_it_is_told_in_a_line(found: Fit) -> None:
    assert repr(found).startswith(f"batch within 1.00 MB: {found.without and found.without.size} without recomputation")


def test_arguments_without_the_batch_stay_as_they_are() -> None:
    given = {"x": images(), "scale": torch.ones(1, 8, 1, 1)}
    assert fit(Net(), (), kwargs=given, memory="600kB", device="a100", effort="fast", multiple_of=STEP).largest.size > 2


def test_sizes_are_multiples(found: Fit) -> None:
    assert {sized.size % STEP for sized in found.planned} == {0}


def test_a_module_that_takes_no_single_sample_begins_at_the_batch_given() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
    sizes = fit(model, (torch.randn(4, 8),), memory="3kB", device="a100", effort="fast").planned
    assert sizes[0].size >= 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": "60%"}, "memory '60%' is not a size"),
        ({"batch_axis": 4}, "no argument has a batch along dimension 4"),
        ({"batch_axis": -1}, "no argument has a batch along dimension -1"),
        ({"memory": "1kB"}, "not even batch 1 fits 1kB"),
        ({"multiple_of": 0}, "multiples of 0"),
    ],
)
def test_a_question_without_an_answer_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises((AdapterError, UsageError, BudgetError), match=message):
        fit(Net(), (images(),), **{"memory": MEMORY, "device": "a100", **given})


def test_a_module_in_evaluation_mode_is_refused() -> None:
    with pytest.raises(AdapterError, match="Net is in evaluation mode"):
        fit(Net().eval(), (images(),), memory=MEMORY)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(AdapterError, match=r"is no torch\.nn\.Module"):
        fit(torch.relu, (images(),), memory=MEMORY)  # type: ignore[arg-type]


def test_an_unknown_optimizer_is_refused_before_anything_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest_batch, "traced", lambda *_: pytest.fail("it is traced"))
    with pytest.raises(UsageError, match="optimizer 'hope'"):
        fit(Net(), (images(),), memory=MEMORY, optimizer="hope")
