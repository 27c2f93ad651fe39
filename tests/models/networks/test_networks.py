"""The networks of the zoo: published parameter counts and structure, and a step of each on a tiny input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models.descriptions import AMOEBANET_A, DARTS, NASNET_A
from models.networks.alexnet import AlexNet
from models.networks.bert import Bert, BertConfig
from models.networks.cifar_resnet import CifarResNet, CifarResNetV2
from models.networks.convnext import ConvNeXt, DropBranch
from models.networks.densenet import DenseNet
from models.networks.gpt2 import GPT2, GPT2Config
from models.networks.inception import Inception
from models.networks.llama import Llama, LlamaConfig, rotated, rotations
from models.networks.lstm import LSTMClassifier, LSTMConfig
from models.networks.resnet import BasicBlock, ResNet
from models.networks.searched_cells import SearchedNetwork
from models.networks.t5 import T5, T5Config, bucket
from models.networks.unet import UNet
from models.networks.vgg import VGG
from models.networks.vit import VisionTransformer
from models.zoo import ZOO

PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
    "densenet169": 14_149_480,
    "densenet201": 20_013_928,
    "inception_v3": 23_834_568,
    "nasnet_cifar10": 3_830_950,
    "amoebanet_cifar10": 3_145_078,
    "darts_cifar10": 3_349_342,
    "vgg16_two_classes": 138_357_544 - 998 * 4097,
    "resnet110_cifar10": 1_727_962,
    "resnet8_v2_cifar10": 78_106,
    "resnet14_v2_cifar10": 175_322,
    "resnet20_v2_cifar10": 272_538,
    "resnet26_v2_cifar10": 369_754,
    "convnext_t": 28_589_128,
    "vit_b16": 86_567_656,
    "vit_l16": 304_326_632,
    "gpt2": 124_439_808,
    "bert_base": 109_482_240,
    "llama_1b": 1_235_814_400,
    "t5_small": 60_506_624,
    "lstm_classifier": 4_928_514,
    "unet": 31_037_698,
}


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def of_zoo(name: str) -> nn.Module:
    return on_meta(lambda: ZOO[name].build(ZOO[name].extent))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# Parameters


@pytest.mark.parametrize("name", ZOO)
def test_a_network_has_the_published_number_of_parameters(name: str) -> None:
    assert count(of_zoo(name)) == PARAMETERS[name]


# Inputs


@pytest.mark.parametrize("name", ZOO)
def test_a_network_runs_at_its_small_input(name: str) -> None:
    """On the meta device: shapes fit together."""
    entry = ZOO[name]
    with torch.device("meta"):
        found = entry.build_small(entry.small_extent)(*entry.inputs(entry.small_batch, entry.small_extent))
    scores = found[0] if isinstance(found, tuple) else found
    assert scores.shape[0] == entry.small_batch


# Structure


IN_PLACE = ("alexnet", "vgg16", "resnet18", "resnet50", "densenet121", "inception_v3", "unet")


@pytest.mark.parametrize("name", [*IN_PLACE, "nasnet_cifar10", "amoebanet_cifar10", "darts_cifar10"])
def test_relus_act_in_place_where_the_published_code_has_them_so(name: str) -> None:
    found = {module.inplace for module in of_zoo(name).modules() if isinstance(module, nn.ReLU)}
    assert found == {name in IN_PLACE}


@pytest.mark.parametrize(("name", "rate", "places"), [("alexnet", 0.5, 2), ("vgg16", 0.5, 2), ("inception_v3", 0.5, 1)])
def test_classifiers_drop_out_as_published(name: str, rate: float, places: int) -> None:
    assert [m.p for m in of_zoo(name).modules() if isinstance(m, nn.Dropout)] == [rate] * places


def test_a_cifar_resnet_of_another_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="6 n \\+ 2 layers, n at least 1, and so not 54"):
        CifarResNetV2(54)


@pytest.mark.parametrize("name", ["bert_base", "t5_small"])
def test_a_language_model_drops_out_at_one_rate(name: str) -> None:
    modules = list(of_zoo(name).modules())
    rates = {m.p for m in modules if isinstance(m, nn.Dropout)} | {m.rate for m in modules if hasattr(m, "rate")}
    assert rates == {0.1}


def test_a_convnext_drops_its_branches_ever_more_often() -> None:
    rates = [module.rate for module in of_zoo("convnext_t").modules() if isinstance(module, DropBranch)]
    assert (len(rates), rates[0], round(rates[-1], 6), rates == sorted(rates)) == (18, 0.0, 0.1, True)


def test_a_dropped_branch_is_zero_for_some_images_and_scaled_up_for_the_rest() -> None:
    torch.manual_seed(0)
    assert set(DropBranch(0.5)(torch.ones(64, 1, 1, 1)).flatten().tolist()) == {0.0, 2.0}


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    turns = rotations(8, 4, 100.0, torch.device("cpu"))
    query, key = (rotated(torch.randn(4).expand(1, 1, 8, 4), *turns)[0, 0] for _ in range(2))
    assert torch.allclose(query[3] @ key[1], query[7] @ key[5], atol=1e-6)


def test_near_positions_of_a_t5_have_a_bucket_each_and_far_ones_share() -> None:
    offsets = torch.tensor([-200, -128, -9, -3, 0, 3, 9, 200])
    assert bucket(offsets, 32, 128, both_ways=True).tolist() == [15, 15, 8, 3, 0, 19, 24, 31]


def test_what_lies_ahead_of_a_causal_t5_position_is_one_bucket() -> None:
    assert bucket(torch.tensor([-200, -3, 0, 5]), 32, 128, both_ways=False).tolist() == [31, 3, 0, 0]


@pytest.mark.parametrize("name", ["llama", "gpt", "t5"])
def test_a_decoder_does_not_see_what_lies_ahead(name: str) -> None:
    module, (ids, *more) = small(name)
    module.eval()
    first = more[0] if more else ids
    second = first.clone()
    second[:, -1] = 1
    before, after = (module(*((ids, decoded) if more else (decoded,))) for decoded in (first, second))
    assert torch.equal(before[:, :-1], after[:, :-1])


# A step of each, on small forms where the published ones are large

IDS = (2, 8)
IMAGES = (2, 3, 32, 32)
TINY: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "alexnet": (lambda: AlexNet(10, hidden=8), ((2, 3, 64, 64),)),
    "vgg": (lambda: VGG((1, 1, 2, 2, 2), 10, widths=(4, 4, 8, 8, 8), hidden=8), (IMAGES,)),
    "basic resnet": (lambda: ResNet((1, 1, 1, 1), 10, BasicBlock), (IMAGES,)),
    "densenet": (lambda: DenseNet((2, 2), 4, 8, 10), (IMAGES,)),
    "nasnet": (lambda: SearchedNetwork(NASNET_A, cells=3, channels=4), (IMAGES,)),
    "amoebanet": (lambda: SearchedNetwork(AMOEBANET_A, cells=3, channels=4), (IMAGES,)),
    "darts": (lambda: SearchedNetwork(DARTS, cells=3, channels=4), (IMAGES,)),
    "cifar resnet": (lambda: CifarResNet(8), (IMAGES,)),
    "cifar resnet v2": (lambda: CifarResNetV2(8), (IMAGES,)),
    "convnext": (lambda: ConvNeXt((1, 1, 1, 1), (4, 8, 8, 8), 10), (IMAGES,)),
    "vit": (lambda: VisionTransformer(32, 16, 8, 2, 2, 16, 10), (IMAGES,)),
    "unet": (lambda: UNet(widths=(4, 8)), (IMAGES,)),
    "gpt": (lambda: GPT2(GPT2Config(32, 8, 2, 2, 8)), (IDS,)),
    "bert": (lambda: Bert(BertConfig(32, 8, 2, 2, 8, 16)), (IDS,)),
    "llama": (lambda: Llama(LlamaConfig(32, 2, 4, 2, 16, 32)), (IDS,)),
    "t5": (lambda: T5(T5Config(32, 2, 2, 4, 8, 16)), (IDS, (2, 6))),
    "lstm": (lambda: LSTMClassifier(LSTMConfig(32, 8, 8)), (IDS,)),
}


def small(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network and its inputs: images have four dimensions, ids two."""
    torch.manual_seed(0)
    build, shapes = TINY[name]
    return build(), tuple(torch.randn(shape) if len(shape) == 4 else torch.randint(8, shape) for shape in shapes)


@pytest.mark.parametrize("name", TINY)
def test_a_step_gives_every_parameter_a_gradient(name: str) -> None:
    module, inputs = small(name)
    found = module(*inputs)
    sum(part.sum() for part in (found if isinstance(found, tuple) else (found,))).backward()
    assert [name for name, parameter in module.named_parameters() if parameter.grad is None] == []


def test_an_inception_gives_every_parameter_a_gradient() -> None:
    """At its smallest extent; it has no smaller form."""
    module = Inception(10)
    module(torch.randn(2, 3, 75, 75)).sum().backward()
    assert [name for name, parameter in module.named_parameters() if parameter.grad is None] == []
