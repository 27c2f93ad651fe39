"""The registry: every graph of the plan benchmark that is generated, with its batch and where it comes from."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

from models.descriptions import DENSENET, RESNET, VGG_DEPTHS
from models.graphs import diffusion_unet as diffusion
from models.graphs.densenet import densenet
from models.graphs.gpt import Layer, gpt, scaled, uniform
from models.graphs.inception import inception_v3
from models.graphs.layered_dag import layered_dag
from models.graphs.nasnet import CIFAR, LARGE, MOBILE, nasnet_a
from models.graphs.resnet import cifar_resnet, preactivation_resnet, resnet
from models.graphs.searched_cells import amoebanet_d, darts_cifar
from models.graphs.unet import unet
from models.graphs.vgg import vgg


@dataclass(frozen=True, slots=True)
class Family:
    """One generated graph: ``build`` makes it at a batch, ``origin`` says in a line what it is."""

    name: str
    build: Callable[..., onnx.ModelProto]
    batch: int
    origin: str

    def __call__(self, batch: int | None = None) -> onnx.ModelProto:
        """The model at a batch, at its own by default."""
        return self.build(batch=self.batch if batch is None else batch)


def _gpt(name: str, width: int, heads: int, count: int, batch: int, context: int, origin: str) -> Family:
    return Family(name, partial(gpt, width, context, uniform(width, heads, count)), batch, origin)


def _large(name: str, layers: tuple[Layer, ...], origin: str) -> Family:
    return Family(name, partial(gpt, 768, 512, layers), 8, origin)


REPEATED = 370
DAG_SIZES = (100, 250, 500, 1000)
DAG_SEEDS = (0, 1, 2)

_ALL = (
    Family("resnet50", partial(resnet, RESNET[50]), 64, "ResNet-50 (He et al. 2016a), 224 px"),
    Family("resnet101", partial(resnet, RESNET[101]), 64, "ResNet-101 (He et al. 2016a), 224 px"),
    Family("resnet152", partial(resnet, RESNET[152]), 32, "ResNet-152 (He et al. 2016a), 224 px"),
    Family("resnet200", partial(preactivation_resnet, (3, 24, 36, 3)), 32, "ResNet-200 (He et al. 2016b), 224 px"),
    Family("resnet1001", partial(cifar_resnet, 1001), 64, "ResNet-1001 for CIFAR-10 (He et al. 2016b), 32 px"),
    Family("densenet121", partial(densenet, DENSENET[121]), 64, "DenseNet-121 (Huang et al. 2017), 224 px"),
    Family("densenet169", partial(densenet, DENSENET[169]), 64, "DenseNet-169 (Huang et al. 2017), 224 px"),
    Family("densenet201", partial(densenet, DENSENET[201]), 32, "DenseNet-201 (Huang et al. 2017), 224 px"),
    Family("inception_v3", inception_v3, 32, "Inception-v3 (Szegedy et al. 2016), auxiliary classifier, 299 px"),
    Family("nasnet_mobile", partial(nasnet_a, 4, 1056, MOBILE), 64, "NASNet-A 4 @ 1056 (Zoph et al. 2018)"),
    Family("nasnet_large", partial(nasnet_a, 6, 4032, LARGE), 8, "NASNet-A 6 @ 4032 (Zoph et al. 2018)"),
    Family("nasnet_cifar", partial(nasnet_a, 6, 768, CIFAR), 64, "NASNet-A 6 @ 768 (Zoph et al. 2018)"),
    Family("amoebanet_d", partial(amoebanet_d, 18, 208), 32, "AmoebaNet-D (18, 208) (Huang et al. 2019), 224 px"),
    Family("darts_cifar", partial(darts_cifar, 20, 36), 96, "DARTS for CIFAR-10 (Liu et al. 2019), 20 cells, 32 px"),
    Family("vgg16", partial(vgg, VGG_DEPTHS[16]), 64, "VGG-16 (Simonyan and Zisserman 2015), 224 px"),
    Family("vgg19", partial(vgg, VGG_DEPTHS[19]), 64, "VGG-19 (Simonyan and Zisserman 2015), 224 px"),
    _gpt("gpt12", 768, 12, 12, 8, 1024, "GPT-2, 12 layers (Radford et al. 2019), context 1024"),
    _gpt("gpt24", 1024, 16, 24, 4, 1024, "GPT-2, 24 layers (Radford et al. 2019), context 1024"),
    _gpt("gpt48", 1600, 25, 48, 2, 1024, "GPT-2, 48 layers (Radford et al. 2019), context 1024"),
    _gpt("gpt96", 12288, 96, 96, 1, 2048, "GPT-3, 96 layers (Brown et al. 2020), context 2048"),
    _large("transformer_repeated", uniform(768, 12, REPEATED), f"GPT-2 blocks, {REPEATED} equal layers, context 512"),
    _large(
        "transformer_varied",
        scaled(768, REPEATED, heads=(4, 20), hidden=(512, 4608)),
        f"GPT-2 blocks, {REPEATED} layers of which no two are equal (OpenELM's scaling), context 512",
    ),
    Family("unet", unet, 4, "U-Net (Ronneberger et al. 2015), tiles of 572 px"),
    Family("ddpm_cifar", partial(diffusion.diffusion_unet, diffusion.CIFAR), 128, "DDPM, 32 px (Ho et al. 2020)"),
    Family("ddpm_lsun", partial(diffusion.diffusion_unet, diffusion.LSUN), 8, "DDPM, 256 px (Ho et al. 2020)"),
    *(
        Family(f"dag{nodes}_{seed}", partial(layered_dag, nodes, seed), 32, f"random layered graph, seed {seed}")
        for nodes in DAG_SIZES
        for seed in DAG_SEEDS
    ),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
"""Every generated graph by name."""


def write(name: str, path: str | Path, batch: int | None = None) -> None:
    """Write one graph to an ONNX file. Raises KeyError for a name that is not in `FAMILIES`."""
    Path(path).write_bytes(FAMILIES[name](batch).SerializeToString())


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what the command line asks for, or list the graphs."""
    parser = argparse.ArgumentParser(prog="python -m models.graphs", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*FAMILIES], metavar="NAME", help="a graph of the list")
    parser.add_argument("-o", "--output", type=Path, help="file to write")
    parser.add_argument("--batch", type=int, help="batch size (default: the graph's own)")
    parser.add_argument("--list", action="store_true", help="list the graphs")
    options = parser.parse_args(arguments)
    if options.list:
        for family in FAMILIES.values():
            print(f"{family.name:21} batch {family.batch:3}  {family.origin}")
        return 0
    if options.name is None or options.output is None:
        parser.error("give a NAME and -o FILE, or --list")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write(options.name, options.output, options.batch)
    print(f"{options.output}: {FAMILIES[options.name].origin}, {options.output.stat().st_size / 1000:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
