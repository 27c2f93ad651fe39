"""Fixtures of several files."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def usual_interrupts() -> Iterator[None]:
    """Python's own handler, whatever runs the tests: in the background of a shell interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
