"""Times of the calls of an ONNX file's module in PyTorch, each forward and backward by itself, on real values."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from ogc_plan.adapters.pytorch import OnnxModule
from torch import Tensor

ROUNDS = 5


class CallTime(NamedTuple):
    """The shortest ns of a call's forward and of the backward that makes all gradients that training needs."""

    forward_ns: int
    backward_ns: int


def call_times(module: OnnxModule, arguments: tuple[Tensor, ...], rounds: int = ROUNDS) -> dict[str, CallTime]:
    """The times of the calls of ``module`` by name, with one thread in processor time."""
    torch.set_num_threads(1)
    steps, times = module.steps, [CallTime(2**62, 2**62)] * len(module.steps)

    def timed(at: int, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*operands: Any) -> Any:
            leaves = [
                operand.detach().requires_grad_(operand.requires_grad) if isinstance(operand, Tensor) else operand
                for operand in operands
            ]
            begun = time.thread_time_ns()
            made = run(*leaves)
            forward = time.thread_time_ns() - begun
            outputs = made if isinstance(made, tuple) else (made,)
            wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
            ends = [output for output in outputs if output.requires_grad]
            backward = 0
            if ends and wanted:
                seeds = [torch.rand_like(end) for end in ends]
                begun = time.thread_time_ns()
                torch.autograd.grad(ends, wanted, seeds, allow_unused=True)
                backward = time.thread_time_ns() - begun
            times[at] = CallTime(*map(min, times[at], (forward, backward)))
            results = tuple(output.detach().requires_grad_(output.requires_grad) for output in outputs)
            return results if isinstance(made, tuple) else results[0]

        return call

    try:
        module.steps = tuple(replace(step, run=timed(at, step.run)) for at, step in enumerate(steps))
        for _ in range(rounds):
            module(*arguments)
    finally:
        module.steps = steps
    found: dict[str, CallTime] = {}
    for step, took in zip(steps, times, strict=True):
        before = found.get(step.where.name, CallTime(0, 0))
        found[step.where.name] = CallTime(*(a + b for a, b in zip(before, took, strict=True)))
    return found


def step_ns(module: OnnxModule, arguments: tuple[Tensor, ...], rounds: int = ROUNDS) -> int:
    """The shortest ns of a whole training step, with one thread in processor time."""
    torch.set_num_threads(1)
    found = []
    for _ in range(1 + rounds):
        module.zero_grad()
        begun = time.process_time_ns()
        outputs = module(*arguments)
        ends = [end for end in (outputs if isinstance(outputs, tuple) else (outputs,)) if end.requires_grad]
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        found.append(time.process_time_ns() - begun)
        del outputs, ends
    return min(found[1:])
