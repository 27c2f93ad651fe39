"""Fixtures of several files."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported: one thread for each of the test processes
gc.set_threshold(50_000, 50, 100)  # collections of the many objects of a test process are a tenth of its time


@pytest.fixture
def usual_interrupts() -> Iterator[None]:
    """Python's own handler, whatever runs the tests: in the background of a shell interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
