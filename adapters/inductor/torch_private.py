"""All private names of PyTorch's compiler that a byte budget under torch.compile uses.

A torch version that lacks one of them fails here, at import, with one clear error.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

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
    "torch._guards.TracingContext.try_get",
    "torch._inductor.codegen.common.Kernel.remove_kernel_local_buffers",
    "torch._inductor.codegen.cpp.CppScheduling.codegen_node",
    "torch._inductor.codegen.cpp.CppKernelProxy.codegen_loops_impl",
    "torch._inductor.codegen.cpp.CppKernelProxy.codegen_nodes",
    "torch._inductor.codegen.cpp.CppKernelProxy.decide_parallel_depth",
    "torch._inductor.codegen.cpp.CppScheduling.kernel_proxy_cls",
    "torch._inductor.codegen.cpp.CppVecKernel",
    "torch._inductor.codegen.cpp.OuterLoopFusedKernel",
    "torch._inductor.codegen.cpp.OuterLoopFusedSchedulerNode",
    "torch._inductor.codegen.cpp.ParallelDepth",
    "torch._inductor.codegen.cpp.TilingSelect.select_tiling",
    "torch._inductor.codegen.cpp.parallel_num_threads",
    "torch._inductor.compile_fx.compile_fx_inner",
    "torch._inductor.config.custom_partitioner_fn",
    "torch._inductor.cpp_builder.get_cpp_compiler",
    "torch._inductor.custom_graph_pass.CustomPartitionerFn",
    "torch._inductor.exc.InvalidCxxCompiler",
    "torch._inductor.config._post_fusion_custom_pass",
    "torch._inductor.config.emulate_precision_casts",
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
    "V", "inductor_config", "pytree", "unset_fake_temporarily",
]  # fmt: skip
"""What is passed on as it is."""


class Partitioner(CustomPartitionerFn):  # type: ignore[misc]
    """Cuts joint graphs, and keeps what it finds. Inductor copies its configuration; this stays the one that it was."""

    def uuid(self) -> None:
        """No key: a cached graph would hide what it saves from the graphs that come after it."""

    def __deepcopy__(self, _: object) -> Partitioner:
        return self


MAKES_SEVERAL = _ir.MultiOutputLayout
"""The layout of a call that returns several tensors."""

_CALLS = tuple(
    module.__file__
    for module in (
        torch._utils_internal, torch.nn.modules.module, torch.nn.parallel.distributed, torch.amp.autocast_mode,
        torch.utils._contextlib,
    )
)  # fmt: skip
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


def changed_after_forward() -> list[int]:
    """The inputs, by number, into which torch copies new values between the forward and the backward."""
    context = TracingContext.try_get()
    known = context.fw_metadata if context is not None else None
    return [] if known is None else list(known.mutated_inp_runtime_indices)


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


def smallest_cut(
    graph: fx.Graph, info: Any, again: Iterable[fx.Node], once: Iterable[fx.Node] = ()
) -> tuple[list[fx.Node], list[fx.Node]]:
    """The smallest saved set where, beside what fuses, only the calls ``again`` run again; and the calls that do not.

    Calls in ``once`` fuse and do not run again.
    """
    options = _partitioners.MinCutOptions(False, False, False, False, True)
    once = list(once)
    for node in once:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    try:
        saved, banned = _partitioners.solve_min_cut(graph, info, options, OrderedSet(again))
    finally:
        for node in once:
            del node.meta["recompute"]
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


@dataclass(frozen=True)
class Loops:
    """Loops that Inductor writes for parts of a kernel.

    Attributes:
        parts: the parts, each with its call.
        levels: for each loop, from the outermost: its size, its step, whether its elements are summed, and how many
            loops from it on threads share.
        bodies: whether a body computes with vectors, and how many elements of each vectorized loop are its own.
    """

    parts: tuple[Any, ...]
    levels: tuple[tuple[int, int, bool, int], ...]
    bodies: tuple[tuple[bool, tuple[int, ...]], ...]


def generated(
    graph_module: fx.GraphModule,
    *,
    is_backward: bool,
    outputs: int,
    read: Callable[[Any, list[Loops]], Any],
    wanted: Callable[[fx.Node], bool],
    static: Iterable[int] = (),
    donated: Iterable[int] = (),
) -> Any:
    """What ``read`` makes of the wrapper code that Inductor generates for a graph, before any kernel is compiled.

    ``read`` is given the wrapper and the loops of the kernels that compute a ``wanted`` call, inside Inductor's state.
    The order of kernels, the buffers that they take, and those that they write over are decided as in a compilation; no
    other kernel's code is generated. ``outputs`` of a forward are the caller's, ``static`` its inputs that stay. A
    backward may write over its ``donated`` inputs.
    """
    found: list[Any] = []
    passes = _wrapper.PythonWrapperCodegen.run_wrapper_ir_passes
    loops: list[Loops] = []

    def stop(wrapper: Any, is_inference: bool) -> None:
        passes(wrapper, is_inference)
        found.append(read(wrapper, loops))
        raise _Read

    def decided(scheduling: Any, node: Any) -> None:
        origins = (origin for part in node.get_nodes() for origin in part.node.get_origins())
        # Which buffers stay inside of loops that are fused at the outside depends on the code.
        if isinstance(node, _cpp.OuterLoopFusedSchedulerNode) or any(map(wanted, origins)):
            _codegen(scheduling, node)
        else:
            _decided(node)

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
        patched(_cpp.CppScheduling, "codegen_node", decided),
        _noted(loops),
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


def _decided(node: Any) -> None:
    """Decide what a kernel writes over and which buffers stay inside it, without writing its code."""
    kernel = _Kernel()
    with V.set_kernel_handler(kernel):
        for part in node.get_nodes():
            part.decide_inplace_update()
            part.mark_run()
            kernel.store_buffer_names |= {buffer.get_name() for buffer in part.get_outputs()}
        kernel.remove_kernel_local_buffers()
        V.graph.removed_buffers |= kernel.removed_buffers
        V.graph.inplaced_to_remove |= kernel.inplaced_to_remove


@contextlib.contextmanager
def _noted(found: list[Loops]) -> Iterator[None]:
    """Add the loops to ``found`` that Inductor writes meanwhile."""
    parts: dict[int, Any] = {}
    write_nodes, write_loops = _cpp.CppKernelProxy.codegen_nodes, _cpp.CppKernelProxy.codegen_loops_impl

    def of_nodes(proxy: Any, nodes: Any) -> None:
        write_nodes(proxy, nodes)
        parts[id(proxy)] = proxy, tuple(nodes)

    def of_loops(proxy: Any, nest: Any, *rest: Any) -> None:
        write_loops(proxy, nest, *rest)
        fused = isinstance(nest.kernel, _cpp.OuterLoopFusedKernel)
        for inner in nest.kernel.inner if fused else [nest]:
            levels = [*(nest.loops or ()), *((inner.loops or ()) if fused else ())]
            found.append(
                Loops(
                    parts[id(inner.kernel)][1],
                    tuple((int(it.size), int(it.steps), it.is_reduction, int(it.parallel)) for it in levels),
                    tuple(map(_body, inner.kernel.kernels)),
                )
            )

    with (
        patched(_cpp.CppKernelProxy, "codegen_nodes", of_nodes),
        patched(_cpp.CppKernelProxy, "codegen_loops_impl", of_loops),
    ):
        yield


def _body(kernel: Any) -> tuple[bool, tuple[int, ...]]:
    sizes = tuple(int(end - start) for start, end in kernel.active_ranges.values())
    return isinstance(kernel, _cpp.CppVecKernel), sizes


def thread_count() -> int:
    """How many threads share the loops of a kernel."""
    return int(_cpp.parallel_num_threads())


def computes(part: Any, call: fx.Node) -> bool:
    """Whether a part of a kernel has the function of a call in its own body."""
    return bool(part._body.op_counts[call.target.overloadpacket.__name__])


def steer_loops(
    backend: Any, vectorizes: Callable[[Any, bool], bool], shares_sums: Callable[[Any], bool | None]
) -> None:
    """Let a backend of the graph that is being lowered write other loops than it would.

    Args:
        backend: what writes the kernels of a device.
        vectorizes: whether the parts of a kernel are vectorized, given whether that would be along summands.
        shares_sums: whether threads share the loops over summands of a kernel's parts; None where Inductor decides.
    """

    class Steered(_cpp.CppKernelProxy):  # type: ignore[misc]
        def codegen_nodes(self, nodes: Any) -> None:
            select = _cpp.TilingSelect.select_tiling
            self.parts = nodes

            def selected(selector: Any, bodies: Any, sizes: Any, *rest: Any) -> Any:
                factors, axes, *others = select(selector, bodies, sizes, *rest)
                outside = len(max(sizes, key=lambda size: len(size[1]))[0])
                # Of two axes, sums run along the one that has no lanes.
                if axes and not vectorizes(nodes, (axes[0] if axes[-1] >= outside else axes[-1]) >= outside):
                    factors, axes = [], []
                return factors, axes, *others

            with patched(_cpp.TilingSelect, "select_tiling", selected):
                super().codegen_nodes(nodes)

        def decide_parallel_depth(self, most: Any, threads: int) -> Any:
            shared, start = shares_sums(self.parts), self.reduction_depth
            if shared is None or start >= len(self.call_ranges) or shared == (most.start_depth >= start):
                return super().decide_parallel_depth(most, threads)
            depth = min(most.parallel_depth, len(self.call_ranges) - start if shared else start)
            most = _cpp.ParallelDepth(parallel_depth=depth, start_depth=start if shared else 0)
            return super().decide_parallel_depth(most, threads)

    if hasattr(backend, "kernel_proxy_cls"):
        backend.kernel_proxy_cls = Steered


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
