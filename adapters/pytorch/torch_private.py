"""All private names of PyTorch that the adapter uses.

A torch version that lacks one of them fails here, at import, with one clear error. Only the metadata of graph nodes is
read elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import fx

from ...planner.errors import AdapterError, missing

OLDEST = (2, 11)
"""The first release that is supported."""

_DESCRIPTORS = "torch._functorch._aot_autograd.descriptors"
_FUNCTIONAL = "torch._subclasses.functional_tensor.Functional"
_HOOKS = ("forward_", "forward_pre_", "backward_", "backward_pre_")
_EXAMPLE = "torch.ops.aten.add.Tensor"
NEEDED = (
    *(f"{_DESCRIPTORS}.{kind}AOTInput" for kind in ("Buffer", "Param", "Plain", "Tangent")),
    *(f"{_DESCRIPTORS}.{kind}AOTOutput" for kind in ("Grad", "InputMutation", "Plain")),
    "torch._functorch._aot_autograd.collect_metadata_analysis.coerce_tangent_and_suggest_memory_format",
    "torch._functorch._aot_autograd.schemas.OutputType",
    "torch._functorch.aot_autograd.aot_export_joint_with_descriptors",
    "torch._C.DispatchKey.Autograd",
    "torch._C.DispatchKey.CompositeImplicitAutograd",
    "torch._C._AutoDispatchBelowAutograd",
    "torch._C._DisableAutocast",
    "torch._C._autograd._get_current_graph_task_keep_graph",
    "torch._C._functorch.peek_interpreter_stack",
    "torch._C._will_engine_execute_node",
    "torch._functorch.config.backward_pass_autocast",
    "torch._functorch.config.patch",
    "torch._ops.OpOverload",
    "torch._subclasses.fake_impls.op_implementations_dict",
    "torch._subclasses.fake_tensor.DataDependentOutputException",
    "torch._subclasses.fake_tensor.DynamicOutputShapeException",
    "torch._subclasses.fake_tensor.FakeTensorMode",
    *(f"{_FUNCTIONAL}Tensor.{method}" for method in ("commit_update", "is_base_tensor", "replace_", "sync")),
    f"{_FUNCTIONAL}TensorMode",
    "torch._from_functional_tensor",
    "torch.autograd.forward_ad._current_level",
    "torch.autograd.profiler._is_profiler_enabled",
    "torch.cuda._sleep",
    "torch.fx._lazy_graph_module._use_lazy_graph_module",
    *(f"torch.distributed._composable_state.{name}" for name in ("_get_module_state", "_insert_module_state")),
    "torch._C._VariableFunctions",
    "torch._C._nn",
    *(
        f"torch.nn.modules.module._global_{kind}_hooks"
        for kind in ("forward", "forward_pre", "backward", "backward_pre")
    ),
    "torch.utils.checkpoint.CheckpointFunction",
    "torch.utils.checkpoint._CachingTorchDispatchMode",
    "torch.utils.checkpoint._checkpoint_without_reentrant_generator",
    "torch.utils._pytree.SequenceKey",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch.utils._pytree.TreeSpec",
    "torch.utils._pytree.keystr",
    "torch.utils._pytree.register_pytree_node",
    "torch.utils._pytree.tree_flatten",
    "torch.utils._pytree.tree_flatten_with_path",
    "torch.utils._pytree.tree_leaves",
    "torch.utils._pytree.tree_map",
    "torch.utils._pytree.tree_unflatten",
    "torch.Tensor._version",
    "torch.UntypedStorage._cdata",
    *(f"{_EXAMPLE}.{attribute}" for attribute in ("_dispatch_cache", "_op", "_schema.arguments", "py_kernels")),
)
"""Every private name that the adapter uses."""


class TorchVersionError(AdapterError):
    """The installed PyTorch lacks something the adapter needs."""


def check() -> None:
    """Raise TorchVersionError for a release that is too old, or for the first private name that is missing."""
    if _release() < OLDEST:
        raise TorchVersionError(f"torch {torch.__version__} is too old", remedy=_REMEDY)
    require(NEEDED)
    joint = import_module("torch._functorch.aot_autograd").aot_export_joint_with_descriptors
    if list(inspect.signature(joint).parameters)[:4] != ["stack", "mod", "args", "kwargs"]:
        raise _lacking(f"{joint.__module__}.{joint.__name__}(stack, mod, args, kwargs)")


def require(names: Iterable[str]) -> None:
    """Raise TorchVersionError for the first of the private names that the installed PyTorch lacks."""
    for name in names:
        if not _exists(name):
            raise _lacking(name)


_REMEDY = f"install torch {'.'.join(map(str, OLDEST))} or newer; for one newer than this release, update ogc-plan"


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _lacking(name: str) -> TorchVersionError:
    return TorchVersionError(f"torch {torch.__version__} lacks {name}, which planned training needs", remedy=_REMEDY)


def _exists(name: str) -> bool:
    parts = name.split(".")
    found: Any = torch
    for position in range(1, len(parts)):
        if not hasattr(found, parts[position]):
            try:
                import_module(".".join(parts[: position + 1]))
            except ImportError as error:
                if (absent := missing(error)) is not None and not (error.name or "").startswith("torch."):
                    raise absent from error  # a package that torch itself needs
                return False
        if not hasattr(found, parts[position]):
            return False
        found = getattr(found, parts[position])
    return True


check()

from torch._C import _DisableAutocast as WithoutAutocast  # noqa: E402
from torch._C import _nn as nn_functions  # noqa: E402
from torch._C import _VariableFunctions as VariableFunctions  # noqa: E402
from torch._functorch import config as functorch_config  # noqa: E402
from torch._functorch._aot_autograd import collect_metadata_analysis as _metadata  # noqa: E402
from torch._functorch._aot_autograd.descriptors import (  # noqa: E402
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._functorch._aot_autograd.schemas import OutputType  # noqa: E402
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors  # noqa: E402
from torch._ops import OpOverload  # noqa: E402
from torch._subclasses.fake_impls import op_implementations_dict  # noqa: E402
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode  # noqa: E402
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode  # noqa: E402
from torch.distributed import _composable_state  # noqa: E402
from torch.fx._lazy_graph_module import _use_lazy_graph_module  # noqa: E402
from torch.nn.modules import module as _modules  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils import checkpoint as _checkpoint  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes  # noqa: E402
from torch.utils.weak import WeakTensorKeyDictionary  # noqa: E402

__all__ = [
    "BufferAOTInput", "DataDependentOutputException", "DynamicOutputShapeException",
    "FakeTensorMode", "FunctionalTensor", "FunctionalTensorMode",
    "GradAOTOutput", "InputMutationAOTOutput", "OpOverload", "ParamAOTInput", "PlainAOTInput", "PlainAOTOutput",
    "TangentAOTInput", "TorchDispatchMode", "VariableFunctions", "WithoutAutocast", "nn_functions", "pytree",
]  # fmt: skip
"""What is passed on as it is."""

FORWARD_HOOKS_OF_ALL_MODULES = (_modules._global_forward_pre_hooks, _modules._global_forward_hooks)
"""Where PyTorch keeps the forward hooks that it calls for every module, by the number of their handle."""
HOOKS_OF_ALL_MODULES = (
    *FORWARD_HOOKS_OF_ALL_MODULES, _modules._global_backward_pre_hooks, _modules._global_backward_hooks
)  # fmt: skip
_CPU = torch.device("cpu")
VALUES_NEEDED = (DataDependentOutputException, DynamicOutputShapeException)
"""What is raised where a trace cannot go on without the values of tensors."""


@dataclass(frozen=True, slots=True)
class TracedGraph:
    """A joint graph, and for each output whether it takes a gradient and shares memory."""

    graph: fx.Graph
    shares_memory: tuple[bool, ...]


def joint_graph(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracedGraph:
    """The forward and backward of ``module`` as one aten graph, traced under the modes that are active."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_use_lazy_graph_module(True))  # no code is made of the graph: nobody runs it
        stack.enter_context(_linalg_checks_as_calls())
        captured = aot_export_joint_with_descriptors(stack, module, args, kwargs)
        graph: fx.Graph = captured.graph_module.graph
        graph.owning_module = captured.graph_module
        try:
            infos = captured._aot_state.fw_metadata.output_info
        except AttributeError as error:
            raise _lacking(f"{type(captured).__name__}._aot_state.fw_metadata.output_info") from error
        alone = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
        shares = tuple(info.output_type not in alone and info.requires_grad for info in infos)
        return TracedGraph(graph, shares)


