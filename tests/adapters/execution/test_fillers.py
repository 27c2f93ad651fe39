"""Fillers keep free blocks whole, so that a step reserves less."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ogc_plan.adapters.pytorch import plan_of, within_budget
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.execution import executor
from ogc_plan.adapters.pytorch.execution.card_memory import Placed
from ogc_plan.adapters.pytorch.execution.codegen import Event, EventKind, Pooling, Program, generate
from ogc_plan.adapters.pytorch.execution.fillers import Filled, LargeRequests, with_fillers, with_less_reserved
from ogc_plan.adapters.pytorch.execution.request_trace import NO_CALL, Request, RequestTrace, request_trace
from ogc_plan.adapters.pytorch.execution.step_space import best_segment, reserves, segment_sizes
from ogc_plan.adapters.pytorch.memory.caching_allocator import MIB, AllocatorSettings
from ogc_plan.adapters.pytorch.step.annotate import Annotated, annotate
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from ogc_plan.planner.plan_file.record import Plan

from tests.modules.devices import cpu_only
from tests.modules.generators import seeded
from tests.modules.torch_modules import convolutional
from tests.modules.torch_training import bits

ARGS = (torch.randn(2, 3, 8, 8, generator=seeded(3)),)
KINDS = pytest.mark.parametrize("kind", [AllocatorSettings(False), AllocatorSettings(True)])
PAGE = 20 * MIB


def trace_of(events: Iterable[tuple[int, int]]) -> RequestTrace:
    """A step of calls that ask for one block each: its number and its size in MiB, or 0 where it is released."""
    requests = [Request(key, size * MIB) for key, size in events]
    return RequestTrace(tuple(requests), (), tuple(key if nbytes else NO_CALL for key, nbytes in requests))


@st.composite
def traces(draw: st.DrawFn) -> RequestTrace:
    """Steps of blocks of a few sizes, released in any order before the end."""
    waiting: list[int] = []
    events: list[tuple[int, int]] = []
    for call in range(draw(st.integers(4, 24))):
        events.append((call, draw(st.sampled_from((40, 80, 160, 320)))))
        waiting.append(call)
        for _ in range(draw(st.integers(0, min(2, len(waiting))))):
            events.append((waiting.pop(draw(st.integers(0, len(waiting) - 1))), 0))
    return trace_of([*events, *[(key, 0) for key in waiting]])


SPLIT = trace_of([(0, 160), (1, 40), (0, 0), (2, 40), (3, 160), (4, 160), (4, 0), (3, 0), (2, 0), (1, 0)])
"""Block 2 would take the place of block 0, and only one of the two that follow would find 160 MiB in a row."""


@KINDS
def test_a_block_that_would_be_split_is_kept_whole(kind: AllocatorSettings) -> None:
    found = with_less_reserved(SPLIT, best_segment(SPLIT, kind)[1], kind)
    assert found is not None
    assert (found.fillers, found.segment_nbytes, found.reserved_nbytes) == ({2: (160 * MIB,)}, 400 * MIB, 400 * MIB)


@KINDS
@pytest.mark.parametrize("requests", [(), (Request(0, 512), Request(0, 0))], ids=["none", "small"])
def test_without_large_requests_there_is_nothing_to_find(
    kind: AllocatorSettings, requests: tuple[Request, ...]
) -> None:
    trace = RequestTrace(requests, (), (NO_CALL,) * len(requests))
    assert with_less_reserved(trace, best_segment(trace, kind)[1], kind) is None


@KINDS
@settings(deadline=None)
@given(trace=traces(), more=st.integers(0, 12))
@example(trace=SPLIT, more=0)
def test_the_search_serves_what_the_allocator_does(kind: AllocatorSettings, trace: RequestTrace, more: int) -> None:
    large = LargeRequests(trace, kind)
    segment_nbytes = (-(-segment_sizes(trace)[0] // PAGE) + more) * PAGE
    serves_all = large.serve(segment_nbytes, {}).number == large.count
    assert serves_all == (reserves(trace, segment_nbytes, kind) == segment_nbytes)


@KINDS
@settings(max_examples=10, deadline=None)
@given(trace=traces())
@example(trace=SPLIT)
def test_the_allocator_reserves_the_segment_that_is_found_and_no_more(
    kind: AllocatorSettings, trace: RequestTrace
) -> None:
    found = with_less_reserved(trace, best_segment(trace, kind)[1], kind)
    assert found is None or (
        reserves(with_fillers(trace, found.fillers), found.segment_nbytes, kind) == found.segment_nbytes
    )


NEEDLESS = trace_of([
    (0, 40), (1, 160), (2, 160), (3, 80), (2, 0), (1, 0), (4, 160), (0, 0), (5, 320), (6, 40), (3, 0), (7, 320),
    (4, 0), (5, 0), (6, 0), (7, 0),
])  # fmt: skip
"""On its way to a filler for block 4 the search takes one for block 6, which makes no difference."""


@KINDS
@settings(max_examples=10, deadline=None)
@given(trace=traces())
@example(trace=NEEDLESS)
def test_none_of_the_fillers_can_be_left_out(kind: AllocatorSettings, trace: RequestTrace) -> None:
    found = with_less_reserved(trace, best_segment(trace, kind)[1], kind) or Filled({}, 0, 0, trace)
    large = LargeRequests(trace, kind)
    fewer = [{call: of for call, of in found.fillers.items() if call != left} for left in found.fillers]
    assert [each for each in fewer if large.serve(found.segment_nbytes, each).number == large.count] == []


class Fillings:
    """Plans get programs with a filler during each call; ``taken`` has their bytes, as they run."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.programs: list[Program] = []

    def take(self, *sizes: int) -> list[torch.UntypedStorage]:
        self.taken += sizes
        return [torch.UntypedStorage(nbytes) for nbytes in sizes]

    def placed(self, annotated: Annotated, plan: Plan) -> Placed:
        step, schedule = annotated.step, plan.schedule
        calls = sum(event.kind is EventKind.CALL for event in events_of(generate(step, schedule)))
        pooling = Pooling({call: (8 * MIB, call + 1) for call in range(calls)}, self.take)
        self.programs.append(generate(step, schedule, pooling=pooling))
        return Placed(self.programs[-1], None)


