"""The partitioner that torch.compile calls: it keeps the byte budget of a step that is one graph."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ...planner.errors import InfeasibleBudgetError, OgcPlanError
from ...planner.units import BudgetText, format_both
from ..pytorch.errors import UnsupportedModuleError, warn
from . import torch_private
from .joint_graph import JointGraph
from .search import Candidate, Search
from .workspace import WorkspaceMeter

_LOG = logging.getLogger("ogc_plan")

_CONTROL_FLOW = ("cond", "while_loop", "map_impl", "scan", "associative_scan")
"""Calls whose memory depends on what they are given: names of torch's higher-order operators."""

_UNFORESEEN = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError
)  # fmt: skip
"""What a graph that nobody has tried may raise while it is planned."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known of a graph that has been planned.

    ``peak_nbytes`` is the peak of its part of the step with parameters, buffers and arguments; ``kernels`` are those of
    forward and backward.
    """

    peak_nbytes: int
    limit_nbytes: int | None
    plain_nbytes: int
    recomputed_flops: int
    kernels: int
    saved: tuple[str, ...]
    source: str
    lowerings: int


class BudgetPartitioner(torch_private.Partitioner):
    """Cuts joint graphs so that their step keeps ``budget``.

    Attributes:
        planned: the plans made so far, in the order of their compilation.
    """

    def __init__(self, budget: str, asked: BudgetText, *, grad_accumulation: bool, module: nn.Module | None) -> None:
        """``module`` is the one that is compiled, if it is known: all of its tensors are counted then."""
        self.planned: list[Planned] = []
        self._module = module
        self._budget, self._asked = budget, asked
        self._accumulates = grad_accumulation
        self._workspace = WorkspaceMeter()
        self._frame: str | None = None

    def __reduce__(self) -> str:
        # Nor can it be the key of a cache, which a uuid of None allows.
        raise TypeError("a byte budget cannot be pickled; save the module's state_dict(), or the uncompiled module")

    def __call__(
        self,
        graph_module: fx.GraphModule,
        joint_inputs: Sequence[object],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **options: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward of a joint graph, as Inductor asks for them."""
        _refuse(graph_module)
        try:
            return self._cut(graph_module, joint_inputs, num_fwd_outputs, static_lifetime_input_indices or (), options)
        except _UNFORESEEN as error:
            if isinstance(error, OgcPlanError):
                raise
            first = next(iter(str(error).splitlines()), "")
            raise UnsupportedModuleError(
                f"the compiled step could not be planned: {type(error).__name__}{': ' if first else ''}{first}",
                remedy="use within_budget without compile, and please report the module",
            ) from error

    def _cut(
        self,
        graph_module: fx.GraphModule,
        joint_inputs: Sequence[object],
        num_fwd_outputs: int,
        static: Sequence[int],
        options: Mapping[str, Any],
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint = JointGraph(graph_module, num_fwd_outputs, static)
        if not joint.has_backward:
            return torch_private.default_partition(
                graph_module, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options
            )
        frame, caller = torch_private.frame_id(), torch_private.caller_inside()
        if self._frame not in (None, frame) or caller is not None:
            raise UnsupportedModuleError(
                f"the step has several graphs, and a budget is for one{f'; {caller} calls one' if caller else ''}",
                remedy="remove the graph breaks, which fullgraph=True names; make new options for each module",
            )
        self._frame = frame
        base = joint.input_nbytes + self._unread_nbytes(joint)
        search = Search(joint, self._workspace)
        plain = search.plain
        if self._accumulates:
            base += plain.peak.gradients_nbytes
        limit, without = self._limit(base, plain), base + plain.peak.nbytes
        chosen = search.within(limit - base) if limit is not None else search.smallest()
        if chosen is None:
            raise self._refusal(base + search.smallest().peak.nbytes, limit or 0)
        peak = base + chosen.peak.nbytes
        made = Planned(
            peak, limit, without, chosen.recomputed_flops, chosen.kernels,
            tuple(node.name for node in chosen.saved), chosen.source, search.lowerings,
        )  # fmt: skip
        self.planned.append(made)
        self._tell(made)
        return chosen.forward, chosen.backward

    def _unread_nbytes(self, joint: JointGraph) -> int:
        """Bytes of parameters and buffers that the step does not read."""
        if self._module is None:
            return 0
        own = [*self._module.parameters(), *self._module.buffers()]
        storages = {torch_private.storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in own}
        return max(0, int(sum(storages.values())) - joint.static_nbytes)

    def _limit(self, base: int, plain: Candidate) -> int | None:
        if self._asked.nbytes is not None:
            return self._asked.nbytes
        if self._asked.fraction is not None:
            return base + int(plain.peak.nbytes * self._asked.fraction)
        return None

    def _refusal(self, smallest: int, limit: int) -> InfeasibleBudgetError:
        return InfeasibleBudgetError(
            f"budget {self._budget} = {format_both(limit)} has no compiled step we could find (not proven infeasible): "
            f"smallest peak found {format_both(smallest)}",
            remedy=f"pass budget={smallest} or more, or a smaller batch",
            smallest_known_nbytes=smallest,
        )

    def _tell(self, made: Planned) -> None:
        _LOG.info(
            "torch.compile within %s: peak %s of %s without a budget, %.3g FLOP run again (%s, %d lowerings)",
            self._budget, format_both(made.peak_nbytes), format_both(made.plain_nbytes), made.recomputed_flops,
            made.source, made.lowerings,
        )  # fmt: skip
        if self._workspace.unmeasured:
            warn(f"the workspace of {', '.join(sorted(self._workspace.unmeasured))} is unknown and not in the budget")


def _refuse(graph_module: fx.GraphModule) -> None:
    """Raise UnsupportedModuleError for what no budget can be kept for, by name."""
    torch_private.check_compiler()
    config = torch_private.inductor_config
    if torch_private.splits_for_ddp():
        raise UnsupportedModuleError(
            "torch.compile cuts a DistributedDataParallel into buckets, which know nothing of each other's memory",
            remedy="set torch._dynamo.config.optimize_ddp = False",
        )
    for switch, name in (
        (config.triton.cudagraphs, "triton.cudagraphs"),
        (config.cpp_wrapper, "cpp_wrapper"),
        (config.max_autotune, "max_autotune"),
    ):
        if switch:
            raise UnsupportedModuleError(
                f"Inductor's option {name} is not supported with a byte budget", remedy=f"leave {name} out"
            )
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.SymInt):
            raise UnsupportedModuleError(
                f"the graph has a size {value} that is not fixed, and its bytes are unknown",
                remedy="pass dynamic=False to torch.compile, and mark no dimension dynamic",
            )
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            raise UnsupportedModuleError(
                f"{node.name} is a sparse tensor, whose bytes depend on values",
                remedy="make it dense, such as by sparse=False in an embedding",
            )
        if isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
            raise UnsupportedModuleError(
                f"the size of {node.name} depends on values, and its bytes are unknown",
                remedy="compute on all elements, such as by torch.where in place of a mask as an index",
            )
        if getattr(node.target, "namespace", "") == "higher_order" and node.target.name() in _CONTROL_FLOW:
            raise UnsupportedModuleError(
                f"the graph has {node.target.name()}, and which branch or how often it runs depends on values",
                remedy="compute each branch, and choose among the results by torch.where",
            )
        if getattr(node.target, "namespace", "") in ("_c10d_functional", "fsdp"):
            raise UnsupportedModuleError(
                f"the graph has the collective {node.target}, on which all ranks would have to agree",
                remedy="compile the module without its distributed wrapper",
            )
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise UnsupportedModuleError(
                f"{node.name} is on {value.device.type}, where no compiled step has been measured",
                remedy="use within_budget without compile",
            )