LINALG_CHECK = torch.ops.aten._linalg_check_errors.default
"""What ``torch.linalg`` raises its errors with."""


@contextlib.contextmanager
def _linalg_checks_as_calls() -> Iterator[None]:
    """Trace the checks of ``torch.linalg`` as calls that stay in the graph, without tokens for their order."""
    entry = torch._library.simple_registry.singleton.find("aten::_linalg_check_errors")
    holder = getattr(entry, "effect", None)  # torch 2.11 to 2.14 have it; without one the tokens are refused
    effects = torch.fx.node._side_effectful_functions
    if holder is None or LINALG_CHECK in effects:
        yield
        return
    known = holder.effect
    holder.register(None)
    effects.add(LINALG_CHECK)
    try:
        yield
    finally:
        effects.discard(LINALG_CHECK)
        holder.register(known)


_REWRITTEN = (
    *(f"upsample_{kind}" for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
    *(f"_upsample_{kind}2d_aa" for kind in ("bilinear", "bicubic", "lanczos")),
    *(f"{kind}{n}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
    "rnn_tanh", "rnn_relu", "lstm", "gru",
    "hardshrink", "softshrink", "multi_margin_loss", "multilabel_margin_loss_forward",
)  # fmt: skip
"""Operators for which tracing calls other kernels than eager training, through Python, so that bits differ."""


@contextlib.contextmanager
def without_python_kernels(*, eager_dropout: bool) -> Iterator[None]:
    """Trace operators as the kernels that eager training runs, not as tracing composes them in Python.

    With ``eager_dropout`` dropout too: the fused call of tracing rounds 16-bit gradients otherwise and saves less.
    """
    names = (*_REWRITTEN, "dropout") if eager_dropout else _REWRITTEN
    keys = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)
    packets = [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]
    overloads = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    taken = [(op, key, op.py_kernels.pop(key)) for op in overloads for key in keys if key in op.py_kernels]
    try:
        for op in overloads:
            op._dispatch_cache.clear()
        yield
    finally:
        for op, key, kernel in taken:
            op.py_kernels[key] = kernel
        for op in overloads:
            op._dispatch_cache.clear()


_CUDNN_NORM = torch.ops.aten.cudnn_batch_norm.default


@contextlib.contextmanager
def cudnn_batch_norms() -> Iterator[None]:
    """Trace a batch norm that eager training gives to cuDNN as one that cuDNN runs; torch traces the native kernel."""
    key, known = torch._C.DispatchKey.Autograd, _CUDNN_NORM.py_kernels
    before = {key: known[key]} if key in known else {}

    def cudnn_norm(
        x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
    ) -> Any:
        if training and mean is not None:  # the statistics move, which the schema of cudnn_batch_norm does not say
            return torch.ops.aten._batch_norm_with_update(x, weight, bias, mean, variance, momentum, eps)
        trace_as(None)
        try:
            return _CUDNN_NORM(x, weight, bias, mean, variance, training, momentum, eps)
        finally:
            trace_as(cudnn_norm)

    def trace_as(kernel: Callable[..., Any] | None) -> None:
        known.pop(key, None)
        known.update({} if kernel is None else {key: kernel})
        _CUDNN_NORM._dispatch_cache.clear()

    trace_as(cudnn_norm)
    try:
        yield
    finally:
        trace_as(None)
        known.update(before)


@contextlib.contextmanager
def composed_as_run() -> Iterator[None]:
    """Trace calls as eager training composes them of others.

    Torch 2.11 leaves out the assertions on classes that ``one_hot`` makes. It gives the CTC loss tensors of lengths,
    where eager training gives lists of numbers to all kernels but that of cuDNN. A list is made of the tensors that
    torch wraps, past the modes that know their values.
    """
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(FunctionalTensor, "tolist", _listed))
        for op, kernel in ((torch.ops.aten.one_hot.default, _one_hot), (_CTC_LOSS, _ctc_loss)):
            if key not in op.py_kernels:
                op.py_kernels[key] = kernel
                stack.callback(op._dispatch_cache.clear)
                stack.callback(op.py_kernels.pop, key)
                op._dispatch_cache.clear()
        yield


