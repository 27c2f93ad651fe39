"""The functions that a file defines for itself: their size is bounded, then they are put in place of their calls.

A function may import another version of the standard ops than the model, so both are brought to one opset first.
"""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from json import dumps as quoted

from ...errors import InvalidModelError, UnsupportedOpError
from ...graph import NodePath
from ...units import counted
from .opsets import since_version
from .protobuf import FunctionProto, GraphProto, ModelProto, NodeProto, inliner
from .subgraphs import all_nodes, subgraphs
from .unsupported_ops import EXPORT_AGAIN

MAX_INLINED_NODES = 10**6
MAX_INLINED_NBYTES = 2**30
"""Most bytes of what the calls are replaced by, constants inside functions included."""
MAX_CALL_DEPTH = 100
"""Most functions that call one another in a row; the library nests its own calls as deep."""
_STANDARD = ("", "ai.onnx")

FunctionKey = tuple[str, str, str]


def inline_functions(model: ModelProto) -> ModelProto:
    """The model with its own functions in place of their calls; see `check_functions`."""
    if not model.functions:
        return model
    check_functions(model)
    model, convert = _aligned(model)
    try:
        inlined = inliner.inline_local_functions(model, convert_version=convert)
    except Exception as error:
        reason = str(error).split("\n")[0][:200]
        raise InvalidModelError(
            f"the functions of the model cannot be inlined: {reason}", remedy=EXPORT_AGAIN
        ) from None
    kept = {(function.domain, function.name) for function in inlined.functions}
    for node in all_nodes(inlined.graph.node):
        if (node.domain, node.op_type) in kept:
            raise UnsupportedOpError(
                f"node {quoted(node.name or node.op_type)} calls function {quoted(node.op_type)}, which cannot be "
                "inlined",
                remedy="export the model and its functions with one opset",
            )
    return inlined


def places_of(model: ModelProto, inlined: ModelProto) -> tuple[NodePath, ...] | None:
    """Where each node of the inlined main graph stands in the file, as `NodePath`.

    Returns:
        A place for each node; None where that cannot be said: the library converted the nodes to another opset, or a
        graph inside a node calls a function.
    """
    if not model.functions:
        return tuple((index,) for index in range(len(model.graph.node)))
    functions = {_key(function): function for function in model.functions}
    if any(_called(node) in functions for graph in _inner_graphs(model) for node in all_nodes(graph.node)):
        return None

    def expand(nodes: Iterable[NodeProto], above: NodePath) -> Iterable[tuple[NodePath, str]]:
        for index, node in enumerate(nodes):
            function = functions.get(_called(node))
            if function is None:
                yield (*above, index), node.op_type
            else:
                yield from expand(function.node, (*above, index, f"{function.domain}::{function.name}"))

    found = list(expand(model.graph.node, ()))
    if [op_type for _, op_type in found] != [node.op_type for node in inlined.graph.node]:
        return None
    return tuple(place for place, _ in found)


def _inner_graphs(model: ModelProto) -> Iterable[GraphProto]:
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        yield from subgraphs(node)


def check_functions(model: ModelProto) -> None:
    """Raise where functions call themselves, or inlining them would take more than the limits of this file."""
    functions = {_key(function): function for function in model.functions}
    sizes, nbytes = _inlined_sizes(functions)
    for node in _calls(model):
        function = functions.get(_called(node))
        if function is not None and (len(node.input) > len(function.input) or len(node.output) > len(function.output)):
            raise InvalidModelError(
                f"node {quoted(node.name or node.op_type)} calls function {quoted(function.name)} with "
                f"{counted(len(node.input), 'input')} and {counted(len(node.output), 'output')}; it "
                f"has {len(function.input)} and {len(function.output)}",
                remedy=EXPORT_AGAIN,
            )
    total = sum(sizes.get(_called(node), 1) for node in all_nodes(model.graph.node))
    if total > MAX_INLINED_NODES:
        raise UnsupportedOpError(
            f"the functions of the model expand to {total} nodes; at most {MAX_INLINED_NODES} can be planned",
            remedy="export a smaller model",
        )
    total = sum(nbytes.get(_called(node), 0) for node in all_nodes(model.graph.node))
    if total > MAX_INLINED_NBYTES:
        raise UnsupportedOpError(
            f"the functions of the model expand to {total} bytes; at most {MAX_INLINED_NBYTES} can be planned",
            remedy="save the constants of its functions as initializers",
        )


