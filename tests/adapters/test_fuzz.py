"""Random modules trained by random scripts leave what eager training leaves; fuzz.py has more cases of them."""

from __future__ import annotations

import pytest

from tests.adapters.fuzz import outcome
from tests.modules.devices import cpu_only


@cpu_only("the scripts train on the host")
@pytest.mark.parametrize("seed", range(60))
def test_a_random_script_leaves_what_eager_training_leaves(seed: int) -> None:
    assert outcome(seed) == "equal"