def _listed(tensor: torch.Tensor) -> Any:
    return tensor.item() if tensor.dim() == 0 else [_listed(inner) for inner in tensor.unbind()]


_CTC_LOSS = torch.ops.aten.ctc_loss.Tensor


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    if log_probs.device.type != "cpu" and targets.dtype is torch.int32:
        raise DynamicOutputShapeException(torch.ops.aten._ctc_loss.Tensor)  # cuDNN may run it
    given, wanted = _listed(input_lengths), _listed(target_lengths)
    losses: torch.Tensor = torch.ops.aten.ctc_loss.IntList(log_probs, targets, given, wanted, blank, 0, zero_infinity)
    if reduction == 1:  # torch would make a tensor of the numbers past the trace
        return (losses / torch.tensor(wanted, dtype=losses.dtype, device=losses.device).clamp_min(1)).mean()
    return losses.sum() if reduction else losses


def _one_hot(classes: torch.Tensor, count: int = -1) -> torch.Tensor:
    torch._assert_async((classes >= 0).all(), "one_hot: Class values must be non-negative.")
    if count == -1:
        count = int(classes.max()) + 1
    torch._assert_async((classes < count).all(), "one_hot: Class values must be smaller than num_classes.")
    return (classes.unsqueeze(-1) == torch.arange(count, device=classes.device)).to(torch.int64)


