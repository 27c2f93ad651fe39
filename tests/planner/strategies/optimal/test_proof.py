"""The bound raised beside the search: certified, no higher than the plan, the same however fast either side is."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from ogc_plan.planner.problem import Problem, Scope, build_problem
from ogc_plan.planner.strategies.evaluation.evaluator import Evaluation, Evaluator
from ogc_plan.planner.strategies.integers.stage_generation import IntegerBound
from ogc_plan.planner.strategies.optimal import fixed_order as one_order
from ogc_plan.planner.strategies.optimal import proof as certify
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from ogc_plan.planner.strategies.optimal.fixed_order import OneOrder
from ogc_plan.planner.strategies.optimal.incumbents import Candidate, Search
from ogc_plan.planner.strategies.optimal.initial_plans import Others
from ogc_plan.planner.strategies.optimal.problem_cache import Prepared
from ogc_plan.planner.strategies.optimal.proof import Proof, ProofBeside, certifying
from ogc_plan.planner.strategies.orders.reordered_problem import default_orders
from ogc_plan.planner.strategies.relaxation.stage_relaxation import StageLP

from tests.graphs.builders import chain
from tests.graphs.layered_graphs import tight_layers
from tests.oracles.brute import best_decisions, minimum_recompute_ns

BUDGET = 80


def chain_problem() -> Problem:
    graph, costs = chain(8, nbytes=10, forward_ns=5)
    costs = tuple(replace(cost, forward_ns=5 + op) for op, cost in enumerate(costs))
    return build_problem(graph, costs, Scope.ACTIVATIONS)


def search(problem: Problem, budget_nbytes: int = BUDGET, effort: str = "default") -> Search:
    """A search that knows a best plan and wants no gap."""
    made = Search(Evaluator(problem), budget_nbytes, effort=replace(EFFORTS[effort], enough=0.0))
    best = best_decisions(problem, budget_nbytes)
    assert best is not None
    made.offer_sequence(np.array(best.sequence, dtype=np.int64))
    return made


def proof(effort: str = "default") -> Proof:
    """Of a search on a chain."""
    problem = chain_problem()
    return Proof(search(problem, effort=effort), StageLP(problem))


def tight() -> Proof:
    """Of a search on layers that takes more work than a moment."""
    problem, budget = tight_layers(5)
    return Proof(Search(Evaluator(problem), budget, effort=EFFORTS["default"]), StageLP(problem))


def exact_ns() -> int:
    found = minimum_recompute_ns(chain_problem(), BUDGET)
    assert found is not None
    return found


def best(made: Proof) -> Candidate:
    found = made.search.best
    assert found is not None
    return found


def costing(recompute_ns: int) -> Candidate:
    """What stands for a plan of that cost."""
    return Candidate(np.zeros(0, dtype=np.int64), Evaluation(0, recompute_ns, 0, -1))


def order(*, thorough: bool = False, hopeless: float = 1e9) -> OneOrder:
    """A search on a chain that knows a best plan and no bound, and calls no gap hopeless."""
    problem = chain_problem()
    run = OneOrder(search(problem), Prepared(problem))
    run.search.effort = replace(run.search.effort, hopeless=hopeless, thorough=thorough)
    return run


def test_it_meets_the_exact_optimum_of_a_chain() -> None:
    made = proof()
    made.advance(costing(made.search.problem.store_all_ns), 1.0)
    assert made.bound_ns == exact_ns()


def test_a_bound_that_a_plan_found_meanwhile_refutes_is_not_lowered_to_its_cost() -> None:
    made = proof()
    made.advance(costing(made.search.problem.store_all_ns), 1.0)
    made.advance(costing(1), 1.0)
    assert made.bound_ns > 1


def test_work_taken_up_again_goes_on_where_it_was() -> None:
    made, bounds = tight(), []
    for _ in range(3):
        made.advance(costing(10**15), 0.1)
        bounds.append(made.bound_ns)
    assert bounds[0] < bounds[-1]


def test_points_are_there_until_they_are_taken() -> None:
    made = proof()
    made.advance(costing(made.search.problem.store_all_ns), 1.0)
    assert (len(made.taken()) > 0, made.taken()) == (True, ())


def test_no_point_is_handed_out_twice() -> None:
    made, taken = tight(), []
    for _ in range(3):
        made.advance(costing(10**15), 0.1)
        taken += made.taken()
    assert len(taken) == len({id(point) for point in taken}) > 3


def test_it_begins_with_the_bound_that_is_known() -> None:
    problem = chain_problem()
    known = search(problem)
    known.bound_ns = 3
    made = Proof(known, StageLP(problem))
    made.advance(best(made), 0.0)
    assert made.bound_ns == 3


def test_it_evaluates_in_memory_of_its_own() -> None:
    made = proof()
    assert made._evaluator.scratch is not made.search.evaluator.scratch


def test_the_fastest_effort_bounds_by_a_linear_program_at_once_and_once() -> None:
    made = proof("fast")
    made.advance(best(made), 0.001)
    assert (0 < made.bound_ns <= exact_ns(), made.ended, made.grows) == (True, True, False)


def test_the_linear_program_has_the_stages_where_the_plan_holds_most() -> None:
    made = proof("fast")
    made.advance(best(made), 1.0)
    assert len(made.taken()[0].stages) > 1


def test_a_gap_that_is_enough_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    spared, made = [], proof()
    made.search.effort = replace(made.search.effort, enough=0.01)
    monkeypatch.setattr(IntegerBound, "run", lambda _, __, spare_ns, *___: spared.append(spare_ns))
    made.advance(best(made), 1.0)
    assert spared == [made.search.problem.store_all_ns // 200]


def test_beside_other_work_it_finds_what_it_finds_alone() -> None:
    alone = proof()
    alone.advance(best(alone), 0.5)
    bounds = [alone.bound_ns]
    for _ in range(3):
        made = proof()
        with certifying(made) as begun:
            begun.go_on(0.5)
            bounds.append(begun.certified().bound_ns)
    assert len(set(bounds)) == 1


def test_the_work_begun_is_what_the_gap_was_worth_when_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    made = proof()
    made.search.effort = replace(made.search.effort, enough=0.001, growing=2.0)
    made.search.bound_ns = exact_ns()
    monkeypatch.setattr(Proof, "advance", lambda _, __, work: given.append(round(work, 2)))
    with certifying(made) as begun:
        begun.go_on(0.4)
        made.search.bound_ns = 0
    assert given == [0.08]


def endless(made: Proof, *_: object) -> None:
    """What a proof may do in the place of its work."""
    while not made._late():
        time.sleep(0.001)


def interrupted_beside_its_work(made: Proof) -> None:
    with certifying(made) as begun:
        begun.go_on(1.0)
        raise KeyboardInterrupt


def test_an_exception_beside_it_ends_the_work_on_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proof, "advance", endless)
    made, before = proof(), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        interrupted_beside_its_work(made)
    assert (threading.active_count(), made.search.stopped_early) == (before, True)


def test_leaving_gives_up_what_nobody_has_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proof, "advance", endless)
    made, before = proof(), threading.active_count()
    with certifying(made) as begun:
        begun.go_on(1.0)
    assert (threading.active_count(), made.search.stopped_early) == (before, False)


def test_what_is_proven_when_the_search_is_stopped_counts() -> None:
    run = order()
    with run.proving() as begun:
        assert begun is not None
        begun.certified()
        run.search.stopped_early = True
    assert run.search.bound_ns > 0


def test_no_work_is_done_where_the_gap_is_hopeless() -> None:
    run = order(thorough=True, hopeless=0.001)
    run.solve()
    assert run.search.bound_ns == 0


@pytest.mark.parametrize(("whole_ops", "begun"), [(8, True), (4, False)])
def test_a_gap_is_called_hopeless_sooner_above_so_many_ops(
    whole_ops: int, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_order, "_HOPEFUL_OPS", whole_ops)
    with order(hopeless=1.5 * order().search.gap()).proving() as work:
        assert (work is not None) == begun


@pytest.mark.parametrize("thorough", [True, False])
def test_an_order_is_solved_before_anything_is_annealed_where_that_takes_long(thorough: bool) -> None:
    run = order(thorough=thorough)
    run.solve()
    assert run.search.bound_ns == (exact_ns() if thorough else 0)


def test_what_is_found_in_integers_is_taken_for_a_plan() -> None:
    run, run.search.best = order(thorough=True), None
    run.search.offer_sequence(np.array([*range(8), *(e for op in range(7, -1, -1) for e in (*range(op + 1), ~op))]))
    before = run.search.best
    run.solve()
    assert before is not None
    assert before.found.recompute_ns > run.search.best.found.recompute_ns == exact_ns()


@pytest.mark.parametrize(
    ("again_ops", "most", "thorough", "pieces"),
    [(8, 9.0, False, 2), (7, 9.0, False, 1), (8, 0.004, False, 1), (7, 0.004, True, 2)],
)
def test_a_second_piece_of_work_is_done_on_small_graphs_with_narrow_gaps_or_where_the_effort_is_thorough(
    again_ops: int, most: float, thorough: bool, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advance(made: Proof, *_: object) -> None:
        made.bound_ns += 1

    monkeypatch.setattr(Proof, "advance", advance)
    monkeypatch.setattr(one_order, "_AGAIN_OPS", again_ops)
    monkeypatch.setattr(one_order, "_AGAIN_MOST", most)
    run = order(thorough=thorough)
    run.finish()
    assert run.search.bound_ns == pieces


@pytest.mark.parametrize(
    ("tried", "again_ops", "most", "thorough", "begun"),
    [
        (True, 7, 0.004, False, 0),
        (False, 7, 0.004, False, 1),
        (True, 8, 0.004, False, 1),
        (True, 7, 9.0, False, 1),
        (True, 7, 0.004, True, 1),
    ],
)
def test_once_one_was_tried_in_other_orders_no_proof_is_begun_where_a_wide_gap_is_left_on_a_large_graph(
    tried: bool, again_ops: int, most: float, thorough: bool, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advance(made: Proof, *_: object) -> None:
        made.bound_ns = 1

    monkeypatch.setattr(Proof, "advance", advance)
    monkeypatch.setattr(one_order, "_AGAIN_OPS", again_ops)
    monkeypatch.setattr(one_order, "_AGAIN_MOST", most)
    run = order(thorough=thorough)
    run.finish(tried=tried)
    assert run.search.bound_ns == begun


def test_a_proof_that_was_begun_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = order(), []
    monkeypatch.setattr(OneOrder, "learn", lambda _, proof, **__: asked.append(proof))
    with run.proving() as begun:
        run.finish(begun)
    assert (begun is not None, asked[0] is begun) == (True, True)


@pytest.mark.parametrize(
    ("led_somewhere", "share", "shares"), [(True, 1.0, [0.5]), (True, 0.2, [0.2]), (False, 1.0, [])]
)
def test_annealing_goes_on_where_it_has_led_somewhere_though_nothing_is_proven_beside_it(
    led_somewhere: bool, share: float, shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[float] = []
    monkeypatch.setattr(OneOrder, "_promising", lambda _: False)
    monkeypatch.setattr(OneOrder, "improve", lambda *_, **__: led_somewhere)
    monkeypatch.setattr(one_order, "improve_holds", lambda *_, share: again.append(share))
    order().finish(share=share)
    assert again == shares


def test_no_proof_is_waited_for_where_annealing_has_settled_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(ProofBeside, "certified", lambda beside: asked.append(beside) or beside.proof)
    run = order()
    with run.proving() as begun:
        run.search.bound_ns = exact_ns()
        run.learn(begun)
    assert (begun is not None, asked) == (True, [])


def test_under_other_orders_without_a_plan_the_other_strategies_are_asked_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both, arrived = threading.Barrier(3, timeout=30), []
    for part in ("_make_counted", "_make_greedy", "_make_layers"):
        monkeypatch.setattr(Others, part, lambda _: arrived.append(both.wait()))
    problem = chain_problem()
    run = OneOrder(Search(Evaluator(problem), 1), Prepared(problem), default_orders(problem))
    run.start()
    assert sorted(arrived) == [0, 1, 2]


@pytest.mark.parametrize(
    ("effort", "largest", "chooses"), [("high", 8, True), ("high", 7, False), ("default", 8, False)]
)
def test_stages_are_chosen_with_care_given_much_work_on_a_small_graph(
    effort: str, largest: int, chooses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def begin(*_: object, chooses: bool) -> IntegerBound:
        told.append(chooses)
        return IntegerBound(StageLP(chain_problem()), Evaluator(chain_problem()), BUDGET, (0,), 0, chooses=chooses)

    monkeypatch.setattr(certify, "_CHOSEN_OPS", largest)
    monkeypatch.setattr(certify, "IntegerBound", begin)
    made = proof(effort)
    made.advance(best(made), 1.0)
    assert told == [chooses]
