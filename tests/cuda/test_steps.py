"""A planned step on CUDA: the kernels of eager, its generator, and the bytes that were predicted."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pytest
import torch
from ogc_plan.adapters.pytorch import predict, within_budget
from torch import Tensor, nn

from models.meters.step_meters import by_cuda, clear_gradients
from tests.cuda.steps import attentions, convolutions, indexing, losses, models, norms, recurrent
from tests.cuda_standin.log import launches as launched

KINDS = {
    "model": models.STEPS,
    "norm": norms.STEPS,
    "convolution": convolutions.STEPS,
    "attention": attentions.STEPS,
    "index": indexing.STEPS,
    "loss": losses.STEPS,
    "recurrent": recurrent.STEPS,
}
STEPS = {f"{kind}-{name}": step for kind, steps in KINDS.items() for name, step in steps.items()}


@dataclass
class Planned:
    """A step run by eager and by its plan of the smallest peak."""

    eager: Counter[str]
    planned: Counter[str]
    offsets: tuple[int, int]
    requested: int
    predicted: int


def in_channels_last(given: Tensor) -> Tensor:
    if given.dim() != 4:
        return given
    return given.detach().to(memory_format=torch.channels_last).requires_grad_(given.requires_grad)


_DONE: dict[str, Planned] = {}


def run(name: str) -> Planned:
    """Everything that the tests ask of one step, once."""
    if name in _DONE:
        return _DONE[name]
    step = STEPS[name]
    module, arguments = step.build().cuda(), step.arguments()
    if step.channels_last:
        module = module.to(memory_format=torch.channels_last)
        arguments = tuple(in_channels_last(argument) for argument in arguments)
    generator = torch.cuda.default_generators[0]

    def entered(number: int = 0) -> AbstractContextManager[object]:
        return step.contexts[number]() if number < len(step.contexts) else nullcontext()

    def train(trained: nn.Module) -> Tensor:
        with entered(0), entered(1):
            loss: Tensor = trained(*arguments)
        loss.backward()
        return loss

    def seen(trained: nn.Module) -> tuple[Counter[str], int]:
        train(trained)
        clear_gradients(module, arguments)
        torch.manual_seed(5)
        with launched() as found:
            train(trained)
        clear_gradients(module, arguments)
        return found.names(), generator.get_offset()

    eager, eager_offset = seen(module)
    with entered(0), entered(1):
        bound = within_budget(module, arguments, budget="min")
    planned, offset = seen(bound)
    peak = by_cuda(lambda: train(bound), module, arguments)
    clear_gradients(module, arguments)
    _DONE[name] = Planned(eager, planned, (eager_offset, offset), peak.requested_nbytes, predict(bound).total_nbytes)
    return _DONE[name]


pytestmark = [pytest.mark.usefixtures("launches"), pytest.mark.parametrize("name", STEPS)]


def computing(names: Counter[str]) -> Counter[str]:
    """The launches that compute: copies and fills of memory may be fewer in a planned step."""
    return Counter({name: n for name, n in names.items() if not name.startswith(("copy", "memset", "cublasCreate"))})


def test_every_kernel_of_eager_runs(name: str) -> None:
    found = run(name)
    assert computing(found.eager) - computing(found.planned) == Counter()


def test_the_generator_stands_where_eager_leaves_it(name: str) -> None:
    eager, planned = run(name).offsets
    assert planned == eager


def test_the_bytes_asked_for_are_the_predicted_ones(name: str) -> None:
    found = run(name)
    assert found.requested == found.predicted
