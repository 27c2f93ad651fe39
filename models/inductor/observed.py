"""Torch's own partitioner, with the operations noted that its backward runs again."""

from __future__ import annotations

from typing import Any

from ogc_plan.adapters.inductor import torch_private
from ogc_plan.adapters.inductor.lowering import lower_step
from ogc_plan.adapters.inductor.work import node_flops
from torch import fx


class Observed(torch_private.Partitioner):
    """Cuts as torch does; ``flops`` are those of the calls of the forward that the backward has again.

    ``kernels`` are those of forward and backward.
    """

    def __init__(self) -> None:
        self.flops = self.kernels = 0

    @staticmethod
    def options() -> dict[str, Any]:
        """Options of torch.compile under which torch's partitioner is observed, and nothing is taken from a cache."""
        return {"custom_partitioner_fn": Observed(), "fx_graph_cache": False, "fx_graph_remote_cache": False}

    @staticmethod
    def of(options: dict[str, Any]) -> tuple[int, int]:
        """The operations that run again, and the kernels, of a compilation under these options."""
        found = options["custom_partitioner_fn"]
        assert isinstance(found, Observed)
        return found.flops, found.kernels

    def __call__(self, *arguments: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward."""
        forward, backward = torch_private.default_partition(*arguments, **options)
        names = {node.name for node in forward.graph.nodes if node.op == "call_function"}
        self.flops = sum(node_flops(node) for node in backward.graph.nodes if node.name in names)
        lowered = lower_step(
            forward, backward, options["num_fwd_outputs"], options.get("static_lifetime_input_indices") or ()
        )
        self.kernels = sum(len(code.kernels) for code in lowered)
        return forward, backward