def backward_without_autocast() -> contextlib.AbstractContextManager[None]:
    """Trace backwards as they run after the caller has left autocast."""
    patched: contextlib.AbstractContextManager[None] = functorch_config.patch(backward_pass_autocast="off")
    return patched


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let an attribute have another value inside."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


_CHECKPOINT = next(
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(_checkpoint, name)
)
"""What a checkpoint that is not reentrant calls; torch 2.14 added the first name, and leaves the second to others."""


@contextlib.contextmanager
def without_checkpoints(run: Callable[..., Any], around: Callable[..., Any]) -> Iterator[None]:
    """Let `torch.utils.checkpoint` recompute nothing.

    A reentrant checkpoint calls ``run(function, preserve_rng_state, *args)`` instead. One that is not reentrant runs
    its function inside ``around(preserve_rng_state, context)``, where ``context`` is that of its forward, or None.
    """

    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return run(function, preserve, *args)

    def generator(*given: Any, **named: Any) -> Iterator[None]:
        # Up to torch 2.13 the options have positions, behind the function.
        preserve, context_fn = (
            (named["preserve_rng_state"], named["context_fn"]) if "context_fn" in named else given[1:3]
        )
        context = context_fn()[0]
        selective = isinstance(context, _checkpoint._CachingTorchDispatchMode)
        with around(preserve, None if selective else context):
            yield

    with (
        patched(_checkpoint.CheckpointFunction, "apply", staticmethod(apply)),
        patched(_checkpoint, _CHECKPOINT, generator),
    ):
        yield


