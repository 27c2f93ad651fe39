"""Global settings that choose kernels never keep a module from being planned and trained."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRAINING = """
import torch
from ogc_plan.adapters.pytorch import within_budget

{setting}
module, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
within_budget(module, (x,), budget="100%", strategy="keep-all")(x).sum().backward()
"""


@pytest.mark.parametrize("name", ["backends.cuda.matmul", "backends.cudnn"])
def test_a_module_trains_where_a_program_has_set_the_precision_of_products(name: str) -> None:
    program = TRAINING.format(setting=f"torch.{name}.fp32_precision = 'ieee'\ntorch.{name}.fp32_precision = 'tf32'")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
