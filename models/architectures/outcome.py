"""One network trained within a budget and compared with eager training: bound, refused by name, or wrong.

    python -m models.architectures.outcome NAME

prints the outcome as JSON. Wrong is a loss, gradient, buffer, updated parameter or
generator state that differs in any bit from eager training, a peak above the budget or further than the
tolerance from the prediction, and any error that is not one of ogc-plan's own.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from ogc_plan.adapters.pytorch import plan_of, predict, within_budget
from ogc_plan.planner.errors import InfeasibleBudgetError, OgcPlanError
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from models.architectures.case import Case
from models.meters.step_meters import by_allocator, by_storages, clear_gradients, parameter_gradients
from models.training.outcome import LEARNING_RATE, Outcome, compare, equal_bits, outcome

BUDGET, EFFORT = "60%", "fast"  # the execution is what is looked at, not how good a plan is
STEPS = 2
TOLERANCE_NBYTES = 64 * 1024
LOSS_NBYTES = 8
"""A loss outside the network and its gradient, two numbers."""
Binder = Callable[[nn.Module, Mapping[str, Any], str], nn.Module]


class _Graded(torch.autograd.Function):
    """A loss without memory of its own, whose backward hands the output a dense gradient, held by nobody else."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        ctx.like = (output.shape, output.dtype, output.device)
        return output.sum().reshape(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        shape, dtype, device = ctx.like
        return torch.linspace(-1, 1, shape.numel(), dtype=dtype, device=device).view(shape)


def loss_of(output: Any) -> Tensor:
    """The loss that a network returns, else one of the first output that takes a gradient."""
    found = getattr(output, "loss", None)
    if isinstance(found, Tensor):
        return found
    first = next(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad)
    made: Tensor = first if first.dim() == 0 else _Graded.apply(first)
    return made


def trained(module: nn.Module, owner: nn.Module, inputs: Mapping[str, Any], steps: int = STEPS) -> Outcome:
    """What ``steps`` of AdamW on ``inputs`` leave behind, from a fixed seed; ``owner`` has the parameters."""
    optimizer = torch.optim.AdamW(owner.parameters(), lr=LEARNING_RATE)
    torch.manual_seed(0)
    random.seed(0)
    losses = []
    for step in range(steps):
        loss = loss_of(module(**inputs))
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
        if step < steps - 1:
            optimizer.zero_grad()
    return outcome(owner, (), losses)


def differing(found: Outcome, expected: Outcome) -> list[str]:
    """The tensors that are not equal in every bit, as ``gradients: model.embed.weight``; at most four per part."""
    named = []
    for part in compare(found, expected).unequal:
        mine, theirs = getattr(found, part), getattr(expected, part)
        names = [n for n in theirs.keys() | mine.keys() if not _same(mine.get(n), theirs.get(n))]
        named += [f"{part}: {name}" for name in sorted(names)[:4]]
        named += [f"{part}: {len(names) - 4} more"] if len(names) > 4 else []
    return named


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and equal_bits(one, other)


def bind_within(module: nn.Module, inputs: Mapping[str, Any], budget: str) -> nn.Module:
    """The module bound as a user binds it."""
    return within_budget(module, (), kwargs=inputs, budget=budget, effort=EFFORT)


def examine(case: Case, *, budget: str = BUDGET, binder: Binder = bind_within) -> dict[str, Any]:
    """The outcome of one network: ``result`` is bound, refused, wrong or unbuilt, with ``why``."""
    entry: dict[str, Any] = {"name": case.name, "kind": case.kind, "library": case.library, "result": "unbuilt"}
    started = time.perf_counter()
    try:
        module, inputs = case.make()
        eager = copy.deepcopy(module)
        expected = trained(eager, eager, inputs)
        entry |= {"network": type(module).__name__, "parameters": sum(p.numel() for p in module.parameters())}
    except Exception as error:  # the library cannot build or train it: nothing to compare with
        return entry | {"why": _line(error)}
    try:
        entry |= _examined(case, module, inputs, expected, budget, binder)
    except OgcPlanError as error:
        entry |= {"result": "refused", "why": _text(error.message), "remedy": error.remedy}
        if "\n" in str(error) or not error.remedy:
            entry |= {"result": "wrong", "why": f"refused without a remedy or in several lines: {_line(error)}"}
    except Exception as error:
        entry |= {"result": "wrong", "why": _line(error)}
    return entry | {"seconds": round(time.perf_counter() - started, 1)}


def _examined(
    case: Case, module: nn.Module, inputs: Mapping[str, Any], expected: Outcome, budget: str, binder: Binder
) -> dict[str, Any]:
    torch.manual_seed(0)  # a layer drop goes the way of the first step
    try:
        bound = binder(module, inputs, budget)
    except InfeasibleBudgetError as error:
        if error.smallest_known_nbytes is None:
            raise
        bound = binder(module, inputs, "min")
    made = plan_of(bound)
    wrong = differing(trained(bound, module, inputs), expected)
    if wrong:
        again, _ = case.make()
        if differing(trained(again, again, inputs), expected):
            wrong = ["eager training does not repeat itself"]
    limit = made.budget.nbytes
    entry: dict[str, Any] = {
        "budget": made.budget.text,
        "budget_nbytes": limit,
        "planned_nbytes": made.peak.activation_nbytes,
        "ops": len(made.graph.ops),
        "recomputed": len(made.recomputed),
        "peaks": {},
    }
    for meter, (predicted, measured) in _peaks(bound, module, inputs).items():
        entry["peaks"][meter] = {"predicted_nbytes": predicted, "measured_nbytes": measured}
        tolerance = max(TOLERANCE_NBYTES, predicted // 1000)
        if abs(measured - predicted) > tolerance:
            wrong.append(f"peak by {meter}: measured {measured:,} B, predicted {predicted:,} B")
        if measured > limit + LOSS_NBYTES + (tolerance if meter == "allocator" else 0):
            wrong.append(f"peak by {meter}: measured {measured:,} B, above the budget of {limit:,} B")
    return entry | ({"result": "wrong", "why": "; ".join(wrong)} if wrong else {"result": "bound"})


def _peaks(bound: nn.Module, module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Activation peaks of one more step, predicted and measured, by tensors and by the allocator's record.

    The loss may not reach some parameters (a pooler whose output is not used). A plan counts their gradients as
    parameter gradients. A meter finds no ``.grad`` for them and counts them as activations; they are subtracted here.
    """
    arguments = tuple(leaf for leaf in pytree.tree_leaves(dict(inputs)) if isinstance(leaf, Tensor))

    def step() -> Any:
        torch.manual_seed(0)
        output = bound(**inputs)
        loss_of(output).backward()
        return output

    clear_gradients(module, arguments)
    tensors = by_storages(step, module, arguments).activation_nbytes
    present = sum(gradient.untyped_storage().nbytes() for gradient in parameter_gradients(module))
    dropped = max(0, plan_of(bound).graph.parameter_gradient_nbytes - present)
    clear_gradients(module, arguments)
    allocated = by_allocator(step, module, arguments).activation_nbytes
    clear_gradients(module, arguments)
    return {
        "tensors": (predict(bound, kernel_workspace=False).activation_nbytes, tensors - dropped),
        "allocator": (predict(bound).activation_nbytes, allocated - dropped),
    }


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text(str(error))}"


def _text(message: str) -> str:
    return " ".join(message.split())[:300]


def main(name: str) -> None:
    """Print the outcome of a network."""
    from models.architectures.cases import STRESSED

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):  # libraries print, too
        found = examine(STRESSED[name])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