def called_on_entering_autocast(entered: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Call ``entered`` whenever an autocast context is entered."""
    increment = torch.autocast_increment_nesting

    def counted() -> int:
        entered()
        return int(increment())

    return patched(torch, "autocast_increment_nesting", counted)


def dense_tangents(strides: Sequence[tuple[int, ...] | None] = ()) -> contextlib.AbstractContextManager[None]:
    """Trace the gradient of each output as a dense tensor with its own memory, even if the output is a view.

    ``strides`` has those of the gradients that a loss gives, in the order of the outputs that take one; None for a
    gradient of the layout that torch expects.
    """
    known = _metadata.coerce_tangent_and_suggest_memory_format
    waiting = itertools.cycle(strides or (None,))  # torch describes all gradients in order, each time it traces

    def own(output: Any) -> tuple[Any, Any, bool]:
        tangent, layout, updated = known(output)
        wanted = next(waiting)
        if not isinstance(tangent, torch.Tensor) or tangent.layout is not torch.strided:
            return tangent, layout, updated
        if wanted is None:
            return torch.empty_like(tangent), layout, updated
        return tangent.new_empty_strided(tangent.shape, wanted), layout, updated

    return patched(_metadata, "coerce_tangent_and_suggest_memory_format", own)


@contextlib.contextmanager
def described_as_run() -> Iterator[None]:
    """Correct torch's descriptions, for fake tensors, of calls that run otherwise.

    Grouped matrix products (mixtures of experts) exist in every dtype that the CPU computes; torch describes bfloat16
    only. An LSTM layer of oneDNN returns its workspace, and a gradient for each bias; torch describes no workspace, and
    one gradient for both biases. It does not describe the CTC loss of lists of lengths.
    """
    known = {call: op_implementations_dict.get(call) for call in _DESCRIBED}
    op_implementations_dict.update(_DESCRIBED)
    try:
        yield
    finally:
        for call, described in known.items():
            del op_implementations_dict[call]
            if described is not None:
                op_implementations_dict[call] = described


_GROUPED = torch.ops.aten._grouped_mm.default


def _grouped_product(
    mode: Any, _: Any, one: torch.Tensor, other: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    if one.device.type != "cpu" or one.dtype is torch.bfloat16 or (one.dim() == other.dim() == 3):
        return NotImplemented
    if one.dim() == other.dim() == 2:
        shape: tuple[int, ...] = (offs.shape[0], one.shape[0], other.shape[1])
    else:
        shape = (one.shape[-2], other.shape[-1])
    with mode:
        return torch.empty(shape, dtype=out_dtype or one.dtype, device=one.device)


def _rnn_layer(mode: Any, call: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    """The layouts that the layer, or its backward, returns for tensors of zeros."""

    def zeros(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()

    with outside_of_modes():
        made = direct(call)(*pytree.tree_map_only(torch.Tensor, zeros, args))
    with mode:
        return tuple(torch.empty_strided(given.shape, given.stride(), dtype=given.dtype) for given in made)


def _ctc_result(mode: Any, _: Any, log_probs: torch.Tensor, *rest: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses and the probabilities that the CTC loss keeps, of the length that lists of numbers give."""
    times, batch, _classes = log_probs.shape
    with mode:
        kept = torch.empty((batch, times, 2 * max(rest[2]) + 1), dtype=log_probs.dtype, device=log_probs.device)
        return kept.new_empty(batch), kept


_DESCRIBED = {
    torch.ops.aten._ctc_loss.default: _ctc_result,
    _GROUPED: _grouped_product,
    torch.ops.aten.mkldnn_rnn_layer.default: _rnn_layer,
    torch.ops.aten.mkldnn_rnn_layer_backward.default: _rnn_layer,
}


@contextlib.contextmanager
def described(call: OpOverload, result: Any) -> Iterator[None]:
    """Describe what a call returns, for fake tensors, as of the layout of ``result``."""
    known = op_implementations_dict.get(call)

    def alike(mode: Any, *_: Any, **__: Any) -> Any:
        def empty(like: torch.Tensor) -> torch.Tensor:
            return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)

        with mode:
            return pytree.tree_map_only(torch.Tensor, empty, result)

    op_implementations_dict[call] = alike
    try:
        yield
    finally:
        del op_implementations_dict[call]
        if known is not None:
            op_implementations_dict[call] = known


