"""Gives traced results the strides and devices of real kernels where torch's descriptions for fake tensors differ.

Torch describes some calls on transposed tensors with other strides than their kernels give: batch norm, the backwards
of dropout, layer norm and losses. Whatever depends on strides, such as a ``view``, would then be traced for another
tensor than the step will have. And the seeds that attention returns are described on the device, while kernels of CUDA
return them in host memory, where their backwards read them. Each such call is run once on example tensors while it is
traced.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from ....planner.errors import AdapterError
from .. import torch_private
from ..memory.example_inputs import examples, fill
from ..memory.strides import Layout
from ..torch_private import FakeTensorMode, OpOverload, pytree, schema_of

_RIGHT = frozenset({
    torch.ops.aten.addmm, torch.ops.aten.baddbmm, torch.ops.aten.bmm, torch.ops.aten.mm, torch.ops.aten.embedding,
    torch.ops.aten.convolution, torch.ops.aten.convolution_backward, torch.ops.aten._to_copy, torch.ops.aten.clone,
    torch.ops.aten.copy, torch.ops.aten.cat, torch.ops.aten._unsafe_view,
})  # fmt: skip
"""Calls that torch describes correctly, some of which are slow to run."""


_OF_DROPOUT = 2
"""The results of a dropout, which are on its device; a random call with more of them is attention."""


def kernel_strides(unknown: dict[str, str]) -> AbstractContextManager[None]:
    """Trace inside: every result has the strides and the device that its kernel gives.

    A call whose kernel refuses the example tensors keeps torch's description; it is added to ``unknown`` with the
    kernel's message.
    """
    described = FakeTensorMode.dispatch
    layouts = _KernelLayouts(unknown)

    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if layouts.busy or not _may_differ(func, (args, kwargs)):
            return described(mode, func, types, args, kwargs or {})
        layouts.busy = True
        try:
            made = described(mode, func, types, args, kwargs or {})
            return layouts.corrected(mode, func, args, kwargs or {}, made)
        finally:
            layouts.busy = False

    return torch_private.patched(FakeTensorMode, "dispatch", dispatch)


class _KernelLayouts:
    """The layouts of results by call; ``busy`` while a call is described, which may make others."""

    def __init__(self, unknown: dict[str, str]) -> None:
        self.busy = False
        self._unknown = unknown
        self._known: dict[str, list[Layout | None]] = {}

    def corrected(self, mode: Any, func: OpOverload, args: Any, kwargs: Any, made: Any) -> Any:
        """``made`` with each new tensor in the layout of its kernel; views stay as they are."""
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        old = {torch_private.storage_key(tensor) for tensor in given}
        leaves, spec = pytree.tree_flatten(made)
        fresh = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
        if not fresh or any(torch_private.storage_key(tensor) in old for tensor in fresh):
            return made
        signature = repr((func, pytree.tree_map_only(torch.Tensor, Layout.of, (args, kwargs))))
        if signature not in self._known:
            try:
                self._known[signature] = _run(func, args, kwargs, made)
            except torch.OutOfMemoryError as error:
                raise AdapterError(
                    f"{fresh[0].device} ran out of memory while {func} ran alone, to learn how it lays out its results",
                    remedy="free memory of the device before planning, or plan a smaller batch",
                ) from error
            except (RuntimeError, IndexError, ValueError) as error:  # raised by kernels for values they do not accept
                self._known[signature] = []
                self._unknown[str(func)] = str(error).strip().partition("\n")[0]
        for i, (leaf, layout) in enumerate(zip(leaves, self._known[signature], strict=False)):
            if layout is None or not any(leaf is tensor for tensor in fresh):
                continue
            if layout.shape == tuple(leaf.shape) and layout != Layout.of(leaf):
                with mode:
                    leaves[i] = torch.empty_strided(*layout[:2], dtype=leaf.dtype, device=layout.device)
        return pytree.tree_unflatten(leaves, spec)


def _may_differ(func: Any, arguments: Any) -> bool:
    """Whether a call makes new tensors from arguments that are not contiguous, or returns seeds."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or func.overloadpacket in _RIGHT:
        return False
    schema = schema_of(func)
    if func.is_view or schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in func.tags and len(schema.returns) > _OF_DROPOUT:
        return True
    given = (leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor))
    return any(leaf.layout is torch.strided and not leaf.is_contiguous() for leaf in given)


def _run(func: OpOverload, args: Any, kwargs: Any, made: Any) -> list[Layout | None]:
    """The layouts of a call's results, described as ``made``, on example tensors. Raises what the kernel raises."""
    devices = {leaf.device for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    generators = [device for device in devices if device.type == "cuda"]
    with ExitStack() as stack:
        stack.enter_context(torch_private.outside_of_modes())
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch_private.WithoutAutocast())
        stack.enter_context(torch.random.fork_rng(generators, device_type="cuda"))
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        for place, real in zip(places, examples([(Layout.of(leaves[p]), leaves[p]) for p in places]), strict=True):
            leaves[place] = real
        given, named = pytree.tree_unflatten(leaves, spec)
        fill(func, given, made)
        made = torch_private.direct(func)(*given, **named)
    return [_layout(leaf) for leaf in pytree.tree_leaves(made)]


def _layout(value: Any) -> Layout | None:
    return Layout.of(value) if isinstance(value, torch.Tensor) and value.layout is torch.strided else None
