"""The acceptance run under a hard cap says what it needs where it cannot be tried."""

from __future__ import annotations

import pytest
import torch

from models.memory_fraction import main


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--arch", "resnet18"])
    lines = capsys.readouterr().err.splitlines()
    assert (code, len(lines), "no CUDA device" in lines[0]) == (2, 1, True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_plan_trains_under_a_cap_of_its_budget() -> None:
    assert main(["--arch", "resnet18", "--budget", "3GB"]) == 0
