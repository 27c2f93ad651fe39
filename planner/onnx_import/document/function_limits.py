"""Functions that a file defines for itself: counted before they are inlined, so that none can explode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from json import dumps as quoted
from typing import TYPE_CHECKING

from ...errors import InvalidModelError, UnsupportedOpError
from .subgraphs import all_nodes

if TYPE_CHECKING:
    from .protobuf import ModelProto, NodeProto

MAX_INLINED_NODES = 10**6

FunctionKey = tuple[str, str, str]


def check_functions(model: ModelProto) -> None:
    """Raise where functions call themselves, or inlining them would make more than MAX_INLINED_NODES nodes."""
    signatures = {(function.domain, function.name, function.overload): function for function in model.functions}
    bodies = {(function.domain, function.name, function.overload): function.node for function in model.functions}
    sizes: dict[FunctionKey, int] = {}
    for key in bodies:
        _count(key, bodies, sizes)
    for node in calls_of(model):
        function = signatures.get((node.domain, node.op_type, node.overload))
        if function is not None and (len(node.input) > len(function.input) or len(node.output) > len(function.output)):
            raise InvalidModelError(
                f"node {quoted(node.name or node.op_type)} calls function {quoted(function.name)} with "
                f"{len(node.input)} inputs and {len(node.output)} outputs; it has {len(function.input)} and "
                f"{len(function.output)}",
                remedy="export the model again",
            )
    total = sum(sizes.get((node.domain, node.op_type, node.overload), 1) for node in all_nodes(model.graph.node))
    if total > MAX_INLINED_NODES:
        raise UnsupportedOpError(
            f"the functions of the model expand to {total} nodes; at most {MAX_INLINED_NODES} can be planned",
            remedy="export a smaller model",
        )


def _count(
    start: FunctionKey, bodies: Mapping[FunctionKey, Iterable[NodeProto]], sizes: dict[FunctionKey, int]
) -> None:
    """Enter the inlined size of ``start`` and of every function below it, callees first."""
    stack, open_keys = [start], set[FunctionKey]()
    while stack:
        key = stack[-1]
        if key in sizes:
            stack.pop()
            continue
        callees = [(node.domain, node.op_type, node.overload) for node in all_nodes(bodies[key])]
        waiting = [callee for callee in dict.fromkeys(callees) if callee in bodies and callee not in sizes]
        if not waiting:
            sizes[key] = sum(sizes.get(callee, 1) for callee in callees)
            stack.pop()
            continue
        open_keys.add(key)
        if not open_keys.isdisjoint(waiting):
            raise InvalidModelError(f"function {quoted(key[1])} calls itself", remedy="export the model again")
        stack.extend(waiting)


def calls_of(model: ModelProto) -> Iterable[NodeProto]:
    """Every node of the model and of its functions, those inside nodes included."""
    yield from all_nodes(model.graph.node)
    for function in model.functions:
        yield from all_nodes(function.node)