def inside_functorch() -> bool:
    """Whether a transform of torch.func is active: vmap, grad, jvp, functionalize."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def differentiates_forward() -> bool:
    """Whether a level of forward-mode differentiation is open."""
    return int(torch.autograd.forward_ad._current_level) >= 0


def default_device() -> torch.device:
    """The device of new tensors: `torch.get_default_device`, quick where no mode changes it."""
    if torch._C._len_torch_function_stack() or hasattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context"):
        return torch.get_default_device()
    return _CPU


def switch(backend: ModuleType, name: str) -> Callable[[], object]:
    """The function that reads a setting of one of ``torch.backends``."""
    reads: Callable[[], object] = inspect.getattr_static(type(backend), name).getter
    return reads


def fp32_precision(backend: str, operation: str) -> Callable[[], str]:
    """The function that reads the precision of products of float32: ``torch.backends.cudnn.conv.fp32_precision``."""
    return functools.partial(torch._C._get_fp32_precision_getter, backend, operation)


def profiler_runs() -> bool:
    """Whether a profiler is recording."""
    return bool(torch.autograd.profiler._is_profiler_enabled)


def cuda_history_runs() -> bool:
    """Whether the history of the CUDA allocator is being recorded."""
    return bool(torch._C._cuda_isHistoryEnabled())


def record_cuda_history(on: bool) -> None:
    """Start or end the history of the CUDA allocator, without stacks."""
    torch.cuda.memory._record_memory_history(enabled="all" if on else None, context=None, stacks="python")


def cuda_history(device: torch.device) -> list[tuple[str, int, int]]:
    """The history of a device: (action, address, bytes asked for) of each request and release, in order."""
    index = torch.cuda.current_device() if device.index is None else device.index
    traces = torch.cuda.memory._snapshot()["device_traces"]
    return [(entry["action"], entry["addr"], entry["size"]) for entry in traces[index]]


@contextlib.contextmanager
def memory_snapshot() -> Iterator[list[bytes]]:
    """Record the CUDA allocator with stacks; the list has the snapshot, pickled for PyTorch's viewer, at the end."""
    made: list[bytes] = []
    torch.cuda.memory._record_memory_history()
    try:
        yield made
        made.append(pickle.dumps(torch.cuda.memory._snapshot()))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def keep_busy(nanoseconds: int, device: torch.device) -> None:
    """Let the current stream of a CUDA device wait for at least so long, at clocks of up to 2 GHz."""
    with torch.cuda.device(device):
        torch.cuda._sleep(2 * nanoseconds)


