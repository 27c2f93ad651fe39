"""A planned step as eager PyTorch runs it: what each op saves for its backward, and the module it belongs to.

The graph of a plan is that of a traced step. Eager PyTorch differs: its ops have memory of their own (eager_storage.py;
a module told to work in place holds less), dropout on a CPU keeps a mask of the input's dtype in place of one byte per
element, and its checkpoint recomputes ops that a plan runs only once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...planner.autodiff.derive import CPU_GENERATOR_STATE_NBYTES
from ...planner.graph import Storage
from ...planner.plan_file.record import Plan
from ...planner.problem import Scope
from ...planner.training_graph import OpCost, TrainingGraph, TrainingOp
from .eager_storage import out_of_place

SAVES_NOTHING = frozenset({
    "add", "alias", "as_strided", "cat", "clone", "constant_pad_nd", "contiguous", "copy", "cumsum", "detach",
    "diagonal", "expand", "flip", "lift_fresh", "mean", "movedim", "narrow", "neg", "permute",
    "pixel_shuffle", "pixel_unshuffle", "repeat", "reshape", "roll", "rsub", "select", "slice", "split",
    "split_with_sizes", "squeeze", "stack", "sub", "sum", "t", "transpose", "tril", "triu", "unbind", "unfold",
    "unsafe_split", "unsqueeze", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d", "view",
    "_reshape_alias", "_to_copy", "_unsafe_view",
    "Add", "Cast", "CastLike", "Concat", "Expand", "Flatten", "Identity", "Neg", "Pad", "ReduceMean", "ReduceSum",
    "Reshape", "Slice", "Split", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Ops, by aten and ONNX name, for whose backward autograd saves no tensor at all, not even a parameter."""


@dataclass(frozen=True, slots=True)
class EagerStep:
    """A step for torch's checkpoint.

    Attributes:
        paths: the module path of each op.
        saves: for each op whether autograd saves any tensor for its backward.
        state_nbytes: the generator state that every checkpointed call keeps (0 if it is not in device memory).
    """

    graph: TrainingGraph
    costs: tuple[OpCost, ...]
    scope: Scope
    paths: tuple[str, ...]
    saves: tuple[bool, ...]
    state_nbytes: int


def eager_step(plan: Plan) -> EagerStep:
    """The step of a plan as eager PyTorch runs it."""
    source = plan.model.annotations
    on_cpu = source is not None and source.device.startswith("cpu")
    graph = out_of_place(plan.graph.without_ends())
    paths = module_paths(plan)
    counters = frozenset(_counters(graph.ops, paths))
    storages = _with_float_masks(graph) if on_cpu else graph.storages
    ops = tuple(replace(op, once=False) if index in counters else op for index, op in enumerate(graph.ops))
    return EagerStep(
        replace(graph, storages=storages, ops=ops),
        plan.costs,
        Scope(plan.budget.scope),
        paths,
        tuple(_saves(op) for op in graph.ops),
        CPU_GENERATOR_STATE_NBYTES if on_cpu else 0,
    )


def module_paths(plan: Plan) -> tuple[str, ...]:
    """The module path of each op. An op that makes nothing (a view with a backward) belongs to the op before it."""
    of_storage = dict(plan.modules)
    paths: list[str] = []
    for op in plan.graph.ops:
        before = paths[-1] if paths else ""
        paths.append(of_storage.get(plan.graph.storages[op.writes[0]].name, "") if op.writes else before)
    return tuple(paths)


def _saves(op: TrainingOp) -> bool:
    """Whether autograd saves anything for the backward of an op, even a parameter; true if unknown."""
    return op.backward is not None and bool(op.backward.reads or op.op_type not in SAVES_NOTHING)


def _with_float_masks(graph: TrainingGraph) -> tuple[Storage, ...]:
    storages = list(graph.storages)
    for op in graph.ops:
        if op.op_type == "native_dropout" and len(op.writes) == 2:
            made, mask = op.writes
            storages[mask] = replace(storages[mask], nbytes=max(storages[made].nbytes, storages[mask].nbytes))
    return tuple(storages)


def _counters(ops: tuple[TrainingOp, ...], paths: tuple[str, ...]) -> Iterable[int]:
    """The ops that count the batches of a batch norm: recomputing them changes only the count."""
    norms = {path for op, path in zip(ops, paths, strict=True) if "batch_norm" in op.op_type}
    for index, (op, path) in enumerate(zip(ops, paths, strict=True)):
        if op.once and op.op_type in ("add", "add_") and op.backward is None and path in norms:
            yield index


def batch_norms(step: EagerStep, again: Iterable[int]) -> dict[str, int]:
    """Module path of each recomputed batch norm -> how often it runs in a step."""
    kinds = ("batch_norm", "BatchNormalization")
    runs = Counter(step.paths[i] for i in again if any(kind in step.graph.ops[i].op_type for kind in kinds))
    return {path: count + 1 for path, count in runs.items()}
