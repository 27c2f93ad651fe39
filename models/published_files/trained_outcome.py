"""What `from_onnx` makes of one published file: its inference against ONNX Runtime's, and one planned step.

    python -m models.published_files.trained_outcome FILE '{"dims": {"N": 8}, "inputs": {}}'

prints the outcome as JSON. An error that is not one of ogc-plan's own ends the process with its traceback.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.meters.step_meters import by_allocator, clear_gradients

if TYPE_CHECKING:
    import numpy as np
    from ogc_plan.adapters.pytorch import OnnxModule

BUDGET = "60%"


def outcome(path: str, dims: Mapping[str, int], inputs: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The outcome of one file; ``refused`` is the line of whatever part of it was refused, sizes are bytes."""
    from ogc_plan.adapters.pytorch import from_onnx
    from ogc_plan.planner.errors import OgcPlanError

    entry: dict[str, Any] = {"refused": ""}
    try:
        started = time.perf_counter()
        module = from_onnx(path, dims=dims or None, inputs=inputs or None)
        entry["build_s"] = round(time.perf_counter() - started, 2)
        arguments = module.example_arguments()
        entry["difference"] = _difference(module, path, arguments)
        entry |= _step(module, arguments)
    except OgcPlanError as error:
        entry["refused"] = str(error).replace(path, Path(path).name).splitlines()[0]
    return entry


def _session(path: str) -> Any:
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _difference(module: OnnxModule, path: str, arguments: tuple[Tensor, ...]) -> float:
    """The largest difference of an output to ONNX Runtime's, relative to its largest element or to 1."""
    import numpy

    given = {name: value.numpy() for name, value in zip(module.input_names, arguments, strict=True)}
    theirs: list[np.ndarray] = _session(path).run(None, given)
    mode = module.training
    with torch.no_grad():
        made = module.eval()(*arguments)
    module.train(mode)
    mine = made if isinstance(made, tuple) else (made,)
    return max(
        float(numpy.abs(a.numpy().astype(float) - b).max() / max(numpy.abs(b).max(), 1.0))
        for a, b in zip(mine, theirs, strict=True)
    )


def _outputs(made: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    """The outputs that a loss can be made of."""
    outputs = made if isinstance(made, tuple) else (made,)
    return [value for value in outputs if value.requires_grad]


def state(module: OnnxModule, arguments: tuple[Tensor, ...]) -> list[Tensor]:
    """The loss, the gradients and the buffers after one step of freshly seeded random numbers."""
    torch.manual_seed(0)
    loss = torch.stack([value.square().mean() for value in _outputs(module(*arguments))]).sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None), *module.buffers()]


def _step(module: OnnxModule, arguments: tuple[Tensor, ...]) -> dict[str, Any]:
    """A step of the bound module beside a plain one: gradients equal to the bit, and the peaks of both."""
    from ogc_plan.adapters.pytorch import plan_of, within_budget
    from ogc_plan.planner.errors import InfeasibleBudgetError

    plain = copy.deepcopy(module.train())
    started = time.perf_counter()
    budget = BUDGET
    try:
        bound = within_budget(module, arguments, budget=budget, device="a100")
    except InfeasibleBudgetError:
        budget = "min"
        bound = within_budget(module, arguments, budget=budget, device="a100")
    seconds = round(time.perf_counter() - started, 1)
    equal = all(torch.equal(a, b) for a, b in zip(state(bound, arguments), state(plain, arguments), strict=True))
    made = plan_of(bound)
    assert made is not None
    return {
        "budget": budget,
        "bind_s": seconds,
        "equal": equal,
        "plain_nbytes": peak_nbytes(plain, arguments),
        "bound_nbytes": peak_nbytes(bound, arguments),
        "planned_nbytes": made.peak.activation_nbytes,
        "overhead": made.time.overhead,
    }


def peak_nbytes(module: OnnxModule, arguments: tuple[Tensor, ...]) -> int:
    """The peak of the second step of a loss that takes no memory; the first traces the layout of its gradients."""

    def step() -> None:
        outputs = _outputs(module(*arguments))
        torch.autograd.backward([value.sum() for value in outputs])

    clear_gradients(module, arguments)
    step()
    clear_gradients(module, arguments)
    return by_allocator(step, module, arguments).activation_nbytes


def main(arguments: list[str]) -> int:
    """Print the outcome of one file as JSON."""
    wanted = json.loads(arguments[1])
    shapes = {name: tuple(shape) for name, shape in wanted["inputs"].items()}
    print(json.dumps(outcome(arguments[0], wanted["dims"], shapes)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
