"""Plans with what the device takes beyond their peak: both fit the budget, or the refusal names a budget that works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner import Plan, load_model
from ogc_plan.planner.device_overhead import with_overhead
from ogc_plan.planner.errors import InfeasibleBudgetError, NoPlanInTimeError
from ogc_plan.planner.infeasible import Asked
from ogc_plan.planner.model import Model
from ogc_plan.planner.pipeline import plan
from ogc_plan.planner.solution import Solution
from ogc_plan.planner.solver import Solver

from models.light import light_path

MB = 10**6


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(light_path("squeezenet"), batch=8)


def planned(model: Model, budget: int, overhead: Callable[[Plan], int]) -> Plan:
    return plan(model, f"{budget}B", effort="fast", overhead=overhead)


def need(made: Plan, overhead: Callable[[Plan], int]) -> int:
    return made.peak.total_nbytes + overhead(made)


def test_peak_and_overhead_fit_together(model: Model) -> None:
    budget = model.store_all().peak_total_nbytes
    made = planned(model, budget, lambda _: 20 * MB)
    assert need(made, lambda _: 20 * MB) <= budget


def test_without_overhead_the_plan_is_that_of_the_budget_alone(model: Model) -> None:
    budget = model.store_all().peak_total_nbytes * 9 // 10
    alone = plan(model, f"{budget}B", effort="fast")
    assert planned(model, budget, lambda _: 0).schedule == alone.schedule


def test_little_room_is_left(model: Model) -> None:
    budget = model.store_all().peak_total_nbytes
    made = planned(model, budget, lambda made: made.peak.total_nbytes // 4)
    assert need(made, lambda made: made.peak.total_nbytes // 4) >= 0.9 * budget


@settings(max_examples=15, deadline=None)
@given(share=st.floats(0.5, 1.0), jumps=st.lists(st.integers(0, 30), min_size=3, max_size=3))
def test_an_overhead_that_jumps_never_breaks_the_budget(model: Model, share: float, jumps: list[int]) -> None:
    def overhead(made: Plan) -> int:
        return jumps[made.peak.total_nbytes // (3 * MB) % 3] * MB

    budget = int(share * model.store_all().peak_total_nbytes)
    try:
        made = planned(model, budget, overhead)
    except InfeasibleBudgetError:
        return
    assert need(made, overhead) <= budget


def test_an_overhead_that_grows_as_the_peak_falls_does_not_end_in_the_smallest_plan(model: Model) -> None:
    budget = model.store_all().peak_total_nbytes
    smallest = plan(model, "min", scope="total", effort="fast")

    def overhead(made: Plan) -> int:  # each byte less of peak saves a fiftieth of one, and a tenth is missing
        return (budget - made.peak.total_nbytes) * 49 // 50 + budget // 500

    assert planned(model, budget, overhead).time.recompute_ns < smallest.time.recompute_ns


def test_where_no_plan_near_the_budget_fits_one_above_the_smallest_is_found(model: Model) -> None:
    budget = model.store_all().peak_total_nbytes
    smallest = plan(model, "min", scope="total", effort="fast")
    fits = (2 * smallest.peak.total_nbytes + budget) // 3

    def overhead(made: Plan) -> int:  # a byte is missing whatever is kept free, until much is
        return 0 if made.peak.total_nbytes <= fits else budget - made.peak.total_nbytes + 1

    assert planned(model, budget, overhead).time.recompute_ns < smallest.time.recompute_ns


def test_time_that_runs_out_leaves_the_best_plan_so_far(model: Model) -> None:
    budget = model.store_all().peak_total_nbytes
    fits = plan(model, f"{budget * 8 // 10}B", effort="fast")
    limits = []

    def within(asked: Asked) -> Plan:
        limits.append(asked.limit_nbytes)
        if len(limits) > 2:
            raise NoPlanInTimeError("no plan")
        return plan(model, f"{budget}B", effort="fast") if len(limits) == 1 else fits

    found = with_overhead(within, Asked("", budget), lambda made: budget // 20)
    assert (found, len(limits)) == (fits, 3)


def test_all_solves_share_the_time_limit(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def solve(solver: Solver, problem: object, limit_nbytes: int | None) -> Solution:
        given.append(solver.time_limit_s)
        return known(solver, problem, limit_nbytes)

    known = Solver.solve
    monkeypatch.setattr(Solver, "solve", solve)
    budget = model.store_all().peak_total_nbytes
    plan(model, f"{budget}B", effort="fast", time_limit_s=60, overhead=lambda made: 20 * MB)
    assert (len(given) > 1, sorted(set(given), reverse=True), given[0] <= 60) == (True, given, True)


@pytest.mark.parametrize("above", [MB, -MB], ids=["above the smallest peak", "below it"])
def test_the_refusal_names_a_budget_that_works(model: Model, above: int) -> None:
    smallest = plan(model, "min", scope="total", effort="fast").peak.total_nbytes
    with pytest.raises(InfeasibleBudgetError) as refused:
        planned(model, smallest + above, lambda _: 50 * MB)
    enough = int(refused.value.remedy.split("--budget ")[1].split("B")[0])
    assert need(planned(model, enough, lambda _: 50 * MB), lambda _: 50 * MB) <= enough
