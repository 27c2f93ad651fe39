"""Plans for several budgets: each within its own, never more recomputation for more memory, refusals in their place."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.planner import frontier, load_model, plan
from ogc_plan.planner.errors import (
    BoundMismatchError,
    InfeasibleBudgetError,
    OgcPlanError,
    UsageError,
)
from ogc_plan.planner.model import Model
from ogc_plan.planner.pipeline import verify
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.solution import Decisions, Solution, Status
from ogc_plan.planner.trade_offs.budget_frontier import Point, monotone

from models.light import light_path

BUDGETS = ("min", "90%", "40%", "60%", "45%", "80%", "50%")


def answer(
    peak: int | None, cost: int = 0, bound: int = 0, *, kind: str = "fixed order", order: tuple[int, ...] = (-1, -2)
) -> Solution:
    """A plan of a peak and a cost with a bound, or none."""
    if peak is None:
        return Solution(Status.UNKNOWN, "optimal", None, bound_class=kind)
    status = Status.OPTIMAL if cost == bound else Status.FEASIBLE
    return Solution(status, "optimal", Decisions((0, 1, *order)), cost, bound, kind, peak)


def nothing_known(limit_nbytes: int) -> tuple[int, str]:
    """No bound for any order."""
    return 0, "any order"


@st.composite
def points(draw: st.DrawFn) -> list[Point]:
    """Answers for budgets and perhaps for the smallest peak; every bound is true."""
    least = sorted(draw(st.lists(st.integers(0, 40), min_size=30, max_size=30)), reverse=True)
    drawn: list[Point] = []
    for limit in [*sorted(draw(st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True))), None]:
        if draw(st.booleans()):
            drawn += [] if limit is None else [(limit, answer(None))]
            continue
        peak = draw(st.integers(1, limit or 30))
        cost = least[peak - 1] + draw(st.integers(0, 20))  # no plan of this peak takes less
        drawn.append((limit, answer(peak, cost, draw(st.integers(0, least[(limit or peak) - 1])))))
    return drawn


class TestMonotone:
    @given(points())
    def test_more_memory_never_costs_more(self, given_points: list[Point]) -> None:
        made = sorted((p for p in monotone(given_points, nothing_known) if p[0] is not None), key=lambda p: p[0] or 0)
        costs = [solution.objective_ns for _, solution in made if solution.decisions is not None]
        assert costs == sorted(costs, reverse=True)

    @given(points())
    def test_every_plan_is_within_its_budget(self, given_points: list[Point]) -> None:
        made = monotone(given_points, nothing_known)
        assert all(s.peak_nbytes <= limit for limit, s in made if limit is not None and s.decisions is not None)

    @given(points())
    def test_nothing_gets_worse(self, given_points: list[Point]) -> None:
        pairs = zip(given_points, monotone(given_points, nothing_known), strict=True)
        kept = [(old, new) for (limit, old), (_, new) in pairs if limit is not None and old.decisions is not None]
        assert all(new.objective_ns <= old.objective_ns for old, new in kept)

    @given(points())
    def test_the_smallest_peak_is_the_lowest_of_all(self, given_points: list[Point]) -> None:
        made = monotone(given_points, nothing_known)
        smallest = [s.peak_nbytes for limit, s in made if limit is None]
        lowest = min((s.peak_nbytes for _, s in given_points if s.decisions is not None), default=0)
        assert smallest in ([], [lowest])

    @given(points())
    def test_a_budget_above_a_planned_one_has_a_plan(self, given_points: list[Point]) -> None:
        found = [s.peak_nbytes for _, s in given_points if s.decisions is not None]
        missing = [limit for limit, s in monotone(given_points, nothing_known) if s.decisions is None]
        assert all(limit is None or limit < min(found, default=limit + 1) for limit in missing)

    @given(points())
    def test_a_plan_is_called_optimal_exactly_when_it_meets_its_bound(self, given_points: list[Point]) -> None:
        planned = [s for _, s in monotone(given_points, nothing_known) if s.decisions is not None]
        assert [s.status is Status.OPTIMAL for s in planned] == [s.bound_ns == s.objective_ns for s in planned]

    def test_a_bound_for_a_larger_budget_is_one_for_a_smaller_budget(self) -> None:
        made = monotone([(10, answer(10, 9, 2)), (20, answer(20, 7, 6))], nothing_known)
        assert [solution.bound_ns for _, solution in made] == [6, 6]

    @pytest.mark.parametrize("other", [answer(20, 7, 6, kind="another"), answer(20, 7, 6, order=(-2, -1))])
    def test_no_bound_comes_from_another_class_or_backward_order(self, other: Solution) -> None:
        made = monotone([(10, answer(10, 9, 2)), (20, other)], nothing_known)
        assert [solution.bound_ns for _, solution in made] == [2, 6]

    def test_a_plan_from_a_smaller_budget_in_another_order_has_the_bound_that_no_order_escapes(self) -> None:
        other = answer(10, 5, 4, order=(-2, -1))
        made = monotone([(10, other), (20, answer(20, 7, 6))], lambda limit: (3 if limit == 20 else 0, "any order"))
        assert (made[1][1].bound_ns, made[1][1].bound_class) == (3, "any order")

    def test_a_plan_below_the_bound_of_another_budget_is_reported_as_a_defect(self) -> None:
        with pytest.raises(BoundMismatchError, match=r"a plan of 7 ns .* none takes less than 8 ns \(fixed order\)"):
            monotone([(10, answer(10, 9, 8)), (20, answer(10, 7, 6))], nothing_known)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(light_path("squeezenet"), batch=8)


@pytest.fixture(scope="module")
def answers(model: Model) -> tuple[Plan | OgcPlanError, ...]:
    return frontier(model, BUDGETS, effort="fast")


@pytest.fixture(scope="module")
def plans(answers: tuple[Plan | OgcPlanError, ...]) -> dict[str, Plan]:
    return {text: made for text, made in zip(BUDGETS, answers, strict=True) if isinstance(made, Plan)}


class TestFrontier:
    def test_the_answers_are_in_the_order_of_the_budgets(self, plans: dict[str, Plan]) -> None:
        assert [made.budget.text for made in plans.values()] == list(plans)

    def test_every_plan_is_within_its_budget(self, plans: dict[str, Plan]) -> None:
        above = [t for t, made in plans.items() if verify(made).peak_activation_nbytes > made.budget.nbytes]
        assert (above, len(plans)) == ([], 6)

    def test_more_memory_never_costs_more(self, plans: dict[str, Plan]) -> None:
        ordered = sorted(plans.values(), key=lambda made: made.budget.nbytes)
        assert all(tight.time.recompute_ns >= loose.time.recompute_ns for tight, loose in pairwise(ordered))

    def test_each_is_at_least_as_good_as_a_plan_for_its_budget_alone(
        self, model: Model, plans: dict[str, Plan]
    ) -> None:
        alone = {text: plan(model, text, effort="fast").time.recompute_ns for text in ("60%", "80%")}
        assert [text for text, cost in alone.items() if plans[text].time.recompute_ns > cost] == []

    def test_a_budget_below_the_floor_is_refused_in_its_place(
        self, model: Model, answers: tuple[Plan | OgcPlanError, ...], plans: dict[str, Plan]
    ) -> None:
        refused = answers[BUDGETS.index("40%")]
        assert isinstance(refused, InfeasibleBudgetError)
        assert (refused.proven, refused.smallest_known_nbytes) == (True, plans["min"].peak.activation_nbytes)

    def test_sizes_bound_the_total(self, model: Model) -> None:
        whole = model.store_all().peak_total_nbytes
        (made,) = frontier(model, [f"{whole}B"])
        assert isinstance(made, Plan)
        assert (made.budget.scope, made.time.recompute_ns) == (Scope.TOTAL.value, 0)

    @pytest.mark.parametrize("budgets", [(), ("60%", "3GB")])
    def test_no_budget_and_budgets_of_two_kinds_are_refused(self, model: Model, budgets: tuple[str, ...]) -> None:
        with pytest.raises(UsageError):
            frontier(model, budgets)

    def test_other_strategies_have_frontiers_too(self, model: Model) -> None:
        loose, tight = frontier(model, ("90%", "60%"), strategy="greedy")
        assert isinstance(loose, Plan)
        assert isinstance(tight, Plan)
        assert loose.time.recompute_ns < tight.time.recompute_ns
