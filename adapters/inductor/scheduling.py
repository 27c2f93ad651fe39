"""The order and the fusions of Inductor's kernels in a graph that is to hold few bytes.

Inductor orders kernels by estimates and fuses those that read the same, however far apart they would run: what was to
be computed late is then computed early, and lives in between. Its doors for passes before and after fusion are used.
A graph that is not marked is left to Inductor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from . import torch_private
from .forms import Forms, steer
from .order import Kernel, Order
from .torch_private import V

_MARK = "ogc_plan_lean"
_FORMS = "ogc_plan_forms"

_COUNTED_BY_CALLER = ("primals", "tangents")
"""Inputs whose names begin so are not freed by the code."""


def hold_few_bytes(graph_module: fx.GraphModule) -> None:
    """Let a graph be scheduled so that it holds few bytes."""
    for node in graph_module.graph.find_nodes(op="placeholder"):
        node.meta = {**node.meta, _MARK: True}  # graphs cut from one share the dictionary


def compute_as(graph_module: fx.GraphModule, plain: Forms) -> None:
    """Let the loops of a marked graph compute functions and sums in the forms of ``plain``, where they can."""
    for node in graph_module.graph.find_nodes(op="placeholder"):
        node.meta = {**node.meta, _FORMS: plain}


def before_fusion(nodes: list[Any]) -> list[Any]:
    """Order the kernels, and let Inductor fuse only what then holds no more bytes around it."""
    graph = V.graph.module.graph
    if not is_marked(graph):
        return nodes
    scheduler = V.graph.scheduler
    order = _order(nodes)
    scheduler.nodes = _sorted(nodes, order)
    given = [node.meta[_FORMS] for node in graph.find_nodes(op="placeholder") if _FORMS in node.meta]
    for backend in _backends(nodes):
        steer(backend, given[0] if given else {})
    scheduler.compute_ancestors()  # numbers the kernels anew
    can_fuse, fuse = scheduler.can_fuse, scheduler.fuse_two_nodes

    def can_fuse_lean(one: Any, other: Any, *options: Any, **named: Any) -> bool:
        return can_fuse(one, other, *options, **named) and _lean(scheduler, one, other)

    def fuse_lean(one: Any, other: Any, *options: Any, **named: Any) -> Any:
        order.fuse(_name(one), _name(other))
        return fuse(one, other, *options, **named)

    scheduler.can_fuse, scheduler.fuse_two_nodes = can_fuse_lean, fuse_lean
    scheduler.ogc_plan_order, scheduler.ogc_plan_allowed_nbytes = order, 0
    return list(scheduler.nodes)


def after_fusion(nodes: list[Any]) -> list[Any]:
    """Fuse what leaves the peak of the whole graph as it is, and order the kernels anew."""
    if not is_marked(V.graph.module.graph):
        return torch_private.ordered_by_inductor(nodes)
    scheduler = V.graph.scheduler
    order: Order = scheduler.ogc_plan_order
    order.improve()
    scheduler.ogc_plan_allowed_nbytes = order.peak_nbytes
    nodes = scheduler.fuse_nodes(_sorted(nodes, order))
    order.improve()
    for node in nodes:
        _write_over_what_ends(node)
    _free_early(scheduler, nodes, order.late())
    return _sorted(nodes, order)


def _free_early(scheduler: Any, nodes: list[Any], ends: frozenset[str]) -> None:
    """Let the code free what has ended after each call of a library, and after the loops ``ends``.

    It would free it after the next loops, which it runs as one function up to the next call.
    """
    for backend in _backends(nodes):
        ready = backend.ready_to_flush

        def flushes(ready: Callable[[], bool] = ready) -> bool:
            node = scheduler.current_node
            return ready() or node.is_extern() or _name(node) in ends

        backend.ready_to_flush = flushes


def _backends(nodes: list[Any]) -> list[Any]:
    devices = {device for node in nodes if (device := node.get_device()) is not None}
    return [V.graph.scheduler.get_backend(device) for device in devices]


def _lean(scheduler: Any, one: Any, other: Any) -> bool:
    found = scheduler.ogc_plan_order.fusion(_name(one), _name(other))
    return found is not None and found[1].peak_nbytes <= max(found[0].peak_nbytes, scheduler.ogc_plan_allowed_nbytes)


def is_marked(graph: fx.Graph) -> bool:
    """Whether a graph is to be scheduled so that it holds few bytes."""
    return any(_MARK in node.meta for node in graph.find_nodes(op="placeholder"))


def _name(node: Any) -> str:
    return str(node.get_first_name())


def _sorted(nodes: list[Any], order: Order) -> list[Any]:
    place = {name: position for position, task in enumerate(order.tasks) for name in task.names}
    return sorted(nodes, key=lambda node: place[_name(node)])


def _order(nodes: list[Any]) -> Order:
    """The kernels before fusion."""
    graph = V.graph
    buffers = {buffer.get_name(): (node, buffer) for node in nodes for buffer in node.get_outputs()}

    def storage(name: str) -> str:
        while True:
            other = graph.scheduler.mutation_real_name.get(name, name)
            found = buffers.get(other)
            same = list(found[1].node.get_inputs_that_alias_output()) if found is not None else []
            if not same and other == name:
                return name
            name = same[0] if same else other

    nbytes: dict[str, int] = {}
    for name, (_, buffer) in buffers.items():
        if storage(name) == name:
            nbytes[name] = torch_private.nbytes_of(buffer.node) if torch_private.has_memory(buffer.node) else 0
    given = {name for name in graph.graph_inputs if not name.startswith(_COUNTED_BY_CALLER)}
    for name, value in graph.graph_inputs.items():
        nbytes[name] = torch_private.nbytes_of(value) if name in given and torch_private.has_memory(value) else 0
    parts: dict[str, set[str]] = {}  # a call that returns several tensors -> these, which it holds until all are taken
    for name, (_, buffer) in buffers.items():
        if torch_private.is_part(buffer.node):
            parts.setdefault(buffer.node.inputs[0].get_name(), set()).add(storage(name))
    kernels = []
    for node in nodes:
        made = {buffer.get_name() for buffer in node.get_outputs()}
        found = {read.name for read in node.read_writes.reads if not torch_private.only_orders(read)}
        reads = {storage(name) for name in found}.union(*(parts.get(name, ()) for name in found))
        writes = {storage(name) for name in made}.union(*(parts.get(name, ()) for name in made))
        after = {buffers[read.name][0].get_name() for read in node.unmet_dependencies if read.name in buffers}
        kernels.append(
            Kernel(
                node.get_name(), frozenset(reads & nbytes.keys()), frozenset(writes & nbytes.keys()),
                frozenset(name for name in reads if torch_private.may_write_over(node, name)),
                frozenset(after - {node.get_name()}), bool(node.is_extern()),
            )
        )  # fmt: skip
    kept = {storage(name) for name in graph.get_output_names()}
    return Order(kernels, nbytes, given, kept & nbytes.keys())


def _write_over_what_ends(node: Any) -> None:
    """Let a kernel write over an input that ends with it rather than over a value that never leaves it.

    Inductor takes the first that it finds.
    """
    made = {buffer.get_name() for buffer in node.get_outputs()}
    for part in node.get_nodes():
        torch_private.sort_reads(part, key=lambda name: name in made)
