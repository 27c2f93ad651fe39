"""All private names of PyTorch's compiler that a byte budget under torch.compile uses.

A torch version that lacks one of them fails here, at import, with one clear error.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import fx

from ...planner.errors import AdapterError
from ..pytorch.torch_private import patched, pytree, require

_PARTITIONERS = "torch._functorch.partitioners"
_WRAPPER = "torch._inductor.codegen.wrapper"
NEEDED = (
    *(
        f"{_PARTITIONERS}.{name}"
        for name in (
            "MinCutOptions", "_extract_fwd_bwd_modules", "_size_of", "choose_saved_values_set", "classify_nodes",
            "force_save_bw_mutation_src", "force_save_collectives", "force_save_effectful_ops", "fx_graph_cse",
            "min_cut_rematerialization_partition", "raise_getitems", "reordering_to_mimic_autograd_engine",
            "solve_min_cut", "thread_graphsafe_rng_from_hops",
        )
    ),
    *(
        f"{_WRAPPER}.{name}"
        for name in (
            "AllocateLine", "ExternKernelAllocLine", "ExternKernelOutLine", "FreeIfNotReusedLine", "FreeLine",
            "PythonWrapperCodegen.run_wrapper_ir_passes", "ReinterpretLine", "ReuseLine",
        )
    ),
    "torch._dynamo.config.optimize_ddp",
    "torch._dynamo.convert_frame",
    "torch._dynamo.eval_frame",
    "torch._functorch.config.cse",
    "torch._functorch.config.donated_buffer",
    "torch._guards.CompileContext.current_compile_id",
    "torch._guards.TracingContext.get",
    "torch._inductor.codegen.common.Kernel.remove_kernel_local_buffers",
    "torch._inductor.codegen.cpp.CppScheduling.codegen_node",
    "torch._inductor.codegen.cpp.OuterLoopFusedSchedulerNode",
    "torch._inductor.codegen.cpp.TilingSelect.select_tiling",
    "torch._inductor.codegen.common.DataTypePropagation.propagate_loopbody",
    "torch._inductor.compile_fx.compile_fx_inner",
    "torch._inductor.config.custom_partitioner_fn",
    "torch._inductor.cpp_builder.get_cpp_compiler",
    "torch._inductor.custom_graph_pass.CustomPartitionerFn",
    "torch._inductor.exc.InvalidCxxCompiler",
    "torch._inductor.config._post_fusion_custom_pass",
    "torch._inductor.config._pre_fusion_custom_pass",
    "torch._inductor.dependencies.WeakDep",
    "torch._inductor.ir.MultiOutput",
    "torch._inductor.ir.MultiOutputLayout",
    "torch._inductor.ir.NoneLayout",
    "torch._inductor.graph.GraphLowering.get_allocation_storage_size",
    "torch._inductor.memory.reorder_for_peak_memory",
    *(
        f"torch._inductor.scheduler.{name}"
        for name in (
            "BaseSchedulerNode.estimate_flops", "BaseSchedulerNode.get_read_write_buffers_sizes",
            "BaseScheduling.ready_to_flush", "Scheduler.can_fuse",
            "Scheduler.compute_ancestors", "Scheduler.fuse_nodes", "Scheduler.fuse_two_nodes",
            "SchedulerNode.decide_inplace_update", "SchedulerNode.mark_run",
        )
    ),
    "torch._inductor.sizevars.SizeVarAllocator.optimization_hint",
    *(f"torch._inductor.utils.{name}" for name in ("BoxedBool", "count_tangents", "get_dtype_size")),
    "torch._inductor.virtualized.V",
    "torch._subclasses.fake_tensor.unset_fake_temporarily",
    "torch.nn.parallel.DistributedDataParallel._get_active_ddp_module",
    "torch.utils._ordered_set.OrderedSet",
)  # fmt: skip
"""Every private name that this adapter uses, beside those of the PyTorch adapter."""

require(NEEDED)

from torch._dynamo import config as _dynamo_config  # noqa: E402
from torch._dynamo import convert_frame as _convert_frame  # noqa: E402
from torch._dynamo import eval_frame as _eval_frame  # noqa: E402
from torch._functorch import config as _functorch_config  # noqa: E402
from torch._functorch import partitioners as _partitioners  # noqa: E402
from torch._guards import CompileContext, TracingContext  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor import ir as _ir  # noqa: E402
from torch._inductor import memory as _memory  # noqa: E402
from torch._inductor.codegen import cpp as _cpp  # noqa: E402
from torch._inductor.codegen import wrapper as _wrapper  # noqa: E402
from torch._inductor.codegen.common import DataTypePropagation as _DataTypePropagation  # noqa: E402
from torch._inductor.codegen.common import Kernel as _Kernel  # noqa: E402
from torch._inductor.compile_fx import compile_fx_inner  # noqa: E402
from torch._inductor.cpp_builder import get_cpp_compiler  # noqa: E402
from torch._inductor.custom_graph_pass import CustomPartitionerFn  # noqa: E402
from torch._inductor.dependencies import WeakDep as _WeakDep  # noqa: E402
from torch._inductor.exc import InvalidCxxCompiler  # noqa: E402
from torch._inductor.utils import BoxedBool, count_tangents, get_dtype_size  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402
from torch._subclasses.fake_tensor import unset_fake_temporarily  # noqa: E402
from torch.utils._ordered_set import OrderedSet  # noqa: E402

__all__ = [
    "CustomPartitionerFn", "V", "inductor_config", "pytree", "unset_fake_temporarily",
]  # fmt: skip
"""What is passed on as it is."""

MAKES_SEVERAL = _ir.MultiOutputLayout
"""The layout of a call that returns several tensors."""

_CALLS = (torch._utils_internal.__file__, torch.nn.modules.module.__file__, torch.nn.parallel.distributed.__file__)
"""Between a compiled step and the function that is compiled for it, these call."""

size_of = _partitioners._size_of
reads_only = _partitioners.raise_getitems


def check_compiler() -> None:
    """Raise AdapterError where Inductor finds no C++ compiler."""
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise AdapterError(
            "torch.compile finds no C++ compiler for the CPU",
            remedy="install g++ or clang++, or name one in the environment variable CXX",
        ) from error


def frame_id() -> str:
    """The function that is being compiled; a recompilation of one has the same."""
    compiled = CompileContext.current_compile_id()
    return "" if compiled is None else str(getattr(compiled, "frame_id", compiled))


def caller_inside() -> str | None:
    """The function inside of the compiled step that calls what is being compiled; None if that is the whole step.

    A break in a loop makes torch compile the functions that the loop calls, each as if it were alone.
    """
    dynamo = os.path.dirname(_eval_frame.__file__)
    frame: FrameType | None = sys._getframe()
    met = False
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _eval_frame.__file__:
            return None
        met = met or file == _convert_frame.__file__
        if met and file not in _CALLS and os.path.dirname(file) != dynamo:
            return frame.f_code.co_name
        frame = frame.f_back
    return None


def splits_for_ddp() -> bool:
    """Whether torch cuts the graph of a DistributedDataParallel into buckets, each compiled for itself."""
    active = torch.nn.parallel.DistributedDataParallel._get_active_ddp_module()
    return active is not None and bool(_dynamo_config.optimize_ddp)


def prepared(graph_module: fx.GraphModule) -> None:
    """What torch's partitioner does before it chooses, in place."""
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    if _functorch_config.cse:
        graph_module.graph = _partitioners.fx_graph_cse(graph_module.graph)
    _partitioners.force_save_collectives(graph_module)
    _partitioners.force_save_effectful_ops(graph_module)
    _partitioners.force_save_bw_mutation_src(graph_module)


