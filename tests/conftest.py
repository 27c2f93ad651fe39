"""Fixtures of several files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported: one thread for each of the test processes


@pytest.fixture
def usual_interrupts() -> Iterator[None]:
    """Python's own handler, whatever runs the tests: in the background of a shell interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
