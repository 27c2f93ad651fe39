"""Torch's own partitioner, with the operations noted that its backward runs again."""

from __future__ import annotations

from typing import Any

from ogc_plan.adapters.inductor import torch_private
from ogc_plan.adapters.inductor.work import node_flops
from torch import fx


class Observed(torch_private.CustomPartitionerFn):
    """Cuts as torch does; ``flops`` are those of the calls of the forward that the backward has again."""

    def __init__(self) -> None:
        self.flops = 0

    @staticmethod
    def options() -> dict[str, Any]:
        """Options of torch.compile under which torch's partitioner is observed, and nothing is taken from a cache."""
        return {"custom_partitioner_fn": Observed(), "fx_graph_cache": False, "fx_graph_remote_cache": False}

    @staticmethod
    def of(options: dict[str, Any]) -> int:
        """The operations of a compilation under these options; 0 if they are others."""
        found = options["custom_partitioner_fn"]
        return found.flops if isinstance(found, Observed) else 0

    def uuid(self) -> None:
        """No key."""

    def __deepcopy__(self, _: object) -> Observed:
        return self

    def __call__(self, *arguments: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward."""
        forward, backward = torch_private.default_partition(*arguments, **options)
        names = {node.name for node in forward.graph.nodes if node.op == "call_function"}
        self.flops = sum(node_flops(node) for node in backward.graph.nodes if node.name in names)
        return forward, backward
