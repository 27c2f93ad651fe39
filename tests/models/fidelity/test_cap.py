"""The acceptance run under a hard cap says what it needs where it cannot be tried."""

from __future__ import annotations

import pytest
import torch

from models.fidelity.__main__ import main


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["cap", "--arch", "resnet18", "--budget", "3GB"])
    assert (code, capsys.readouterr().err) == (
        2,
        "models.fidelity cap: --arch resnet18 --budget 3GB: there is no CUDA device to cap; "
        "run it on a machine with an NVIDIA GPU\n",
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_plan_trains_under_a_cap_of_its_budget() -> None:
    assert main(["cap", "--arch", "resnet18", "--budget", "3GB"]) == 0
