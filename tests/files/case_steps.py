"""One training step of a `Case`: what torch reaches under the meter of storages, and what the planner promises.

Every operand x is the negation of a leaf, which saves nothing, so that its life counts too: it ends at the op unless
the backward reads it. Operands w and c are leaves themselves. Parameters' gradients count on neither side.

    python -m tests.files.case_steps    prints how many cases of unequal sizes are missed, and by how much
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.autodiff.rule_table import call_of
from ogc_plan.planner.autodiff.rules.cpu_kernels import temporaries_on_cpu
from ogc_plan.planner.autodiff.rules.temporaries import temporaries_nbytes
from ogc_plan.planner.graph import Graph, Op, Role, Storage, View
from ogc_plan.planner.model import store_all_timeline
from ogc_plan.planner.training_graph import OpCost

from models.meters.storage_meter import StorageMeter
from tests.files.op_cases import Case, address, graph_of, leaves_of, outputs_of

BELOW_NBYTES = 64
"""Scalars and the like, by which a plan may fall short of torch."""

ABOVE = 0.05
"""The share of the measured peak by which a plan may lie above it."""

FURTHER_ABOVE = {
    "Attention": "values narrower than keys are composed, and the scores are let go before the gradients are summed",
    "CausalConvWithState": "the convolution's result is let go in between",
    "CumProd": "charged with the worst seen",
    "Einsum": "operands laid out anew are let go before their gradients are made",
    "LpPool": "torch lets go of what each of its kernels saved as it goes along",
    "MatMul": "of operands repeated over the batch: the output's gradient is let go before the gradients are summed",
    "Max": "of three: the same",
    "Min": "of three: the same",
    "Pad": "circular: the same",
    "ReduceLogSum": "its gradient is an expanded view",
    "RotaryEmbedding": "charged with tables that get gradients, too",
    "SoftmaxCrossEntropyLoss": "labels and the output's gradient are let go between its two kernels",
}
"""Op types of which a plan may lie up to half above the measured peak, and why: never below."""

_PARTS = frozenset({"Expand", "Slice", "Split"})


class _Dense(torch.autograd.Function):
    """A loss that costs nothing: its backward hands each output a dense gradient of ones, held by nobody else.

    ``seeds`` refers to the storages of the last ones.
    """

    seeds: tuple[Any, ...] = ()

    @staticmethod
    def forward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        ctx.like = [(output.shape, output.dtype) for output in outputs]
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        made = [torch.ones(shape, dtype=dtype) for shape, dtype in ctx.like]
        _Dense.seeds = tuple(weakref.ref(seed.untyped_storage()) for seed in made)
        return tuple(made)


class _Negation(torch.autograd.Function):
    """-x with a dense gradient, which a leaf takes as it is."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return -value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.neg(gradient, out=torch.empty(gradient.shape, dtype=gradient.dtype))


def _negated(value: torch.Tensor) -> torch.Tensor:
    if value.dtype == torch.bool:
        return ~value
    made: torch.Tensor = _Negation.apply(value) if value.requires_grad else -value
    return made


def measured_peak(case: Case, needs: frozenset[int]) -> int:
    """The most bytes that torch holds in a step, without leaves and their gradients."""
    leaves = leaves_of(case, needs)
    given = [_negated(v).detach().requires_grad_(i in needs) if case.roles[i] == "x" and v is not None else v
             for i, v in enumerate(leaves)]  # fmt: skip
    stationary = [leaf for leaf in given if leaf is not None]
    with warnings.catch_warnings(), StorageMeter(stationary) as meter:
        warnings.simplefilter("ignore")
        outputs = outputs_of(
            case.call(*(_negated(v) if case.roles[i] == "x" and v is not None else v for i, v in enumerate(given)))
        )
        _Dense.apply(*(output for output in outputs if output.requires_grad)).backward()
    gradients = [leaf.grad for leaf in stationary if leaf.grad is not None]
    seeds = {storage._cdata for seed in _Dense.seeds if (storage := seed()) is not None}
    return meter.activation_peak([g for g in gradients if address(g) not in seeds]).nbytes - 4


def planned_peak(case: Case, needs: frozenset[int]) -> int:
    """The same as the planner simulates it, with temporaries between kernels on a CPU."""
    graph = step_graph(case, needs)
    frozen = [t.name for t in graph.tensors if t.role is Role.PARAMETER and t.is_float and t.name.startswith("frozen")]
    training = derive_backward(graph, frozen=tuple(frozen), on_cpu=True)
    costs = []
    for planned in training.ops:
        op, between = graph.ops[planned.forward], (0, 0)
        if op.op_type not in ("Neg", "Not") and op.view is View.NONE:
            given = frozenset(edge.position for edge in planned.backward.gives) if planned.backward else frozenset()
            call = call_of(op, graph, given)
            between = temporaries_on_cpu(call) or temporaries_nbytes(call)
        costs.append(OpCost(0, 0, *between))
    return store_all_timeline(training, tuple(costs))[1].peak_activation_nbytes


def step_graph(case: Case, needs: frozenset[int]) -> Graph:
    """The op of a case behind a negation of each operand x, which is a parameter if it needs a gradient."""
    alone = graph_of(case)
    tensors, storages, ops = list(alone.tensors), list(alone.storages), list[Op]()
    for position, index in enumerate(alone.ops[0].inputs):
        if index is None:
            continue
        role = Role.PARAMETER if position in needs else Role.BUFFER
        if case.roles[position] != "x":
            if case.roles[position] == "w" and position not in needs:
                tensors[index] = replace(tensors[index], name=f"frozen {position}")
            continue
        leaf, tensor = len(tensors), tensors[index]
        tensors.append(replace(tensor, name=f"leaf {position}", storage=len(storages), role=role))
        storages.append(Storage(f"leaf {position}", tensor.nbytes))
        ops.append(Op(f"negate {position}", "Not" if tensor.dtype == "bool" else "Neg", "", (leaf,), (index,)))
    op = alone.ops[0]
    if op.op_type in _PARTS:
        source = tensors[op.inputs[0] or 0].storage
        for output in op.outputs:
            tensors[output] = replace(tensors[output], storage=source)
        op = replace(op, view=View.PART)
    return replace(alone, tensors=tuple(tensors), storages=tuple(storages), ops=(*ops, op))


def is_missed(planned: int, measured: int, above: float = ABOVE) -> bool:
    """Whether a planned peak is outside of the tolerance."""
    return planned < measured - BELOW_NBYTES or planned > measured * (1 + above) + BELOW_NBYTES


def main(cases: Sequence[tuple[Case, frozenset[int]]]) -> None:
    """Print every miss, and how many there are by op type."""
    missed, seen = Counter[str](), Counter[str]()
    for case, needs in cases:
        planned, measured = planned_peak(case, needs), measured_peak(case, needs)
        seen[case.op_type] += 1
        if is_missed(planned, measured):
            missed[case.op_type] += 1
            print(f"{case} {sorted(needs)}: planned {planned:,}, measured {measured:,} ({planned / measured - 1:+.0%})")
    for op_type, count in sorted(seen.items()):
        print(f"{op_type}: {missed[op_type]} of {count} missed")
    print(f"{sum(missed.values())} of {sum(seen.values())} missed")


if __name__ == "__main__":
    from tests.files.unequal_cases import STEPS

    main(STEPS)