def _inlined_sizes(
    functions: dict[FunctionKey, FunctionProto],
) -> tuple[dict[FunctionKey, int], dict[FunctionKey, int]]:
    """The nodes and bytes of each function once everything it calls is inlined."""
    called = {key: [_called(node) for node in all_nodes(function.node)] for key, function in functions.items()}
    calls = {key: [other for other in found if other in functions] for key, found in called.items()}
    try:
        callees_first = list(TopologicalSorter(calls).static_order())
    except CycleError as error:
        name = error.args[1][0][1]
        raise InvalidModelError(f"function {quoted(name)} calls itself", remedy=EXPORT_AGAIN) from None
    sizes: dict[FunctionKey, int] = {}
    nbytes: dict[FunctionKey, int] = {}
    depth: dict[FunctionKey, int] = {}
    for key in callees_first:
        sizes[key] = sum(sizes.get(other, 1) for other in called[key])
        nbytes[key] = functions[key].ByteSize() + sum(nbytes.get(other, 0) for other in called[key])
        depth[key] = 1 + max((depth.get(other, 0) for other in called[key]), default=0)
        if depth[key] > MAX_CALL_DEPTH:
            raise UnsupportedOpError(
                f"more than {MAX_CALL_DEPTH} functions call one another in a row, up to {quoted(key[1])}",
                remedy="export the model without nested functions",
            )
    return sizes, nbytes


def _key(function: FunctionProto) -> FunctionKey:
    return function.domain, function.name, function.overload


def _called(node: NodeProto) -> FunctionKey:
    return node.domain, node.op_type, node.overload


def _calls(model: ModelProto) -> Iterable[NodeProto]:
    """Every node of the model and of its functions, those inside nodes included."""
    yield from all_nodes(model.graph.node)
    for function in model.functions:
        yield from all_nodes(function.node)


def _aligned(model: ModelProto) -> tuple[ModelProto, bool]:
    """A model whose calls carry the default attributes of their functions, and which uses one opset if it can.

    The flag says whether functions remain whose standard ops have to be converted to the model's opset. Two versions
    of an opset are the same if none of the ops used has changed between them.
    """
    versions = {_standard_version(function) for function in model.functions} - {0}
    if versions <= {_standard_version(model)} and not any(function.attribute_proto for function in model.functions):
        return model, False
    copy = type(model)()
    copy.CopyFrom(model)
    functions = {_key(function): function for function in copy.functions}
    for node in _calls(copy):
        function = functions.get(_called(node))
        if function is not None:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(default for default in function.attribute_proto if default.name not in given)
    parts = (copy, *copy.functions)
    for version in sorted({_standard_version(copy), *versions}, reverse=True):
        if all(_unchanged(part, version) for part in parts):
            for entry in (entry for part in parts for entry in part.opset_import):
                if entry.domain in _STANDARD:
                    entry.version = version
            return copy, False
    return copy, True


def _standard_version(part: ModelProto | FunctionProto) -> int:
    """The opset of the standard domain that a model or a function imports, 0 for none."""
    return next((entry.version for entry in part.opset_import if entry.domain in _STANDARD), 0)


def _unchanged(part: ModelProto | FunctionProto, version: int) -> bool:
    """Whether the standard ops of a model or a function mean the same at another version of the opset."""
    own = _standard_version(part)
    if own in (0, version):
        return True
    nodes = part.graph.node if isinstance(part, ModelProto) else part.node
    names = {node.op_type for node in all_nodes(nodes) if node.domain in _STANDARD}
    return all(since_version(name, own) == since_version(name, version) for name in names)
