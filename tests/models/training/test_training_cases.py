"""The training cases, the methods they are compared with, and the equality of outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from models.alternatives.methods import Method, compile_budget, per_block, plain, selective
from models.fidelity.executor import fresh
from models.meters.step_meters import by_storages
from models.networks.gpt2 import CausalSelfAttention, GPT2Config
from models.training.cases import CASES, Case, Supervised, gpt_case, resnet_case, unet_case
from models.training.executor_benchmark import methods, segments
from models.training.outcome import Equality, Forward, compare, train

SMALL = {
    "resnet50": resnet_case(2, 64, (1, 1, 1, 1)),
    "gpt": gpt_case(2, GPT2Config(vocabulary=64, context=32, layers=2, heads=2, width=32, dropout=0.1)),
    "unet": unet_case(1, 64, (4, 8, 16)),
}


def step_of(forward: Forward, arguments: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    def step() -> Tensor:
        loss = forward(*arguments)
        loss.backward()
        return loss

    return step


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors here are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The cases


def on_meta(name: str) -> Supervised:
    with torch.device("meta"):
        return CASES[name].build()


def modules_of(name: str, kind: type[nn.Module]) -> list[nn.Module]:
    return [module for module in on_meta(name).modules() if isinstance(module, kind)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_floating_inputs_require_a_gradient(case: Case) -> None:
    assert all(tensor.requires_grad == tensor.is_floating_point() for tensor in case.arguments(0))


def test_the_gpt_drops_out_on_embeddings_attention_and_every_residual_branch_of_twelve_layers() -> None:
    places = [module.p for module in modules_of("gpt", nn.Dropout)]
    places += [module.dropout for module in modules_of("gpt", CausalSelfAttention)]
    assert (len(places), min(places)) == (1 + 12 + 12, 0.1)


def test_the_resnet_is_the_published_one_with_relus_in_place() -> None:
    count = sum(parameter.numel() for parameter in on_meta("resnet50").parameters())
    assert (count, {module.inplace for module in modules_of("resnet50", nn.ReLU)}) == (25_557_032, {True})


def test_the_unet_has_group_norms_and_no_batch_norm() -> None:
    assert (len(modules_of("unet", nn.GroupNorm)), len(modules_of("unet", nn.BatchNorm2d))) == (18, 0)


@pytest.mark.parametrize("name", ["resnet50", "gpt"])
def test_a_chain_gives_the_loss_of_its_module(name: str) -> None:
    case = SMALL[name]
    module = fresh(case, "cpu").eval()
    inputs, targets = case.inputs(0)
    assert case.sequential is not None
    assert torch.equal(module.loss(case.sequential(module)(inputs), targets), module(inputs, targets))


# What they are compared with


def trained_by(method: Method, case: Case) -> Equality:
    """One step by a method against one eager step."""
    reference, module = fresh(case, "cpu"), fresh(case, "cpu")
    expected, _ = train(case, reference, reference, 1)
    found, _ = train(case, module, method(module), 1)
    return compare(found, expected)


GPT = SMALL["gpt"]


@pytest.mark.parametrize(
    "method",
    [per_block(GPT.blocks), selective(GPT.blocks), segments(GPT, 2)],
    ids=["per block", "selective", "segments"],
)
def test_checkpointing_with_dropout_changes_nothing_but_memory(method: Method) -> None:
    assert trained_by(method, GPT).unequal == ()


def test_checkpointing_updates_batch_norm_statistics_twice() -> None:
    assert trained_by(per_block(SMALL["resnet50"].blocks), SMALL["resnet50"]).unequal == ("buffers",)


def test_a_compile_budget_without_dropout_changes_nothing_but_memory() -> None:
    assert trained_by(compile_budget(0.3, "aot_eager"), SMALL["unet"]).unequal == ()


@pytest.mark.parametrize("method", [per_block, selective], ids=["per block", "selective"])
def test_checkpointing_blocks_lowers_the_activation_peak(method: Callable[..., Method]) -> None:
    case, peaks = GPT, []
    for apply in (method(case.blocks), plain):
        module = fresh(case, "cpu")
        arguments = case.arguments(0)
        peaks.append(by_storages(step_of(apply(module), arguments), module, arguments).activation_nbytes)
    assert peaks[0] < peaks[1]


def test_a_network_that_is_no_chain_is_not_cut_into_segments() -> None:
    found = methods(SMALL["unet"])
    assert not [name for name in found if "sequential" in name]


# Equality


@pytest.mark.parametrize(("found", "equal"), [(float("nan"), True), (-0.0, False), (1e-30, False)])
def test_equality_is_of_bits(found: float, equal: bool) -> None:
    module = fresh(SMALL["gpt"], "cpu")
    outcome, _ = train(SMALL["gpt"], module, module, 1)
    expected = replace(outcome, loss={"0": torch.tensor(0.0 if found == found else found)})
    assert compare(replace(outcome, loss={"0": torch.tensor(found)}), expected).loss == equal


def test_a_gradient_that_is_missing_is_unequal() -> None:
    module = fresh(SMALL["gpt"], "cpu")
    outcome, _ = train(SMALL["gpt"], module, module, 1)
    found = dict(outcome.gradients)
    found.popitem()
    assert compare(replace(outcome, gradients=found), outcome).unequal == ("gradients",)
