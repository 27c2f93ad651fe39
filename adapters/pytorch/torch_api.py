"""The one door to PyTorch's private names. Everything else of the adapter uses public API.

A torch version that lacks one of them fails here, at import, with one clear error.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from ogc_plan.planner.errors import AdapterError
from torch import fx

OLDEST = (2, 11)


class TorchVersionError(AdapterError):
    """The installed PyTorch lacks something the adapter needs."""


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


try:
    from torch._functorch._aot_autograd.descriptors import (
        BufferAOTInput,
        GradAOTOutput,
        InputMutationAOTOutput,
        ParamAOTInput,
        PlainAOTInput,
        PlainAOTOutput,
        TangentAOTInput,
    )
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
except ImportError as error:
    raise TorchVersionError(
        f"torch {torch.__version__} lacks {error.name or error}",
        remedy=f"install torch {'.'.join(map(str, OLDEST))} or newer",
    ) from error
if _release() < OLDEST:
    raise TorchVersionError(
        f"torch {torch.__version__} is too old", remedy=f"install torch {'.'.join(map(str, OLDEST))} or newer"
    )

__all__ = [
    "BufferAOTInput",
    "GradAOTOutput",
    "InputMutationAOTOutput",
    "ParamAOTInput",
    "PlainAOTInput",
    "PlainAOTOutput",
    "TangentAOTInput",
    "TorchVersionError",
    "direct",
    "joint_graph",
    "keeps_graph",
    "storage_key",
]


def joint_graph(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Graph:
    """The forward and backward of ``module`` as one aten graph, without decompositions.

    With them the last bit of gradients differs from eager training.
    """
    with contextlib.ExitStack() as stack:
        captured = aot_export_joint_with_descriptors(stack, module, args, kwargs)
        graph: fx.Graph = captured.graph_module.graph
        graph.owning_module = captured.graph_module
        return graph


def direct(target: Any) -> Any:
    """The operator behind an overload, called without its Python wrapper."""
    return getattr(target, "_op", target)


def keeps_graph() -> bool:
    """Whether the backward now running was asked to keep the graph (``retain_graph=True``)."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def storage_key(tensor: torch.Tensor) -> int:
    """What two tensors have in common exactly when they share memory, fake tensors included."""
    return int(tensor.untyped_storage()._cdata)
