"""What the collector has counted tells that nothing was frozen, and is never wrong about it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.adapters.pytorch.guards.frozen_objects import CollectorCounts

from tests.modules import collector

HELD: list[Any] = []
ACTS: dict[str, Callable[[], object]] = {
    "a few objects": lambda: HELD.append([[] for _ in range(50)]),
    "many": lambda: HELD.append([[] for _ in range(3000)]),
    "none": HELD.clear,
    "young": lambda: gc.collect(0),
    "middle": lambda: gc.collect(1),
    "full": gc.collect,
    "freeze": gc.freeze,
}


@pytest.fixture(scope="module", autouse=True)
def as_before() -> Iterator[None]:
    """Later tests find frozen what they usually do."""
    gc.unfreeze()  # a full collection takes long where all that tests import is looked through
    yield
    HELD.clear()
    collector.freeze()


@given(acts=st.lists(st.sampled_from(sorted(ACTS)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_freeze_is_never_overlooked(acts: list[str]) -> None:
    counts = CollectorCounts()
    for act in acts:
        ACTS[act]()
    assert not (counts.go_on() and "freeze" in acts)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the counts of its collector say other things")
def test_it_is_certain_that_nothing_was_frozen_without_a_full_collection() -> None:
    counts = CollectorCounts()
    for act in ("many", "young", "middle", "none"):
        ACTS[act]()
    assert counts.go_on()
