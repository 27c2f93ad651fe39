"""What an op holds between its kernels, by a meter of storages, against the planner's figures: never more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ogc_plan.planner.autodiff.rule_table import call_of, saved_for_backward, shares_gradient
from ogc_plan.planner.autodiff.rules.temporaries import temporaries_nbytes

from models.meters.storage_meter import StorageMeter
from tests.files.op_cases import Case, graph_of, leaves_of, outputs_of
from tests.planner.autodiff.test_saved_tensors import AT_LEAST, VARIANTS

ROUGH = {"Einsum", "ScatterElements", "ScatterND"}
"""What these hold depends on more than their shapes and attributes; they are charged with the worst seen."""

TOLERANCE_NBYTES = 12
"""Scalars and the like; the cases are small, and a temporary of their size has more."""


def measured(case: Case, needs: frozenset[int]) -> tuple[int, int]:
    """Peaks of forward and backward above what is there before, without what is saved."""
    leaves, saved = leaves_of(case, needs), list[torch.Tensor]()
    stationary: list[Any] = [leaf for leaf in leaves if leaf is not None]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with StorageMeter(stationary) as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        outputs = outputs_of(case.call(*leaves))
    differentiable = [output for output in outputs if output.requires_grad]
    arriving = [torch.ones_like(output) for output in differentiable]
    wanted = [leaves[i] for i in sorted(needs)]
    with StorageMeter([*stationary, *arriving, *outputs, *saved]) as backward:
        given = torch.autograd.grad(differentiable, wanted, arriving, allow_unused=True)
    del given
    return forward.peak().nbytes, backward.peak().nbytes


def charged(case: Case, needs: frozenset[int]) -> tuple[int, int]:
    """The same from the rules: outputs, hidden buffers and given gradients, and the temporaries."""
    graph = graph_of(case)
    op = graph.ops[0]
    forward, backward = temporaries_nbytes(call_of(op, graph, needs))
    made = sum(graph.tensors[output].nbytes for output in op.outputs)
    given = sum(graph.tensors[op.inputs[i] or 0].nbytes for i in needs if not shares_gradient(op, graph, i))
    return made + sum(saved_for_backward(op, graph, needs).hidden_nbytes) + forward, given + backward


@pytest.mark.parametrize(("case", "needs"), [*VARIANTS, *AT_LEAST])
def test_no_op_allocates_more_temporaries_than_are_charged(case: Case, needs: frozenset[int]) -> None:
    seen, told = measured(case, needs), charged(case, needs)
    beyond = [max(0, a - b) for a, b in zip(seen, told, strict=True)]
    assert max(beyond) <= TOLERANCE_NBYTES, f"measured {seen}, charged {told}"


@pytest.mark.parametrize(("case", "needs"), VARIANTS)
def test_the_backward_of_an_op_is_not_charged_with_much_more_than_it_allocates(
    case: Case, needs: frozenset[int]
) -> None:
    graph = graph_of(case)
    size = max(graph.tensors[graph.ops[0].inputs[0] or 0].nbytes, graph.tensors[graph.ops[0].outputs[0]].nbytes)
    seen, told = measured(case, needs)[1], charged(case, needs)[1]
    assert case.op_type in ROUGH or told <= seen + 2 * size