def events_of(program: Program) -> tuple[Event, ...]:
    return (*program.forward_events, *program.backward_events)


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> Fillings:
    made = Fillings()
    monkeypatch.setattr(executor, "placed", made.placed)
    return made


class TestProgram:
    def test_it_takes_them_in_turn(self, filled: Fillings) -> None:
        module = within_budget(convolutional(), ARGS, budget="75%", strategy="greedy")
        module(*ARGS).sum().backward()
        expected = [event.about for event in events_of(filled.programs[0]) if event.kind is EventKind.FILL]
        assert filled.taken == [nbytes for about in expected for nbytes in about]

    @cpu_only("values are compared")
    def test_it_trains_to_the_same_bits(self, filled: Fillings) -> None:
        plain = convolutional()
        module = within_budget(copy.deepcopy(plain), ARGS, budget="70%", strategy="greedy")
        for each in (plain, module):
            each(*ARGS).sum().backward()
        assert [bits(p.grad) for p in plain.parameters()] == [bits(p.grad) for p in module.parameters()]

    @cpu_only("the requests of the CPU's kernels")
    def test_its_requests_are_those_of_the_step_with_the_fillers(self) -> None:
        annotated = annotate(TracedStep(capture(convolutional(), ARGS)))
        schedule = plan_of(within_budget(convolutional(), ARGS, budget="70%", strategy="greedy")).schedule
        annotated.meter.measure(annotated.step.calls)
        plain = request_trace(annotated.step, generate(annotated.step, schedule), annotated.meter)
        fillers = {call: (8 * MIB, call + 1) for call in set(plain.calls) - {NO_CALL}}
        program = generate(annotated.step, schedule, pooling=Pooling(fillers, list))
        requests = request_trace(annotated.step, program, annotated.meter).step
        assert sizes(requests) == sizes(with_fillers(plain, fillers).step)


def sizes(requests: Iterable[Request]) -> list[int]:
    return [request.nbytes for request in requests]
