"""The networks of the zoo: published parameter counts and structure, and a step of each on a tiny input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

from models.networks.cifar_resnet import cifar_resnet, cifar_resnet_v2
from models.networks.inception import inception_v3
from models.networks.searched_cells import AMOEBANET_A, DARTS, NASNET_A, Genotype, SearchedNetwork
from models.networks.vgg import vgg16
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
    "gpt2": 124_439_808,
    "vit_b16": 86_567_656,
    "unet": 31_037_698,
}
PUBLISHED_BY_OGC = {
    "alexnet": "1024x3x224x224",
    **{f"vgg{layers}": "64x3x224x224" for layers in (11, 13, 16, 19)},
    "resnet18": "256x3x224x224",
    "resnet34": "128x3x224x224",
    "resnet50": "64x3x224x224",
    "resnet101": "32x3x224x224",
    "resnet152": "16x3x224x224",
    "densenet121": "32x3x224x224",
    "densenet161": "16x3x224x224",
    "densenet169": "32x3x224x224",
    "densenet201": "16x3x224x224",
    "inception_v3": "32x3x300x300",
    "nasnet_cifar10": "64x3x32x32",
    "amoebanet_cifar10": "64x3x32x32",
    "darts_cifar10": "64x3x32x32",
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


def test_inception_has_27_million_parameters_with_its_auxiliary_classifier() -> None:
    assert count(on_meta(lambda: inception_v3(auxiliary=True))) == 27_161_264


def test_a_cifar_resnet_of_110_layers_pads_its_shortcuts() -> None:
    """Option A: no parameters beyond those of its 109 convolutions, their norms and the classifier."""
    assert count(on_meta(cifar_resnet)) == 1_727_962


@pytest.mark.parametrize(("layers", "parameters"), [(8, 78_106), (110, 1_730_778)])
def test_a_preactivated_cifar_resnet_projects_in_every_stage(layers: int, parameters: int) -> None:
    assert count(on_meta(lambda: cifar_resnet_v2(layers))) == parameters


def test_a_vgg_for_two_classes_differs_in_its_last_layer_only() -> None:
    assert count(on_meta(lambda: vgg16(2))) == 138_357_544 - 998 * 4097


# Inputs


@pytest.mark.parametrize("name", PUBLISHED_BY_OGC)
def test_a_network_of_ogc_comes_with_its_published_input(name: str) -> None:
    entry = ZOO[name]
    assert entry.describe(entry.batch, entry.extent) == PUBLISHED_BY_OGC[name]


@pytest.mark.parametrize("name", ZOO)
def test_a_network_runs_at_its_small_input(name: str) -> None:
    """On the meta device: shapes fit together."""
    entry = ZOO[name]
    with torch.device("meta"):
        found = entry.build(entry.small_extent)(*entry.inputs(entry.small_batch, entry.small_extent))
    assert found.shape[0] == entry.small_batch


# Structure


def kinds(name: str) -> Counter[type[nn.Module]]:
    return Counter(type(module) for module in of_zoo(name).modules())


@pytest.mark.parametrize(
    ("name", "convolutions"),
    {
        **{"vgg11": 8, "vgg13": 10, "vgg16": 13, "vgg19": 16, "resnet18": 20, "resnet34": 36, "resnet50": 53},
        **{"resnet101": 104, "resnet152": 155, "densenet121": 120, "densenet201": 200, "inception_v3": 94},
    }.items(),
)
def test_a_network_has_as_many_convolutions_as_published(name: str, convolutions: int) -> None:
    """Projections of residual networks count: 3 or 4 beyond those that their names count."""
    assert kinds(name)[nn.Conv2d] == convolutions


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet18", "resnet50", "densenet121", "inception_v3", "unet"])
def test_relus_act_in_place_where_the_published_code_has_them_so(name: str) -> None:
    assert {module.inplace for module in of_zoo(name).modules() if isinstance(module, nn.ReLU)} == {True}


@pytest.mark.parametrize("name", ["nasnet_cifar10", "amoebanet_cifar10", "darts_cifar10"])
def test_relus_of_searched_cells_do_not_act_in_place(name: str) -> None:
    assert {module.inplace for module in of_zoo(name).modules() if isinstance(module, nn.ReLU)} == {False}


@pytest.mark.parametrize(("name", "rate", "places"), [("alexnet", 0.5, 2), ("vgg16", 0.5, 2), ("inception_v3", 0.5, 1)])
def test_classifiers_drop_out_as_published(name: str, rate: float, places: int) -> None:
    assert [m.p for m in of_zoo(name).modules() if isinstance(m, nn.Dropout)] == [rate] * places


def test_a_cifar_resnet_of_another_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="6 n \\+ 2 layers, n at least 1, and so not 54"):
        cifar_resnet_v2(54)


# A step of each, on small forms where the published ones are large


@pytest.mark.parametrize("genotype", [NASNET_A, AMOEBANET_A, DARTS], ids=["nasnet", "amoebanet", "darts"])
def test_a_searched_network_gives_every_parameter_a_gradient(genotype: Genotype) -> None:
    torch.manual_seed(0)
    module = SearchedNetwork(genotype, cells=3, channels=4)
    module(torch.randn(2, 3, 16, 16)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
