"""Tells writes into the memory of arguments that PyTorch does not see: through NumPy, or from another process.

A loader may fill one buffer again and again. Eager training has computed what it needs of a batch in the forward. A
plan may compute that again from the argument, and no version counter tells that its memory holds the next batch.
"""

from __future__ import annotations

import zlib

import torch
from torch import fx

from ..joint import is_backward
from ..step.step_graph import TracedStep


def read_by_recomputation_alone(step: TracedStep) -> tuple[int, ...]:
    """The primals of arguments on the host that no backward reads: only recomputations read them after the forward."""
    joint, of = step.joint, step.allocations.of
    nodes = [node for node in joint.graph.nodes if node.op == "call_function" and is_backward(node)]
    read = {allocation for node in nodes for allocation in step.allocations.reads(node)}
    return tuple(
        i
        for i, primal in enumerate(joint.primals)
        if primal.kind == "input" and _is_on_host(primal.node) and read.isdisjoint(of[primal.node])
    )


def _is_on_host(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def content(tensor: torch.Tensor) -> int | None:
    """A checksum of a tensor whose memory PyTorch did not allocate; None for any other."""
    if tensor.layout is not torch.strided or tensor.untyped_storage().resizable():
        return None
    whole = tensor.detach()
    whole = whole if whole.is_contiguous() else whole.contiguous()
    return zlib.crc32(whole.view(-1).view(torch.uint8).numpy()) if whole.numel() else 0