def classified(graph_module: fx.GraphModule, static: Iterable[int], outputs: int) -> Any:
    """Which nodes forward and backward need, with the distances that torch's cuts weigh by."""
    info = _partitioners.classify_nodes(graph_module, list(static), outputs)
    for node in reversed(graph_module.graph.nodes):
        if node.op == "output":
            node.dist_from_bw = int(1e9)
        elif not info.is_required_fw(node):
            node.dist_from_bw = 0
        else:
            node.dist_from_bw = min((user.dist_from_bw + 1 for user in node.users), default=int(1e9))
    return info


def default_partition(*args: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward as torch cuts them without a budget."""
    made: tuple[fx.GraphModule, fx.GraphModule]
    made = _partitioners.min_cut_rematerialization_partition(*args, **kwargs)
    return made


def chosen_by_torch(graph: fx.Graph, info: Any, share: float) -> list[fx.Node]:
    """What torch saves under ``activation_memory_budget=share``."""
    return list(_partitioners.choose_saved_values_set(graph, info, memory_budget=share))


def smallest_cut(graph: fx.Graph, info: Any, again: Iterable[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """The smallest saved set where, beside what fuses, only these calls run again; and the calls that do not."""
    options = _partitioners.MinCutOptions(False, False, False, False, True)
    saved, banned = _partitioners.solve_min_cut(graph, info, options, OrderedSet(again))
    return list(saved), list(banned)


def extracted(
    graph_module: fx.GraphModule, saved: list[fx.Node], info: Any, outputs: int
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward with exactly the ``saved`` values, in the order in which autograd would run them."""
    forward, backward = _partitioners._extract_fwd_bwd_modules(
        graph_module,
        saved,
        saved_sym_nodes=[],
        num_fwd_outputs=outputs,
        static_lifetime_input_nodes=info.static_lifetime_input_nodes,
    )
    backward = _partitioners.reordering_to_mimic_autograd_engine(backward)
    forward, backward = _partitioners.raise_getitems(forward), _partitioners.raise_getitems(backward)
    return (
        _partitioners.thread_graphsafe_rng_from_hops(forward, is_backward=False),
        _partitioners.thread_graphsafe_rng_from_hops(backward, is_backward=True),
    )


class _Read(BaseException):
    """The wrapper code has been read; nothing after it is needed."""


def generated(
    graph_module: fx.GraphModule,
    *,
    is_backward: bool,
    outputs: int,
    read: Callable[[Any], Any],
    static: Iterable[int] = (),
    donated: Iterable[int] = (),
) -> Any:
    """What ``read`` makes of the wrapper code that Inductor generates for a graph, before any kernel is written.

    ``read`` is given the wrapper, inside Inductor's state. The order of kernels, the buffers that they take, and those
    that they write over are decided as in a compilation; the kernels' code is not generated. ``outputs`` of a
    forward are the caller's, ``static`` its inputs that stay. A backward may write over its ``donated`` inputs.
    """
    found: list[Any] = []
    passes = _wrapper.PythonWrapperCodegen.run_wrapper_ir_passes

    def stop(wrapper: Any, is_inference: bool) -> None:
        passes(wrapper, is_inference)
        found.append(read(wrapper))
        raise _Read

    copied = copy.deepcopy(graph_module)
    output = next(node for node in copied.graph.nodes if node.op == "output")
    leaves = pytree.arg_tree_leaves(*output.args)
    shown = leaves if is_backward and inductor_config.bw_outputs_user_visible else leaves[:outputs]
    output.meta["user_visible_output_idxs"] = [i for i, leaf in enumerate(shown) if isinstance(leaf, fx.Node)]
    given = list(range(count_tangents(copied))) if is_backward else list(static)
    described = SimpleNamespace(bw_donated_idxs=list(donated) if _functorch_config.donated_buffer else [])
    inputs = [node.meta["val"] for node in copied.graph.nodes if node.op == "placeholder"]
    with (
        patched(_wrapper.PythonWrapperCodegen, "run_wrapper_ir_passes", stop),
        patched(_cpp.CppScheduling, "codegen_node", _decided),
        patched(TracingContext.get(), "fw_metadata", described),
        inductor_config.patch(force_disable_caches=True),
        contextlib.suppress(_Read),
    ):
        compile_fx_inner(
            copied, inputs, static_input_idxs=given, cudagraphs=BoxedBool(False), is_backward=is_backward, graph_id=0
        )
    if not found:
        raise AdapterError("Inductor generated no code that could be read", remedy="please report this with the model")
    return found[0]


_codegen = _cpp.CppScheduling.codegen_node


def _decided(scheduling: Any, node: Any) -> None:
    """Decide what a kernel writes over and which buffers stay inside it, without writing its code.

    Which buffers stay inside of loops that are fused at the outside depends on the code, so that is written.
    """
    if isinstance(node, _cpp.OuterLoopFusedSchedulerNode):
        _codegen(scheduling, node)
        return
    kernel = _Kernel()
    with V.set_kernel_handler(kernel):
        for part in node.get_nodes():
            part.decide_inplace_update()
            part.mark_run()
            kernel.store_buffer_names |= {buffer.get_name() for buffer in part.get_outputs()}
        kernel.remove_kernel_local_buffers()
        V.graph.removed_buffers |= kernel.removed_buffers
        V.graph.inplaced_to_remove |= kernel.inplaced_to_remove


def parts_and_axes(node: Any) -> list[tuple[Any, list[int]]]:
    """The parts of a kernel, and the axes along which Inductor vectorizes the loops that each is in."""
    outer = isinstance(node, _cpp.OuterLoopFusedSchedulerNode)
    found: list[tuple[Any, list[int]]] = []
    for loops in node.get_outer_nodes() if outer else [node]:
        parts = [part for part in loops.get_nodes() if hasattr(part, "_body")]
        for part in parts:
            _DataTypePropagation.propagate_loopbody(part._body)
        if parts:
            sizes = [part.group[1] for part in parts]
            axes = _cpp.TilingSelect().select_tiling([part._body for part in parts], sizes)[1]
            found += [(part, axes) for part in parts]
    return found


def ordered_by_inductor(nodes: list[Any]) -> list[Any]:
    """The order that Inductor gives kernels."""
    graph = V.graph
    names = OrderedSet(graph.graph_inputs.keys()), OrderedSet(graph.get_output_names())
    scheduler = graph.scheduler
    ordered: list[Any] = _memory.reorder_for_peak_memory(
        nodes, scheduler.name_to_buf, scheduler.name_to_fused_node, *names
    )
    return ordered


def has_memory(value: Any) -> bool:
    """Whether a buffer or an input of the graph that is being lowered is one tensor."""
    return bool(
        hasattr(value, "get_dtype")
        and value.has_tensor_output()
        and not isinstance(value.get_output_spec(), (_ir.MultiOutputLayout, _ir.NoneLayout))
    )


def is_part(buffer: Any) -> bool:
    """Whether a buffer is one of several results of a call."""
    return isinstance(buffer, _ir.MultiOutput)


def may_write_over(node: Any, name: str) -> bool:
    """Whether a kernel reads each place of a buffer only before it writes the same place of its result."""
    scheduler = V.graph.scheduler
    buffer = scheduler.name_to_donated_buffer.get(name) or scheduler.name_to_buf.get(name)
    users = [] if buffer is None else buffer.users
    return any(user.node is node and user.can_inplace for user in users)


def only_orders(dependence: Any) -> bool:
    """Whether a kernel runs after another without reading what that makes."""
    return isinstance(dependence, _WeakDep) and dependence.is_fake


def sort_reads(node: Any, key: Callable[[str], Any]) -> None:
    """Sort what a kernel reads by the names."""
    found = node.read_writes
    found.reads = OrderedSet(sorted(found.reads, key=lambda read: key(read.name)))


def nbytes_of(buffer: Any) -> int:
    """Bytes of a buffer of the graph that is being lowered."""
    elements = V.graph.sizevars.optimization_hint(V.graph.get_allocation_storage_size(buffer), fallback=0)
    return int(elements) * int(get_dtype_size(buffer.get_dtype()))


def storage_of(value: torch.Tensor) -> int:
    """What the storage of a tensor is known by."""
    return int(value.untyped_storage()._cdata)


def restrided(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A description of a tensor with other strides."""
    with value.fake_mode:
        return torch.empty_strided(tuple(value.shape), strides, dtype=value.dtype, device=value.device)


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Run calls on real tensors while a graph is compiled."""
    with unset_fake_temporarily(), torch.no_grad():
        yield
