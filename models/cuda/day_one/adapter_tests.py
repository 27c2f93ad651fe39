"""The tests of the adapter, with their tensors on the card."""

from __future__ import annotations

import os

from models.cuda.day_one.card_tests import run_tests
from models.cuda.day_one.cases import Save


def run(small: bool, save: Save) -> None:
    """What `card_tests` finds, of tests/adapters; with ``small`` of one file. Trainers would spread over all cards."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    run_tests(
        ["tests/adapters/capture/test_outputs.py" if small else "tests/adapters"],
        save,
        TEST_DEVICE="cuda",
        CUDA_VISIBLE_DEVICES=first,
    )
