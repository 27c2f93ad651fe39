"""Plans of another size by kept decisions: within the budget, with what the device takes; equal structure is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner import Plan, load_model, plan
from ogc_plan.planner.annotations import OpWork
from ogc_plan.planner.model import Model
from ogc_plan.planner.pipeline import check
from ogc_plan.planner.plan_file.reader import loads
from ogc_plan.planner.plan_file.writer import dumps
from ogc_plan.planner.replan.kept_decisions import STORE_ALL_NOTE, decisions_of, replan
from ogc_plan.planner.replan.structure import distance, same_structure, scaled
from ogc_plan.planner.schedule import lower
from ogc_plan.planner.solver import Solver
from ogc_plan.planner.training_graph import OpCost

from models.light import light_path

SOLVER = Solver("optimal", "fast")


@pytest.fixture(scope="module")
def small() -> Model:
    return load_model(light_path("squeezenet"), batch=4)


@pytest.fixture(scope="module")
def large() -> Model:
    return load_model(light_path("squeezenet"), batch=8)


@pytest.fixture(scope="module")
def kept(small: Model) -> Plan:
    return plan(small, "60%", effort="fast")


def bytes_of(made: Plan) -> str:
    return f"{made.peak.total_nbytes}B"


def test_two_batch_sizes_have_one_structure(small: Model, large: Model) -> None:
    assert same_structure(small.training, large.training)


def test_two_networks_do_not(small: Model) -> None:
    assert not same_structure(small.training, load_model(light_path("shufflenet"), batch=4).training)


def test_an_op_that_must_run_once_is_another_structure(small: Model) -> None:
    first, *rest = small.training.ops
    assert not same_structure(small.training, replace(small.training, ops=(replace(first, once=True), *rest)))


def test_steps_of_one_size_are_not_apart(small: Model) -> None:
    assert distance(small.training, small.training) == 0


def test_the_decisions_of_a_plan_give_its_schedule(kept: Plan) -> None:
    assert lower(kept.graph, decisions_of(kept)) == kept.schedule


@settings(max_examples=15, deadline=None)
@given(share=st.integers(30, 110), reserve=st.integers(0, 20))
def test_what_fits_keeps_the_budget_and_its_headroom_and_passes_the_check(
    large: Model, kept: Plan, share: int, reserve: int
) -> None:
    budget = large.store_all().peak_total_nbytes * share // 100
    made = replan(large, [kept], f"{budget}B", SOLVER, headroom=f"{reserve}%")
    if made is not None:
        assert check(large.training, large.costs, made).peak_total_nbytes <= budget - budget * reserve // 100


def test_decisions_that_need_a_byte_more_do_not_fit(large: Model, kept: Plan) -> None:
    made = replan(large, [kept], "99%", SOLVER, scope="total")
    assert made is not None
    assert replan(large, [kept], f"{made.peak.total_nbytes - 1}B", SOLVER) is None


def test_what_the_device_takes_beyond_the_peak_counts(large: Model, kept: Plan) -> None:
    made = replan(large, [kept], "99%", SOLVER, scope="total")
    assert made is not None
    assert replan(large, [kept], bytes_of(made), SOLVER, overhead=lambda _: 1) is None


@pytest.mark.parametrize("budget", ["99%", "100%"])
def test_such_a_plan_is_written_and_read(large: Model, kept: Plan, budget: str) -> None:
    made = replan(large, [kept], budget, SOLVER, scope="total")
    assert made is not None
    assert dumps(loads(dumps(made).encode(), "it")) == dumps(made)


def test_a_step_that_fits_whole_recomputes_nothing(large: Model, kept: Plan) -> None:
    made = replan(large, [kept], "100%", SOLVER)
    assert (made and made.recomputed, made and made.certificate.notes[0]) == ({}, STORE_ALL_NOTE)


def test_tensors_to_recompute_are_recomputed_even_then(large: Model, small: Model) -> None:
    recomputed = plan(small, "60%", effort="fast").recomputed
    name = next(small.training.storages[op.writes[0]].name for op in small.training.ops if op.name in recomputed)
    asked = plan(small, "100%", effort="fast", recompute=[name])
    made = replan(large, [asked], "100%", SOLVER, recompute=[name])
    assert (made and made.recomputed) == asked.recomputed


def test_the_first_that_fits_is_taken(large: Model, kept: Plan, small: Model) -> None:
    tight = plan(small, "50%", effort="fast")
    made = replan(large, [tight, kept], "90%", SOLVER)
    assert (made and made.schedule) == tight.schedule


def test_times_follow_arithmetic_or_else_traffic() -> None:
    before, now = (OpWork(flops, nbytes, 1, 0, nbytes, 1) for flops, nbytes in ((10, 100), (30, 200)))
    (work,) = scaled([now], [before], [OpCost(7, 5)])
    assert (work.forward_ns, work.backward_ns) == (21, 10)