def cuda_segments(device: torch.device) -> list[dict[str, Any]]:
    """The segments of the CUDA allocator on a device, with their blocks."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return [segment for segment in torch._C._cuda_memorySnapshot(None)["segments"] if segment["device"] == index]


def cuda_allocator_settings() -> dict[str, Any]:
    """The settings of the CUDA allocator in force."""
    found: dict[str, Any] = torch._C._cuda_memorySnapshot(None)["allocator_settings"]
    return found


def memory_pool(device: torch.device) -> Any:
    """A pool of the CUDA allocator on a device; it serves others when they would run out of memory."""
    with torch.cuda.device(device):
        return torch.cuda.MemPool(use_on_oom=True)


def pool_segments(pool_id: tuple[int, int], device: torch.device) -> list[dict[str, Any]]:
    """The segments of a pool, with their blocks.

    Chosen from those of the device. PyTorch's snapshot of one pool, also ``MemPool.snapshot``, releases the numbers of
    the pool's id, which it does not own (pytorch#196366): from the 257th pool of a process on their memory is used
    again while they are in use, and Python crashes later, anywhere.
    """
    return [segment for segment in cuda_segments(device) if segment["segment_pool_id"] == pool_id]


def reserved_nbytes(device: torch.device) -> int:
    """What the allocator has reserved of a device; without the figures that ``torch.cuda.memory_reserved`` makes."""
    return int(torch._C._cuda_memoryStats(device.index)["reserved_bytes"]["all"]["current"])


def enter_pool(pool_id: tuple[int, int], device: torch.device) -> None:
    """Place what this thread allocates on a device in the pool. One thread at a time may be in it."""
    torch._C._cuda_beginAllocateCurrentThreadToPool(device.index, pool_id)


def leave_pool(pool_id: tuple[int, int], device: torch.device) -> None:
    """Place it in the default pool again."""
    torch._C._cuda_endAllocateToPool(device.index, pool_id)
    torch._C._cuda_releasePool(device.index, pool_id)


def empty_pool(pool_id: tuple[int, int], device: torch.device) -> None:
    """Give the memory of a pool in which no block is in use back to the device, with all that is cached elsewhere.

    The allocator frees the memory of pools that nobody holds, and forgets them. The pool that it knows by the same id
    afterwards is a new one. To take another `memory_pool` instead would be worse: in torch 2.11 the destructor of the
    old one ends the process while a graph is captured, or while any thread is in another pool.

    No segment of the pool is expandable: PyTorch counts each piece that such a segment grows by, and a free that gives
    several back as one (seen in 2.14). It would keep the pool, which then cannot be entered or destroyed. Destroyed
    without being emptied before, it gives its memory back (`frees_expandable_pools`).
    """
    torch._C._cuda_releasePool(device.index, pool_id)
    torch.cuda.empty_cache()
    torch._C._cuda_beginAllocateCurrentThreadToPool(device.index, pool_id)
    torch._C._cuda_endAllocateToPool(device.index, pool_id)


def frees_expandable_pools() -> bool:
    """Whether a destroyed `memory_pool` with expandable segments gives its memory back, and does no harm.

    In earlier releases it may stay among those that serve others when they would run out of memory, which fails.
    """
    return _release() >= (2, 14)


@contextlib.contextmanager
def plain_segments() -> Iterator[None]:
    """Segments that the CUDA allocator takes meanwhile, in any thread, are not expandable.

    Releases in which not `frees_expandable_pools` go on as they are set.
    """
    if not frees_expandable_pools():
        yield
        return
    settings = torch._C._accelerator_getAllocatorSettings()
    plain, found = re.subn(r"(expandable_segments\s*:\s*)\w+", r"\1False", settings)
    if not found:  # the default
        yield
        return
    torch._C._accelerator_setAllocatorSettings(plain)  # whole, as what is not named gets its default
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings(settings)


def on_default_stream(device: torch.device) -> bool:
    """Whether the current stream of a CUDA device is its default one, on which no graph can be captured."""
    return bool(torch._C._cuda_getCurrentRawStream(device.index) == 0)


def direct(target: Any) -> Any:
    """The kernel of an overload as training calls it, without the Python wrapper."""
    return _AS_TRAINED.get(target) or getattr(target, "_op", target)


def is_called_directly(target: Any) -> bool:
    """Whether `direct` gives the operator itself."""
    return isinstance(target, OpOverload) and target not in _AS_TRAINED


_RNN_LAYER = torch.ops.aten.mkldnn_rnn_layer.default


def _rnn_layer_in_training(*args: Any, **kwargs: Any) -> Any:
    """An LSTM layer of oneDNN, which makes the workspace for its backward only with gradients on."""
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
        return _RNN_LAYER(*args, **kwargs)


def _bernoulli_in_layout(tensor: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """``bernoulli_`` over a tensor of the same strides: some CPUs draw in the order of the memory."""
    return torch.empty_like(tensor).bernoulli_(p, generator=generator)


def _normal_in_layout(
    tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """``normal_`` over a tensor of the same strides and gaps: a packed one draws other numbers."""
    alike = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return alike.normal_(mean, std, generator=generator)


_AS_TRAINED = {
    _RNN_LAYER: _rnn_layer_in_training,
    torch.ops.aten.bernoulli.p: _bernoulli_in_layout,
    torch.ops.aten.normal_functional.default: _normal_in_layout,
}


def exchange(written: FunctionalTensor, value: FunctionalTensor) -> None:
    """Give a traced tensor, and the tensor it is a view of, the value of another one of its shape."""
    written.replace_(torch._from_functional_tensor(value.elem))
    written.commit_update()
    written.sync()


def keeps_graph() -> bool:
    """Whether the backward now running was asked to keep the graph (``retain_graph=True``)."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def is_wanted(node: Any) -> bool:
    """Whether the backward now running will run this node."""
    return bool(torch._C._will_engine_execute_node(node))


