"""What all tests of the adapter share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _young_garbage_only() -> None:
    """Later collections leave out what is alive now: walking all of torch takes most of a second each time."""
    gc.collect()
    gc.freeze()
