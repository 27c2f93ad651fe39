"""Fillers keep free blocks whole, so that a step reserves less."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.adapters.pytorch.binding.bound_module import runner_of
from ogc_plan.adapters.pytorch.execution.codegen import Filling, generate
from ogc_plan.adapters.pytorch.execution.fillers import Fillers, with_fillers, with_less_reserved
from ogc_plan.adapters.pytorch.execution.request_trace import NO_CALL, Request, RequestTrace, request_trace
from ogc_plan.adapters.pytorch.execution.step_pool import best_segment, reserves
from ogc_plan.adapters.pytorch.memory.caching_allocator import MIB, AllocatorSettings

from tests.modules.torch_modules import convolutional

KINDS = pytest.mark.parametrize("expandable", [False, True], ids=["segments", "expandable"])


@st.composite
def traces(draw: st.DrawFn) -> RequestTrace:
    """Steps whose calls ask for one block each, of four sizes, released in any order before the end."""
    waiting: list[int] = []
    requests, calls = list[Request](), list[int]()
    for call in range(draw(st.integers(4, 24))):
        requests.append(Request(call, draw(st.sampled_from((8, 16, 32, 64))) * MIB))
        calls.append(call)
        waiting.append(call)
        for _ in range(draw(st.integers(0, min(2, len(waiting))))):
            requests.append(Request(waiting.pop(draw(st.integers(0, len(waiting) - 1))), 0))
            calls.append(NO_CALL)
    requests += [Request(key, 0) for key in waiting]
    return RequestTrace(tuple(requests), (), (*calls, *[NO_CALL] * len(waiting)))


@KINDS
@settings(max_examples=10, deadline=None)
@given(trace=traces())
def test_the_allocator_reserves_less_with_them(expandable: bool, trace: RequestTrace) -> None:
    kind = AllocatorSettings(expandable)
    reserved = best_segment(trace, kind)[1]
    found = with_less_reserved(trace, reserved, kind)
    assert found is None or reserves(with_fillers(trace, found.fillers), found.segment_nbytes, kind) < reserved


def test_a_program_takes_them_as_its_trace_says() -> None:
    torch.manual_seed(0)
    module, arguments = convolutional(), (torch.randn(2, 3, 8, 8),)
    executor = runner_of(within_budget(module, arguments, budget="70%", strategy="greedy")).executor
    step, meter, schedule = executor._annotated.step, executor._annotated.meter, executor.plan.schedule
    meter.measure(step.calls)
    plain = request_trace(step, generate(step, schedule), meter)
    fillers: Fillers = {call: (8 * MIB, call + 1) for call in set(plain.calls) - {NO_CALL}}
    filled = generate(step, schedule, fillers=Filling(fillers))
    sizes = [request.nbytes for request in request_trace(step, filled, meter).step]
    assert sizes == [request.nbytes for request in with_fillers(plain, fillers).step]
