"""Global settings that choose kernels: plans are made under any, and hold under those that they were made under."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import bind, plan_of, within_budget
from ogc_plan.adapters.pytorch.execution.attachment import ChangedModuleError
from torch import nn

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


@contextmanager
def changed(change: Callable[[Any], object], value: object, before: object) -> Iterator[None]:
    """Inside, a setting has another value."""
    change(value)
    try:
        yield
    finally:
        change(before)


def attention(name: str) -> AbstractContextManager[None]:
    enabled = getattr(torch.backends.cuda, f"{name}_sdp_enabled")()
    return changed(getattr(torch.backends.cuda, f"enable_{name}_sdp"), not enabled, enabled)


CHANGES: dict[str, Callable[[], Any]] = {
    "the default dtype": lambda: changed(torch.set_default_dtype, torch.float64, torch.get_default_dtype()),
    "the default device": lambda: torch.device("meta"),
    "oneDNN": lambda: torch.backends.mkldnn.flags(enabled=not torch.backends.mkldnn.enabled),
    "cuDNN": lambda: torch.backends.cudnn.flags(enabled=not torch.backends.cudnn.enabled),
    "deterministic algorithms": lambda: changed(
        torch.use_deterministic_algorithms, not (now := torch.are_deterministic_algorithms_enabled()), now
    ),
    "attention by flash": lambda: attention("flash"),
    "attention by memory-efficient": lambda: attention("mem_efficient"),
    "attention by plain products": lambda: attention("math"),
    "attention by cuDNN": lambda: attention("cudnn"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_plan_does_not_hold_under_another_setting(name: str) -> None:
    module, x = nn.Linear(4, 4), torch.ones(2, 4)
    planned = bind(module, plan_of(within_budget(module, (x,), budget="100%", strategy="keep-all")), (x,))
    planned(x)
    with CHANGES[name](), pytest.raises(ChangedModuleError, match=name):
        planned(x)


def test_a_default_device_that_is_set_is_another_setting() -> None:
    module, x = nn.Linear(4, 4), torch.ones(2, 4)
    planned = bind(module, plan_of(within_budget(module, (x,), budget="100%", strategy="keep-all")), (x,))
    before = torch.get_default_device()
    usual = None if before.type == "cpu" else before  # a default device that is set is a mode, even where it is the CPU
    with changed(torch.set_default_device, "meta", usual), pytest.raises(ChangedModuleError, match="device is meta"):
        planned(x)


def test_a_plan_holds_again_under_its_own_settings() -> None:
    module, x = nn.Linear(4, 4), torch.ones(2, 4)
    planned = bind(module, plan_of(within_budget(module, (x,), budget="100%", strategy="keep-all")), (x,))
    with torch.device("meta"), pytest.raises(ChangedModuleError):
        planned(x)
    assert planned(x).shape == (2, 4)
