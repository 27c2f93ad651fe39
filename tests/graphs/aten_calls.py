"""Graphs for tests of single aten calls, traced with fake tensors as a joint graph is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx


def traced(function: Callable[..., Any], *inputs: Tensor) -> list[fx.Node]:
    """The calls that ``function`` makes on ``inputs``, in order, without those that take a tuple apart."""
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    return [node for node in graph.nodes if node.op == "call_function" and node.target is not operator.getitem]


def call(function: Callable[..., Any], *inputs: Tensor) -> fx.Node:
    """The last call that ``function`` makes on ``inputs``."""
    return traced(function, *inputs)[-1]
