"""The report on a hard cap tells the allocator's settings in force."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

EXPANDABLE = "expandable_segments:True"
PROGRAM = "from models.fidelity.cap import allocator_settings as told; print(told())"


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_either_variable_is_told(name: str) -> None:
    environment = os.environ | {name: EXPANDABLE}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == EXPANDABLE
