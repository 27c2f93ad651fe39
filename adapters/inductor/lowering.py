"""What Inductor's code for a graph will allocate, reuse and free, and the kernels that it will run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from . import torch_private
from .forms import Call, Forms, call_of, forms_of, wanted
from .torch_private import V


class Event(NamedTuple):
    """One line of the code: ``take`` or ``free`` a buffer, ``reuse`` its memory for ``other``, ``call`` a library."""

    what: str
    name: str
    nbytes: int = 0
    other: str = ""
    call: Call | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: buffers that it reads and writes, the aten calls fused into it, the work that it does."""

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    origins: frozenset[str]
    flops: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Lowered:
    """The code of a graph, read before any kernel is compiled.

    Attributes:
        inputs: bytes of each input, in order.
        outputs: the buffer of each result; None for what is no buffer.
        strides: the strides of each result.
        nbytes: bytes of each buffer that has memory of its own.
        same: buffers that are other buffers under a second name: views, and what is written in place.
        made_by: for a buffer the node that it holds, where one is known.
        forms: the forms of functions, sums, and library calls.
    """

    events: tuple[Event, ...]
    kernels: tuple[Kernel, ...]
    inputs: dict[str, int]
    outputs: tuple[str | None, ...]
    strides: tuple[tuple[int, ...] | None, ...]
    nbytes: dict[str, int]
    same: dict[str, str]
    made_by: dict[str, str]
    forms: Forms

    def real(self, name: str) -> str:
        """The buffer whose memory ``name`` is."""
        while name in self.same:
            name = self.same[name]
        return name


def lower_step(
    forward: fx.GraphModule, backward: fx.GraphModule, outputs: int, static: Sequence[int]
) -> tuple[Lowered, Lowered]:
    """The code of a forward and of the backward that finds what it saves, laid out as the forward returns it."""
    ahead = _lowered(forward, is_backward=False, outputs=outputs, static=static)
    named = {
        leaf.name: strides
        for leaf, strides in zip(_leaves(forward), ahead.strides, strict=True)
        if isinstance(leaf, fx.Node) and strides is not None
    }
    donated = _donated(forward, backward, outputs)
    for node in backward.graph.nodes:
        if node.op == "placeholder" and named.get(node.name, node.meta["val"].stride()) != node.meta["val"].stride():
            node.meta["val"] = torch_private.restrided(node.meta["val"], named[node.name])
    return ahead, _lowered(backward, is_backward=True, outputs=0, donated=donated)


def _lowered(graph_module: fx.GraphModule, **options: Any) -> Lowered:
    lowered: Lowered = torch_private.generated(graph_module, read=_read, wanted=wanted, **options)
    return lowered


