"""Memory that runs out in the middle of a planned step: the module works on, and nothing of the step is held."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError
from torch import Tensor

from tests.modules.devices import cpu_only
from tests.modules.failure_modules import Between, recompute_all
from tests.modules.generators import seeded
from tests.modules.torch_training import train

X = (torch.randn(8, 6, generator=seeded(0)),)
_FULL: list[str] = []
"""The kernel that finds no memory, and how many runs of it still do."""


def _run(kernel: str) -> None:
    if _FULL and _FULL[-1] == kernel:
        _FULL.pop()
        if not _FULL:
            raise torch.OutOfMemoryError("out of memory on demand")


@torch.library.custom_op("ogc_memory::heavy", mutates_args=())
def heavy(x: Tensor) -> Tensor:
    """A sine whose kernel may find no memory."""
    _run("forward")
    return x.sin()


@torch.library.custom_op("ogc_memory::heavy_backward", mutates_args=())
def heavy_backward(gradient: Tensor, x: Tensor) -> Tensor:
    """Its backward, which may find none either."""
    _run("backward")
    return gradient * x.cos()


heavy.register_fake(torch.empty_like)
heavy_backward.register_fake(lambda gradient, x: torch.empty_like(x))
heavy.register_autograd(
    lambda ctx, gradient: heavy_backward(gradient, ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def step(module: torch.nn.Module) -> None:
    """One step, whatever becomes of it."""
    try:
        module(*X).backward()
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("there was memory enough")
    finally:
        module.zero_grad(set_to_none=True)


def tensors() -> int:
    """The number of tensors that are alive."""
    gc.collect()
    return sum(issubclass(type(known), Tensor) for known in gc.get_objects())


WHERE = {"the forward": ["forward"], "a recomputation": ["forward", "forward"], "the backward": ["backward"]}


@cpu_only("the kernels run on the host")
@pytest.mark.parametrize("where", WHERE)
class TestOutOfMemory:
    @pytest.fixture
    def module(self, where: str) -> torch.nn.Module:
        """A module that has trained for a step, and whose memory is about to run out twice."""
        plain = Between(torch.ops.ogc_memory.heavy)
        with suppress(UnsupportedModuleError):  # the first trace imports modules, which the import hook of pytest notes
            recompute_all(plain, X)
        module = recompute_all(plain, X)
        module(*X).backward()
        module.zero_grad(set_to_none=True)
        _FULL[:] = WHERE[where]
        return module

    def test_nothing_of_the_step_is_held(self, module: torch.nn.Module, where: str) -> None:
        step(module)
        before = tensors()
        _FULL[:] = WHERE[where]
        step(module)
        assert tensors() == before

    def test_the_module_trains_on_as_if_nothing_had_been(self, module: torch.nn.Module) -> None:
        step(module)
        plain = Between(torch.ops.ogc_memory.heavy)
        plain.load_state_dict(module.state_dict())
        assert train(module, X, steps=3) == train(plain, X, steps=3)
