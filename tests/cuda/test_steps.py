"""A planned step on CUDA: the kernels of eager, its generator, and the bytes that were predicted."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
from ogc_plan.adapters.pytorch import predict, within_budget
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.meters.step_meters import by_cuda, clear_gradients
from models.networks.gpt2 import GPT2Config
from models.training.cases import Case, gpt_case, resnet_case, unet_case
from tests.cuda_standin.log import launches as launched

SMALL = GPT2Config(vocabulary=512, context=128, layers=3, heads=4, width=256, dropout=0.1)


class Masked(nn.Module):
    """A transformer encoder with padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, activation="gelu", batch_first=True)
        self.embedding = nn.Embedding(1000, 128)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.encoder(self.embedding(x), src_key_padding_mask=padding).square().mean()


@dataclass(frozen=True)
class Step:
    """A module, its arguments, and the contexts that a training step runs in."""

    build: Callable[[], nn.Module]
    arguments: Callable[[], tuple[Tensor, ...]]
    contexts: tuple[Callable[[], AbstractContextManager[object]], ...] = ()
    channels_last: bool = False


def of(case: Case, *contexts: Callable[[], AbstractContextManager[object]], channels_last: bool = False) -> Step:
    return Step(case.build, lambda: case.arguments(0, "cuda"), contexts, channels_last)


def half(dtype: torch.dtype) -> Callable[[], AbstractContextManager[object]]:
    return lambda: torch.autocast("cuda", dtype=dtype)


def attention(kind: SDPBackend) -> Callable[[], AbstractContextManager[object]]:
    return lambda: sdpa_kernel(kind)


BF16, F16 = half(torch.bfloat16), half(torch.float16)
RESNET, GPT, UNET = resnet_case(4, 64, (1, 1, 1, 1)), gpt_case(2, SMALL), unet_case(1, 64, (8, 16, 32))
SIXTEENTHS = gpt_case(2, replace(SMALL, dropout=2 / 16))  # cuDNN's attention drops in sixteenths
STEPS = {
    "resnet": of(RESNET),
    "resnet-autocast-channels_last": of(RESNET, BF16, channels_last=True),
    "resnet-float16": of(RESNET, F16),
    "gpt": of(GPT),
    "gpt-autocast": of(GPT, BF16),
    "gpt-flash": of(GPT, BF16, attention(SDPBackend.FLASH_ATTENTION)),
    "gpt-efficient": of(GPT, BF16, attention(SDPBackend.EFFICIENT_ATTENTION)),
    "gpt-cudnn": of(SIXTEENTHS, BF16, attention(SDPBackend.CUDNN_ATTENTION)),
    "gpt-math": of(GPT, BF16, attention(SDPBackend.MATH)),
    "gpt-bfloat16": Step(lambda: GPT.build().bfloat16(), lambda: GPT.arguments(0, "cuda")),
    "unet": of(UNET),
    "unet-float16": of(UNET, F16),
    "encoder": Step(Masked, lambda: (torch.zeros(2, 64, dtype=torch.long, device="cuda"),
                                     torch.zeros(2, 64, dtype=torch.bool, device="cuda"))),
    "encoder-autocast": Step(Masked, lambda: (torch.zeros(2, 64, dtype=torch.long, device="cuda"),
                                              torch.zeros(2, 64, dtype=torch.bool, device="cuda")), (BF16,)),
}  # fmt: skip


@dataclass
class Planned:
    """A step run by eager and by its plan of the smallest peak."""

    eager: Counter[str]
    planned: Counter[str]
    offsets: tuple[int, int]
    requested: int
    predicted: int


_DONE: dict[str, Planned] = {}


def run(name: str) -> Planned:
    """Everything that the tests ask of one step, once."""
    if name in _DONE:
        return _DONE[name]
    step = STEPS[name]
    module, arguments = step.build().cuda(), step.arguments()
    module = module.to(memory_format=torch.channels_last) if step.channels_last else module
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
    gc.collect()
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
