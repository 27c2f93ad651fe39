"""Spares the collector what is there before tests, which takes it most of a second each time."""

from __future__ import annotations

import gc
import sys


def freeze() -> None:
    """Freeze what is alive, and let the product look at it now: its own look would freeze what a test has made."""
    gc.collect()
    gc.freeze()
    if "ogc_plan.adapters.pytorch" in sys.modules:
        from ogc_plan.adapters.pytorch.guards.frozen_objects import FROZEN

        FROZEN.look()
