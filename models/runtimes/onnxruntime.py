"""Plans as training steps in ONNX Runtime: planned and measured peaks, gradients against PyTorch, 20 steps of both.

    python -m models.runtimes.onnxruntime -o models/results/onnxruntime.json

Each step runs in a process of its own on one thread; measured is what its resident memory rises by. Planned are
activations and gradients of parameters. PyTorch trains by the same plan, measured by the allocator.
Needs torch, onnxruntime and, for the published files, the package index.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from ogc_plan.adapters.onnx_step.losses import Loss
from ogc_plan.adapters.onnx_step.step_file import KEY, step_file
from ogc_plan.adapters.onnxruntime import SGD, Trainer
from ogc_plan.adapters.pytorch import OnnxModule, bind, from_onnx
from ogc_plan.planner import load_model, plan
from ogc_plan.planner.errors import InfeasibleBudgetError
from torch import Tensor, nn

from models.reporting.command_line import add_names, add_output, command_parser
from models.reporting.option_values import folder
from models.reporting.process import answer_of
from models.reporting.result_record import processor, save
from models.reporting.result_table import compact, megabytes
from models.runtimes.networks import NETWORKS, batch_of, file_of, sizes_of
from models.runtimes.torch_step import in_torch

BUDGETS = ("100%", "60%", "40%")
TRAINED, STEPS, _RATE = "paddle-ocr-cls-v2", 20, 0.0005
COMPARED = "gpt"
OPTIONS: dict[str, dict[str, object]] = {
    "as the file says": {},
    "enable_mem_reuse": {"enable_mem_reuse": True},
    "enable_mem_reuse, enable_mem_pattern": {"enable_mem_reuse": True, "enable_mem_pattern": True},
    "default order": {"execution_order": "DEFAULT"},
    "ORT_ENABLE_BASIC": {"graph_optimization_level": "ORT_ENABLE_BASIC"},
    "the defaults": {
        "graph_optimization_level": "ORT_ENABLE_ALL",
        "execution_order": "DEFAULT",
        "enable_mem_reuse": True,
        "enable_mem_pattern": True,
    },
}
"""Options of a session that are compared on one network."""
_PROMPT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
"""With these glibc gives freed tensors back at once, so that resident memory is what is alive."""


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
        found = _in_process(place, files)
        with np.load(files / "gradients.npz") as arrays:
            mine = {key.removeprefix("g "): arrays[key].astype(np.float64) for key in arrays.files}
        still = made.graph.stationary
        cells[budget] = {
            "planned_nbytes": made.peak.total_nbytes - still.total_nbytes,
            "nodes_nbytes": step.peak.nbytes, **found,
            "difference": difference(mine, theirs), "from_double": difference(mine, exact),
            "torch": in_torch(made, from_onnx(path, **sizes), given),
        }  # fmt: skip
        print(f"{name} {budget}: {cells[budget]}", file=sys.stderr, flush=True)
    return {"cells": cells, "torch_from_double": difference(theirs, exact), "parameters": len(theirs)}


def with_options(content: bytes, changed: Mapping[str, object]) -> bytes:
    """A step whose file asks for other options of the session."""
    model = onnx.load_from_string(content)
    (entry,) = (entry for entry in model.metadata_props if entry.key == KEY)
    about = json.loads(entry.value)
    entry.value = json.dumps({**about, "session": {**about["session"], **changed}})
    made: bytes = model.SerializeToString()
    return made


def options_compared(files: Path) -> dict[str, Any]:
    """What one network's step within 60% holds under other options of the session."""
    path = file_of(COMPARED, files)
    model, module = load_model(path), from_onnx(path)
    made = plan(model, "60%")
    step = step_file(made, model, str(path), Loss("mse"))
    given = batch_of(module, model)
    with torch.no_grad():
        target = torch.zeros_like(module.eval()(*given))
    feed = {key: value.numpy() for key, value in zip(module.input_names, given, strict=True)}
    np.savez(files / "batch.npz", **feed, target=target.numpy())
    held: dict[str, Any] = {}
    for title, changed in OPTIONS.items():
        (files / "options.step.onnx").write_bytes(with_options(step.content, changed))
        held[title] = _in_process(files / "options.step.onnx", files)["held_nbytes"]
        print(f"{title}: {held[title]}", file=sys.stderr, flush=True)
    planned = made.peak.total_nbytes - made.graph.stationary.total_nbytes
    return {"network": COMPARED, "planned_nbytes": planned, "held_nbytes": held}