def some_function_takes_several_gradients(outputs: Iterable[Any]) -> bool:
    """Whether a `torch.autograd.Function` that led to the outputs has several of its own."""
    waiting = [output.grad_fn for output in outputs if isinstance(output, torch.Tensor) and output.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction) and len(node._input_metadata) > 1:
            return True
        behind = {behind for behind, _ in node.next_functions if behind is not None} - seen
        seen |= behind
        waiting += behind
    return False


def quick_check(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """A quick function of as many values, true only if each is a tensor like the one here.

    That is in class, dtype, device, shape, strides and ``requires_grad``. It may be false of others too, for instance
    in other modes. None where torch has no such function, or it would never be true.
    """
    guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
    if guards is None:
        return None
    check: Callable[..., bool] = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check if check(*tensors) else None


def dictionary_version() -> Callable[[dict[Any, Any]], int] | None:
    """A function of a dictionary, whose result no other has, nor the same one once it was written.

    None where torch has none. From Python 3.13 on torch has one that cannot be relied on: it is told of writes by
    CPython, which does not tell of all that set an attribute of an object (seen in 3.13.0).
    """
    if sys.version_info >= (3, 13):
        return None
    found: Callable[[dict[Any, Any]], int] | None = getattr(torch._C._dynamo.guards, "dict_version", None)
    return found


def storage_key(tensor: torch.Tensor) -> int:
    """A key that two tensors, real or fake, share if and only if they share memory."""
    return int(tensor.untyped_storage()._cdata)


def schema_of(overload: OpOverload) -> Any:
    """The schema of an operator: its name and its arguments."""
    return overload._schema


def version_of(tensor: torch.Tensor) -> int:
    """How many times a tensor was written in place; 0 for inference tensors, which do not count."""
    return 0 if tensor.is_inference() else int(tensor._version)


def is_view(target: Any) -> bool:
    """Whether an operator makes nothing but a view of its first argument, or views of it."""
    return isinstance(target, OpOverload) and bool(target.is_view)


def versions_of(values: Iterable[Any]) -> list[int]:
    """`version_of` each tensor; 0 for what is no tensor."""
    try:
        return [value._version for value in values]
    except (AttributeError, RuntimeError):
        return [version_of(value) if isinstance(value, torch.Tensor) else 0 for value in values]


@contextlib.contextmanager
def silenced(*names: str) -> Iterator[None]:
    """Keep the loggers of these names from logging anything."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def share_distributed_state(module: torch.nn.Module, other: torch.nn.Module) -> None:
    """Let ``other`` be known for what `fully_shard` has made of ``module``, with which it shares its tensors."""
    if is_sharded(module):
        _composable_state._insert_module_state(other, _composable_state._get_module_state(module))


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether the module is what ``torch.compile`` made of another one."""
    return "_orig_mod" in module._modules and type(module).__module__.startswith("torch._dynamo.")


def is_sharded(module: torch.nn.Module) -> bool:
    """Whether `fully_shard` was called on the module itself."""
    return _composable_state._get_module_state(module) not in (None, module)


def hooks_of(leaf: torch.Tensor) -> tuple[dict[int, Any], dict[int, Any]]:
    """Autograd's dictionaries of the hooks on a leaf: those before and after a gradient is accumulated."""
    return leaf._backward_hooks or {}, leaf._post_accumulate_grad_hooks or {}


def by_tensor() -> Any:
    """An empty dictionary with tensors as keys, which it does not keep alive."""
    return WeakTensorKeyDictionary()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is real: neither fake nor functional."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def caches_parametrizations() -> bool:
    """Whether a ``parametrize.cached()`` context is open."""
    return bool(torch.nn.utils.parametrize._cache_enabled)


@contextlib.contextmanager
def outside_of_modes() -> Iterator[None]:
    """Run calls inside on real tensors, outside of all tracing modes."""
    with _disable_current_modes():
        yield
