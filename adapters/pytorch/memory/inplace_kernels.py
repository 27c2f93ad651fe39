"""Calls that may write their result over one of their arguments, and the call that does so with the same bits.

All kernels are elementwise, and in place the same ones run in the same order. Overloads that torch generates around
the call out of place, which copy the result, are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .allocations import elements

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class InPlaceKernel:
    """``call`` writes over one of the ``arguments``, passed as ``keyword``, or over the first one without a keyword.

    ``allowed`` says for which nodes.
    """

    call: Callable[..., Any]
    arguments: tuple[int, ...] = (0,)
    keyword: str = ""
    allowed: Callable[[fx.Node], bool] = lambda node: True


@dataclass(frozen=True, slots=True)
class InPlace:
    """How one node runs in place: the kernel, and the index of the argument that it writes over."""

    kernel: InPlaceKernel
    argument: int

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of ``kernel.call`` from those of the node."""
        return (args, {**kwargs, self.kernel.keyword: args[self.argument]}) if self.kernel.keyword else (args, kwargs)


def dropout_(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """``native_dropout`` as the CPU composes it, written over ``x``."""
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1.0 - p)
    return x.mul_(mask).mul_(1.0 / (1.0 - p)), mask


def dropout_backward_(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """``native_dropout_backward``, which multiplies by mask x scale, written over ``gradient``."""
    return gradient.mul_(mask).mul_(scale)


def _composed(node: fx.Node) -> bool:
    """Whether a dropout is composed of calls (CUDA has a kernel) that round as the calls in place do."""
    tensor = next(iter(elements(node).values()))
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)


def _contiguous(node: fx.Node) -> bool:
    """Whether the arguments are contiguous, as the results of ``masked_fill`` and ``native_dropout`` are."""
    return all(tensor.is_contiguous() for argument in node.all_input_nodes for tensor in elements(argument).values())


def _drops(node: fx.Node) -> bool:
    return (
        _composed(node)
        and _contiguous(node)
        and len(node.args) == 3
        and node.args[2] in (None, True)
        and 0 < float(node.args[1]) < 1
    )


def _out(packet: Any, overload: str = "default", *arguments: int, out: str = "out") -> tuple[Any, InPlaceKernel]:
    written = {"default": "out", "Tensor": "out"}.get(overload, f"{overload}_out") if out == "out" else out
    return getattr(packet, overload), InPlaceKernel(getattr(packet, written), arguments or (0,), out)


def _self(packet: Any, in_place: Any, overload: str = "default") -> tuple[Any, InPlaceKernel]:
    return getattr(packet, overload), InPlaceKernel(getattr(in_place, overload))


KERNELS: dict[Any, InPlaceKernel] = dict([
    _out(aten.add, "Tensor", 0, 1),
    _out(aten.sub, "Tensor", 0, 1),
    _out(aten.mul, "Tensor", 0, 1),
    _out(aten.div, "Tensor", 0, 1),
    _self(aten.add, aten.add_, "Scalar"),
    _self(aten.sub, aten.sub_, "Scalar"),
    _self(aten.mul, aten.mul_, "Scalar"),
    _self(aten.div, aten.div_, "Scalar"),
    (aten.masked_fill.Scalar, InPlaceKernel(aten.masked_fill_.Scalar, allowed=_contiguous)),
    _self(aten.relu, aten.relu_),
    _self(aten.mish, aten.mish_),
    *(
        _out(packet)
        for packet in (
            aten.abs, aten.clamp, aten.clamp_min, aten.cos, aten.elu, aten.erf, aten.exp, aten.expm1, aten.gelu,
            aten.hardsigmoid, aten.hardswish, aten.hardtanh, aten.leaky_relu, aten.log, aten.log1p, aten.neg,
            aten.reciprocal, aten.rsqrt, aten.sigmoid, aten.silu, aten.sin, aten.softplus, aten.sqrt, aten.tanh,
            aten.threshold,
        )
    ),
    _out(aten.pow, "Tensor_Scalar"),
    *(
        _out(packet, out="grad_input")
        for packet in (
            aten.elu_backward, aten.gelu_backward, aten.hardsigmoid_backward, aten.hardtanh_backward,
            aten.leaky_relu_backward, aten.sigmoid_backward, aten.silu_backward, aten.softplus_backward,
            aten.tanh_backward, aten.threshold_backward,
        )
    ),
    (aten.native_dropout.default, InPlaceKernel(dropout_, allowed=_drops)),
    (aten.native_dropout_backward.default, InPlaceKernel(dropout_backward_, allowed=_composed)),
])  # fmt: skip
"""By functional overload."""
