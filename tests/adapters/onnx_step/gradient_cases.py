"""Node test cases of the onnx package as training steps in ONNX, and what PyTorch makes of the same files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from ogc_plan.adapters.onnx_step.losses import Loss
from ogc_plan.adapters.onnx_step.step_file import StepFile, step_file
from ogc_plan.adapters.pytorch import OnnxModule
from ogc_plan.planner import load_model, plan
from onnx import numpy_helper
from torch import Tensor

from tests.files.node_case_exclusions import EXCLUDED
from tests.files.node_cases import cases, op_type, prepare

_LEFT_OUT = re.compile(
    ".*(bfloat16|bf16|float16|fp16|BFLOAT16|FLOAT16|FLOAT8|FLOAT4).*"  # the CPU provider has few of their kernels
    "|.*_expanded.*|test_(training_)?dropout.*|test_batchnorm_.*training_mode|test_bernoulli.*"  # random, or on a batch
    "|test_layer_normalization_.*"  # with statistics as outputs, whose gradients torch does not pass on
    "|test_attention_causal_boolmask_nan_robustness"  # gradients that are zero but for rounding
    "|test_rotary_embedding.*"  # with tables that are trained
    "|test_attention_3d_transpose_verification"  # one weight of each row is one
)
_FIRST = {
    "Cast": "test_cast_DOUBLE_to_FLOAT",
    "Attention": "test_attention_3d",
    "Resize": "test_resize_upsample_sizes_nearest",
    "Einsum": "test_einsum_batch_matmul",
}
"""The case of an op whose first one is refused, or says little."""


@cache
def every_case() -> tuple[str, ...]:
    """The cases through which a gradient has to flow."""
    names = [name for name in cases() if name not in EXCLUDED and not _LEFT_OUT.fullmatch(name)]
    return tuple(name for name in names if prepare(name).differentiable)


def sampled(op_types: Iterable[str]) -> list[str]:
    """One case for each of these ops that has any."""
    wanted, first = set(op_types), dict(_FIRST)
    for name in every_case():
        if op_type(name) in wanted:
            first.setdefault(op_type(name), name)
    return sorted(first.values())


def write_case(name: str, folder: Path) -> Path:
    """A case as a file in which every trained input is multiplied by a weight of its own shape."""
    prepared = prepare(name)
    for entry in prepared.model.graph.initializer:
        shape = prepared.shapes.get(entry.name.removesuffix(".weight"))
        if entry.name.endswith(".weight") and shape is not None:
            ones = np.ones(shape, numpy_helper.to_array(entry).dtype)
            entry.CopyFrom(numpy_helper.from_array(ones, entry.name))
    path = folder / "model.onnx"
    onnx.save(prepared.model, path)
    return path


def written(path: Path, budget: str = "100%", loss: str = "gradients", **options: Any) -> StepFile:
    """The step of a file by a plan."""
    model = load_model(path, **options)
    return step_file(plan(model, budget, effort="fast"), model, str(path), Loss(loss))


def in_onnx_runtime(step: StepFile, feed: dict[str, Any]) -> dict[str, Any]:
    """All outputs of a step, run as its file says."""
    from ogc_plan.adapters.onnxruntime.session import CPU, open_session

    session = open_session(step.content, "step.onnx", CPU, step.about["session"], 1)
    return dict(zip([entry.name for entry in session.get_outputs()], session.run(None, feed), strict=True))


@dataclass(frozen=True)
class OfTorch:
    """Gradients that were handed in, and those of the parameters by their names in the file."""

    seeds: dict[str, Any]
    gradients: dict[str, Any]


def in_torch(module: OnnxModule, given: list[Tensor], step: StepFile) -> OfTorch:
    """The gradients of a module at random gradients of its outputs."""
    outputs = module(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    random, seeds = torch.Generator().manual_seed(1), dict[str, Tensor]()
    for out, name in zip(outputs, step.about["outputs"], strict=True):
        if f"gradient of {name}" in step.about["seeds"]:
            seeds[f"gradient of {name}"] = torch.randn(out.shape, generator=random).to(out.dtype)
    arriving = [out for out, name in zip(outputs, step.about["outputs"], strict=True) if f"gradient of {name}" in seeds]
    torch.autograd.backward(arriving, list(seeds.values()))
    gradients = {
        module.onnx_names[path]: parameter.grad.numpy()
        for path, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    return OfTorch({name: seed.numpy() for name, seed in seeds.items()}, gradients)


def apart(mine: dict[str, Any], theirs: dict[str, Any], step: StepFile) -> float:
    """The largest difference of a gradient as a share of the parameter's largest one."""
    found = [0.0]
    for name, expected in theirs.items():
        if name not in step.about["parameters"]:
            assert not np.any(expected), f"{name} has no gradient in the step"
            continue
        made = mine[step.about["parameters"][name]]
        assert np.array_equal(np.isnan(made), np.isnan(expected))
        difference = np.nanmax(np.abs(made.astype(np.float64) - expected), initial=0.0)
        found.append(float(difference / max(np.nanmax(np.abs(expected), initial=0.0), 1e-6)))
    return max(found)
