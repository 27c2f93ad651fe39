"""The bound raised beside the search: certified, no higher than the plan, the same however fast either side is."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.branch_and_bound import Bound, BranchAndBound
from ogc_plan.planner.strategies.certify import Proof, certify, certifying
from ogc_plan.planner.strategies.effort import EFFORTS
from ogc_plan.planner.strategies.evaluate import Evaluator
from ogc_plan.planner.strategies.integer_bound import IntegerBound
from ogc_plan.planner.strategies.one_order import OneOrder
from ogc_plan.planner.strategies.prepared import Prepared
from ogc_plan.planner.strategies.search import Search
from ogc_plan.planner.strategies.stage_lp import StageLP

from tests.brute import best_decisions, minimum_recompute_ns
from tests.builders import chain


def chain_problem() -> Problem:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    costs = tuple(replace(cost, forward_ns=5 + op) for op, cost in enumerate(costs))
    return build_problem(graph, costs, Scope.ACTIVATIONS)


def search(problem: Problem, budget_nbytes: int) -> Search:
    """A search that knows a best plan."""
    made = Search(Evaluator(problem), budget_nbytes, effort=EFFORTS["default"])
    best = best_decisions(problem, budget_nbytes)
    assert best is not None
    made.offer_sequence(np.array(best.sequence, dtype=np.int64))
    return made


def test_it_meets_the_exact_optimum_of_a_chain() -> None:
    problem = chain_problem()
    stages = tuple(range(len(problem.backward_order)))
    found = certify(search(problem, 80), StageLP(problem), stages, problem.store_all_ns)
    assert found.bound_ns == minimum_recompute_ns(problem, 80)


def test_it_never_passes_the_plan_it_is_given() -> None:
    problem = chain_problem()
    assert certify(search(problem, 80), StageLP(problem), (0,), 1).bound_ns == 1


def test_a_bound_that_a_plan_found_meanwhile_refutes_is_not_lowered_to_its_cost() -> None:
    problem = chain_problem()
    proof = Proof(search(problem, 80), StageLP(problem), (0,), problem.store_all_ns)
    proof.advance()
    proof.again(1)
    assert proof.found.bound_ns > 1


def taken_up_again(exact_ns: int, hopeless: float) -> tuple[int, int]:
    """A bound after next to no work, and after a plan of the exact cost was found."""
    problem = chain_problem()
    known = search(problem, 80)
    known.effort = replace(EFFORTS["default"], branching=1)
    proof = Proof(known, StageLP(problem), tuple(range(8)), problem.store_all_ns)
    proof.advance()
    before, known.effort = proof.found.bound_ns, replace(EFFORTS["default"], hopeless=hopeless)
    proof.again(exact_ns)
    return before, proof.found.bound_ns


def test_the_work_goes_on_with_a_better_plan() -> None:
    exact = minimum_recompute_ns(chain_problem(), 80)
    assert exact is not None
    before, after = taken_up_again(exact, hopeless=1.0)
    assert before < after == exact


def test_no_more_work_is_done_where_the_gap_is_hopeless() -> None:
    exact = minimum_recompute_ns(chain_problem(), 80)
    assert exact is not None
    before, after = taken_up_again(exact, hopeless=0.01)
    assert before == after


class Branching:
    """Boxes whose bound rises by ``rise`` with every part of the work."""

    def __init__(self, rise: int) -> None:
        self.rise, self.parts = rise, 0
        self.work = 0

    def improved(self, incumbent_ns: int) -> None:
        pass

    def run(self, solves: int, work: int) -> Bound:
        self.parts += 1
        return Bound(self.parts * self.rise, 1, self.parts, False)


@pytest.mark.parametrize(("rise", "parts"), [(0, 2), (10, 4)])
def test_branching_goes_on_only_where_it_leads_somewhere(rise: int, parts: int) -> None:
    boxes = Branching(rise)
    proof = Proof(search(chain_problem(), 80), StageLP(chain_problem()), (0,), 100)
    proof._run(cast(BranchAndBound, boxes), 400)
    assert boxes.parts == parts


class Growing:
    """A search in integers that raises its bound by 10 each time and says how much work it was given."""

    def __init__(self) -> None:
        self.bound_ns, self.ended, self.points, self.stages = 0, False, (), (0, 3)
        self.given: list[float] = []

    def run(self, incumbent_ns: int, work: float, late: object) -> None:
        self.given.append(work)
        self.bound_ns += 10


def test_growing_that_raised_the_bound_goes_on_with_twice_the_work_and_tells_its_stages() -> None:
    known, growing = search(chain_problem(), 80), Growing()
    known.effort = replace(EFFORTS["high"], growing=3.0)
    proof = Proof(known, StageLP(chain_problem()), (0,), 100)
    proof.growing, proof.grew = cast(IntegerBound, growing), True
    proof.again(100)
    assert (growing.given, proof.found.bound_ns, proof.found.grown) == ([6.0], 10, (0, 3))


def test_growing_begins_with_the_stages_it_came_to_before() -> None:
    known = search(chain_problem(), 80)
    known.stages, known.grown = {0, 2}, (0, 2, 5)
    assert Proof(known, StageLP(chain_problem()), (0,), 100).seeds == (0, 2, 5)


def test_more_stages_raise_a_bound_that_few_leave_low() -> None:
    problem, exact = chain_problem(), minimum_recompute_ns(chain_problem(), 60)
    assert exact is not None
    bounds = []
    for growing in (0.0, 5.0):
        known = search(problem, 60)
        known.effort = replace(EFFORTS["default"], growing=growing)
        bounds.append(certify(known, StageLP(problem), (0,), exact).bound_ns)
    assert bounds[0] < bounds[1] <= exact


def test_beside_other_work_it_finds_what_it_finds_alone() -> None:
    problem = chain_problem()
    bounds = []
    for _ in range(3):
        known = search(problem, 80)
        with certifying(known, StageLP(problem)) as proof:
            first = proof.certified().bound_ns
            proof.go_on()
            bounds.append((first, proof.certified().bound_ns))
    assert len(set(bounds)) == 1


def test_an_exception_beside_it_ends_the_work_on_the_bound() -> None:
    known = search(chain_problem(), 80)
    with pytest.raises(KeyboardInterrupt), certifying(known, StageLP(known.problem)):
        raise KeyboardInterrupt
    assert known.stopped_early


def test_leaving_gives_up_what_nobody_has_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    known = search(chain_problem(), 80)

    def endless(proof: Proof) -> None:
        while not proof._late():
            time.sleep(0.001)

    monkeypatch.setattr(Proof, "advance", endless)
    before = threading.active_count()
    with certifying(known, StageLP(known.problem)):
        pass
    assert (threading.active_count(), known.stopped_early) == (before, False)


def test_what_is_proven_when_the_search_is_stopped_counts() -> None:
    problem = chain_problem()
    run = OneOrder(search(problem, 80), Prepared(problem))
    with run.proving() as begun:
        assert begun is not None
        begun.certified()
        run.search.stopped_early = True
    assert run.search.bound_ns > 0


@pytest.mark.parametrize(("known_ns", "parts"), [(1, 4), (11, 1)])
def test_work_under_fewer_stages_ends_where_it_does_not_pass_the_known_bound(known_ns: int, parts: int) -> None:
    known = search(chain_problem(), 80)
    known.bound_ns, known.stages = known_ns, {0, 2, 4}
    boxes = Branching(10)
    Proof(known, StageLP(chain_problem()), (0, 4), 100)._run(cast(BranchAndBound, boxes), 400)
    assert boxes.parts == parts
