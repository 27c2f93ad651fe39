"""Gathering and scattering."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .node import Node, Run, Table


def _gather(node: Node) -> Run:
    """A view for a constant scalar, an embedding for rows of a trained table, else torch's indexing."""
    axis, table = node.axis(0), node.operand(0)
    if node.is_known(1) and node.shape(1) == ():
        at = int(node.known(1))
        return lambda x, _: x.select(axis, at)
    if axis == 0 and table.is_leaf and not table.constant and node.rank == 2 and not node.is_known(1):
        return lambda x, indices: F.embedding(indices, x)
    before = (slice(None),) * axis

    def run(x: Tensor, indices: Tensor) -> Tensor:
        index: tuple[Any, ...] = (*before, indices.long())
        return x[index]

    return run


def _wrapped(indices: Tensor, size: int) -> Tensor:
    """Indices counted from the front; a negative one counts from the end."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


def _along(node: Node, position: int, axis: int) -> Any:
    """What makes indices non-negative: nothing, where they are known to be."""
    size = node.shape()[axis]
    value = node.operand(position)
    if value.known is not None and node.fixed(value) and not (value.known < 0).any():
        return lambda indices: indices.long()
    return lambda indices: _wrapped(indices, size)


def _gather_elements(node: Node) -> Run:
    axis = node.axis(0)
    index = _along(node, 1, axis)
    return lambda x, indices: x.gather(axis, index(indices))


def _gather_blocks(node: Node) -> Run:
    batch = int(node.attr("batch_dims", 0))
    lead = node.shape()[:batch]

    def run(x: Tensor, indices: Tensor) -> Tensor:
        rank = indices.dim() - 1
        rows = [
            torch.arange(size, device=x.device).reshape([-1 if k == at else 1 for k in range(rank)])
            for at, size in enumerate(lead)
        ]
        index: tuple[Tensor, ...] = (*rows, *indices.long().unbind(-1))
        return x[index]

    return run


def _scatter_elements(node: Node) -> Run:
    axis, how = node.axis(0), str(node.attr("reduction", "none"))
    index = _along(node, 1, axis)
    if how == "none":
        return lambda x, indices, updates: x.scatter(axis, index(indices), updates)
    if how == "add":
        return lambda x, indices, updates: x.scatter_add(axis, index(indices), updates)
    kind = {"mul": "prod", "max": "amax", "min": "amin"}[how]
    return lambda x, indices, updates: x.scatter_reduce(axis, index(indices), updates, kind)


def _scatter_blocks(node: Node) -> Run:
    how = str(node.attr("reduction", "none"))
    if how not in ("none", "add"):
        return _reduced_blocks(node, {"mul": "prod", "max": "amax", "min": "amin"}[how])
    adds = how == "add"
    return lambda x, indices, updates: x.index_put(tuple(indices.long().unbind(-1)), updates, accumulate=adds)


def _reduced_blocks(node: Node, kind: str) -> Run:
    """index_reduce over the flattened leading dimensions."""
    shape, depth = node.shape(), node.shape(1)[-1]
    steps = [prod(shape[at + 1 : depth]) for at in range(depth)]
    flat = (prod(shape[:depth]), *shape[depth:])

    def run(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        rows = sum(
            _wrapped(part, size) * step for part, size, step in zip(indices.unbind(-1), shape, steps, strict=False)
        )
        assert isinstance(rows, Tensor)
        return x.reshape(flat).index_reduce(0, rows.flatten(), updates.reshape(-1, *flat[1:]), kind).reshape(shape)

    return run


def _one_hot(node: Node) -> Run:
    depth, axis = int(node.number("depth", 1)), node.axis(-1, len(node.out))
    shape = [-1 if at == axis else 1 for at in range(len(node.out))]

    def run(indices: Tensor, _: Any, values: Tensor) -> Tensor:
        places = torch.arange(depth, device=indices.device).reshape(shape)
        hits = _wrapped(indices, depth).unsqueeze(axis) == places
        return torch.where(hits, values[1], values[0])

    return run


def _compress(node: Node) -> Run:
    wanted = [at for at, kept in enumerate(node.known(1).ravel().tolist()) if kept]
    if "axis" not in node.call.attributes:
        return lambda x, _: x.flatten()[torch.tensor(wanted, dtype=torch.int64, device=x.device)]
    axis = node.axis(0)
    return lambda x, _: x.index_select(axis, torch.tensor(wanted, dtype=torch.int64, device=x.device))


def _reverse_sequence(node: Node) -> Run:
    rows, time = int(node.attr("batch_axis", 1)), int(node.attr("time_axis", 0))

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        steps = torch.arange(x.shape[time], device=x.device).unsqueeze(1)
        lengths = lengths.long().unsqueeze(0)
        times = torch.where(steps < lengths, lengths - 1 - steps, steps)
        every = torch.arange(x.shape[rows], device=x.device).unsqueeze(0)
        return x[times, every] if rows == 1 else x[every.t(), times.t()]

    return run


def _unpool(node: Node) -> Run:
    """Values at the places that MaxPool returned, which count over batch and channels as well."""
    out = node.out
    if node.has(2):
        node.known(2)
    kernel, strides = node.attr("kernel_shape"), node.attr("strides", (1,) * (node.rank - 2))
    pads = node.attr("pads", (0,) * (2 * len(kernel)))
    count = len(kernel)
    inner = [
        (size - 1) * s + k - pads[at] - pads[count + at]
        for at, (size, s, k) in enumerate(zip(node.shape()[2:], strides, kernel, strict=True))
    ]
    own = (*node.shape()[:2], *inner)
    more = [size for old, new in zip(inner[::-1], out[:1:-1], strict=True) for size in (0, new - old)]

    def run(x: Tensor, places: Tensor, *_: Any) -> Tensor:
        made = x.new_zeros(prod(own)).index_put((places.flatten(),), x.flatten())
        return F.pad(made.reshape(own), more)

    return run


def _write_cache(node: Node) -> Run:
    """Updates written into a cache from an index of each row on."""
    axis, circular = int(node.attr("axis", -2)) % node.rank, node.attr("mode", "linear") == "circular"
    size, count = node.shape()[axis], node.shape(1)[axis]

    def run(cache: Tensor, update: Tensor, starts: Tensor | None = None) -> Tensor:
        rows = update.shape[0]
        first = torch.zeros(rows, dtype=torch.int64, device=update.device) if starts is None else starts.long()
        at = first[:, None] + torch.arange(count, device=update.device)
        shape = [rows if k == 0 else count if k == axis else 1 for k in range(cache.dim())]
        at = (at % size if circular else at).reshape(shape)
        return cache.scatter(axis, at.expand(update.shape), update)

    return run


def _grid_sample(node: Node) -> Run:
    names = {
        "bilinear": "bilinear",
        "linear": "bilinear",
        "nearest": "nearest",
        "bicubic": "bicubic",
        "cubic": "bicubic",
    }
    mode, corners = names[str(node.attr("mode", "linear"))], bool(node.attr("align_corners", 0))
    pads = str(node.attr("padding_mode", "zeros"))
    if node.rank not in (4, 5) or (node.rank == 5 and mode == "bicubic"):
        raise node.refused("torch samples images and volumes alone")
    return lambda x, grid: F.grid_sample(x, grid, mode, pads, corners)


def _affine_grid(node: Node) -> Run:
    size, corners = node.ints("size", 1), bool(node.attr("align_corners", 0))
    return lambda theta, *_: F.affine_grid(theta, list(size or ()), corners)


OPS: Table = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_blocks,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_blocks,
    "OneHot": _one_hot,
    "MaxUnpool": _unpool,
    "TensorScatter": _write_cache,
    "Compress": _compress,
    "ReverseSequence": _reverse_sequence,
    "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
}
FUSED: Table = {}