def _donated(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> list[int]:
    """The inputs of the backward that nobody else holds, so that it may write over them."""
    results = _leaves(forward)
    held = [node for node in forward.graph.nodes if node.op == "placeholder"] + results[:outputs] + _leaves(backward)
    storages = {_storage(node) for node in held}
    given = [node for node in backward.graph.nodes if node.op == "placeholder"]
    saved = {leaf.name for leaf in results[outputs:] if isinstance(leaf, fx.Node)}
    return [i for i, node in enumerate(given) if node.name in saved and _storage(node) not in storages]


def _leaves(graph_module: fx.GraphModule) -> list[Any]:
    output = next(node for node in graph_module.graph.nodes if node.op == "output")
    return list(torch_private.pytree.arg_tree_leaves(*output.args))


def _storage(node: Any) -> int | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return torch_private.storage_of(value) if isinstance(value, torch.Tensor) else None


def _read(wrapper: Any, written: list[torch_private.Loops]) -> Lowered:
    graph = V.graph
    events, nbytes, same = _events(wrapper, graph)
    kernels, made_by = _kernels(graph)
    same |= {name: real for name, real in graph.scheduler.mutation_real_name.items() if name != real}
    outputs = [_name(result) for result in graph.graph_outputs]
    strides = [_strides(result) for result in graph.graph_outputs]
    inputs = {
        name: torch_private.nbytes_of(value)
        for name, value in graph.graph_inputs.items()
        if torch_private.has_memory(value)
    }
    forms = forms_of(written, (event.call for event in events if event.call is not None))
    return Lowered(tuple(events), tuple(kernels), inputs, tuple(outputs), tuple(strides), nbytes, same, made_by, forms)


def _events(wrapper: Any, graph: Any) -> tuple[list[Event], dict[str, int], dict[str, str]]:
    events: list[Event] = []
    nbytes: dict[str, int] = {}
    same: dict[str, str] = {}
    whole: dict[str, str] = {}  # one of several results -> the call, whose tuple holds it too

    def take(buffer: Any) -> None:
        name = buffer.get_name()
        nbytes[name] = torch_private.nbytes_of(buffer)
        events.append(Event("take", name, nbytes[name]))

    for line in wrapper.lines:
        kind = type(line).__name__
        if kind == "AllocateLine":
            take(line.node)
        elif kind == "ReuseLine":
            old, new = line.node.get_name(), line.reused_as.get_name()
            nbytes[new] = torch_private.nbytes_of(line.reused_as)
            events.append(Event("reuse", old, other=new))
        elif kind == "FreeLine" or (kind == "FreeIfNotReusedLine" and not line.is_reused):
            events.append(Event("free", line.node.get_name()))
        elif kind == "ReinterpretLine":
            same[line.reused_as.get_name()] = line.node.get_name()
        elif kind in ("ExternKernelAllocLine", "ExternKernelOutLine"):
            node = line.node
            origin = _origin(node)
            if origin is not None:
                call = Call(origin, tuple(_layout(given) for given in node.inputs))
                events.append(Event("call", node.get_name(), call=call))
            if kind == "ExternKernelOutLine" or node.get_inputs_that_alias_output():
                continue
            if isinstance(node.layout, torch_private.MAKES_SEVERAL):
                for buffer in graph.buffers:
                    of = getattr(buffer, "inputs", None)
                    own = of and of[0].get_name() == node.get_name() and type(buffer).__name__ == "MultiOutput"
                    if own and not buffer.get_inputs_that_alias_output():
                        whole[buffer.get_name()] = node.get_name()
                        take(buffer)
            elif torch_private.has_memory(node):
                take(node)
    return held_by_tuples(events, whole), nbytes, same


def held_by_tuples(events: list[Event], whole: dict[str, str]) -> list[Event]:
    """The events, where a result of several is freed no sooner than the tuple of all of them."""
    freed = {event.name for event in events if event.what == "free"}
    waiting: dict[str, list[Event]] = {call: [] for call in whole.values()}
    found: list[Event] = []
    for event in events:
        call = whole.get(event.name) if event.what == "free" else None
        if call in waiting and call in freed:
            waiting[call].append(event)
            continue
        found.append(event)
        if event.what == "free":
            found += waiting.pop(event.name, [])
    return found


def _origin(kernel: Any) -> fx.Node | None:
    """The call that a library kernel runs."""
    node = kernel.origin_node
    for other in kernel.get_origins():
        if other.target is kernel.op_overload:
            node = other
    return node if node is not None and node.op == "call_function" else None


def _kernels(graph: Any) -> tuple[list[Kernel], dict[str, str]]:
    scheduler = graph.scheduler
    kernels: list[Kernel] = []
    made_by: dict[str, str] = {}
    parts: dict[str, list[str]] = {}  # a call that returns several tensors -> the buffers of these
    for scheduled in scheduler.nodes:
        held: Any = getattr(scheduled, "node", None)
        if type(held).__name__ == "MultiOutput":
            parts.setdefault(held.inputs[0].get_name(), []).append(held.get_name())
    for scheduled in scheduler.nodes:
        held = getattr(scheduled, "node", None)
        if type(held).__name__ == "MultiOutput":
            if held.origin_node is not None:
                made_by[held.get_name()] = held.origin_node.name
            continue
        origins: set[str] = set()
        for part in scheduled.get_nodes():
            if part.node is not None:
                origins |= set(map(call_of, part.node.get_origins()))
                for buffer in part.get_outputs():
                    if getattr(buffer.node, "origin_node", None) is not None:
                        made_by[buffer.get_name()] = buffer.node.origin_node.name
        writes = [
            name
            for buffer in scheduled.get_outputs()
            for name in (buffer.get_name(), *parts.get(buffer.get_name(), ()))
        ]
        reads = sorted({dependence.name for dependence in scheduled.read_writes.reads})
        kind = str(getattr(held, "python_kernel_name", None) or type(scheduled).__name__)
        flops = int(scheduled.estimate_flops() or 0)
        moved = int(scheduled.get_read_write_buffers_sizes())
        kernels.append(
            Kernel(scheduled.get_name(), kind, tuple(reads), tuple(writes), frozenset(origins), flops, moved)
        )  # fmt: skip
    return kernels, made_by


def _name(value: Any) -> str | None:
    return str(value.get_name()) if hasattr(value, "get_name") and value.has_tensor_output() else None


def _strides(value: Any) -> tuple[int, ...] | None:
    return tuple(int(stride) for stride in value.get_stride()) if _name(value) else None


def _layout(value: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if not hasattr(value, "get_stride") or not value.has_tensor_output():
        return None
    layout = tuple(value.get_size()), tuple(value.get_stride())
    if not all(getattr(extent, "is_number", True) for part in layout for extent in part):
        return None  # the state of a generator, whose size no graph knows
    return tuple(map(int, layout[0])), tuple(map(int, layout[1]))