def _in_process(step: Path, files: Path) -> dict[str, Any]:
    found = answer_of(
        "models.runtimes.step_process", str(step), str(files / "batch.npz"), str(files / "gradients.npz"),
        environment={**os.environ, **_PROMPT},
    )  # fmt: skip
    if "error" in found:
        raise SystemExit(f"{step.name}: {found['error']}")
    return found


def both_train(files: Path) -> dict[str, Any]:
    """The losses of a published file in twenty steps of PyTorch and of ONNX Runtime, both by one plan within 60%."""
    path, sizes = file_of(TRAINED, files), sizes_of(TRAINED)
    model = load_model(path, **sizes)
    made = plan(model, "60%")
    place = files / "trained.step.onnx"
    place.write_bytes(step_file(made, model, str(path), Loss("mse")).content)
    trainer, module = Trainer(place, SGD(_RATE, 0.9), threads=1), from_onnx(path, **sizes)
    given = batch_of(module, model)
    bound = bind(module, made, tuple(given))
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
    return {"file": TRAINED, "losses": losses, "planned_nbytes": made.peak.activation_nbytes}


def _by_torch(cell: Mapping[str, Any]) -> list[str]:
    """What the same plan is in PyTorch."""
    if "refused" in cell:
        return ["above the budget", "-"]
    sizes = ", ".join(megabytes(cell[key]) for key in ("planned_nbytes", "held_nbytes"))
    return [sizes, "equal" if cell["equal"] else "differ"]


def report(record: Mapping[str, Any]) -> str:
    """The table of networks, and the sentence on the file that both trained."""
    rows = []
    for name, entry in record["networks"].items():
        whole = entry["cells"]["100%"]
        for budget, cell in entry["cells"].items():
            if "infeasible" in cell:
                rows.append([NETWORKS[name].title, budget, f"proven floor {cell['infeasible']:.0%}", *["-"] * 6])
                continue
            planned, held = (whole[key] - cell[key] for key in ("planned_nbytes", "held_nbytes"))
            rows.append([
                NETWORKS[name].title, budget.replace("100%", "store-all"), megabytes(cell["planned_nbytes"]),
                megabytes(cell["held_nbytes"]), "-" if cell is whole else f"{held / planned:.0%}",
                f"{cell['difference']:.0e}", f"{cell['from_double']:.0e}, {entry['torch_from_double']:.0e}",
                *_by_torch(cell["torch"]),
            ])  # fmt: skip
    header = [
        "network", "budget", "planned MB", "measured MB", "saved, of what is planned", "gradients from torch's",
        "from those in double: ONNX Runtime, torch", "activations in torch: planned, measured MB", "bits in torch",
    ]  # fmt: skip
    lines = [compact(header, rows)]
    if "options" in record:
        compared = record["options"]
        held = [[title, megabytes(nbytes)] for title, nbytes in compared["held_nbytes"].items()]
        title = f"{NETWORKS[compared['network']].title}, 60%: planned {megabytes(compared['planned_nbytes'])} MB"
        lines.append("\n" + compact([title, "measured MB"], held))
    if "trained" in record:
        trained = record["trained"]
        apart = max(abs(a - b) for a, b in trained["losses"])
        first, last = trained["losses"][0], trained["losses"][-1]
        lines.append(
            f"\n{trained['file']} (written by Paddle2ONNX), {len(trained['losses'])} steps by PyTorch and by ONNX "
            f"Runtime with one plan within 60%: the loss falls from {first[0]:.4f} to {last[0]:.4f}, and the two are "
            f"at most {apart:.0e} apart."
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
        record["options"] = options_compared(files)
        record["trained"] = both_train(files)
    print(report(record))
    if options.output is not None:
        made_by = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
        save(options.output, record, f"`{record['command']}` on {record['machine']}; {made_by}\n\n{report(record)}\n")


if __name__ == "__main__":
    main()
