"""Functions of a file brought to the opset of its model: they may import another version of the standard ops."""

from __future__ import annotations

from .function_limits import calls_of
from .protobuf import FunctionProto, ModelProto, since_version
from .subgraphs import all_nodes

STANDARD = ("", "ai.onnx")


def aligned(model: ModelProto) -> tuple[ModelProto, bool]:
    """A model whose calls carry the default attributes of their functions, and which uses one opset if it can.

    The flag says whether functions remain whose standard ops have to be converted to the model's opset. Versions
    of an opset between which none of the ops used has changed are the same.
    """
    versions = {_standard_version(function) for function in model.functions} - {0}
    if versions <= {_standard_version(model)} and not any(function.attribute_proto for function in model.functions):
        return model, False
    copy = type(model)()
    copy.CopyFrom(model)
    functions = {(function.domain, function.name, function.overload): function for function in copy.functions}
    for node in calls_of(copy):
        function = functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(default for default in function.attribute_proto if default.name not in given)
    own = _standard_version(copy)
    for version in sorted({own, *versions}, reverse=True):
        if all(_unchanged(part, version) for part in (copy, *copy.functions)):
            for part in (copy, *copy.functions):
                for entry in part.opset_import:
                    if entry.domain in STANDARD:
                        entry.version = version
            return copy, False
    return copy, True


def _standard_version(part: ModelProto | FunctionProto) -> int:
    """The opset of the standard domain that a model or a function imports, 0 for none."""
    return next((entry.version for entry in part.opset_import if entry.domain in STANDARD), 0)


def _unchanged(part: ModelProto | FunctionProto, version: int) -> bool:
    """Whether the standard ops of a model or a function mean the same at another version of the opset."""
    own = _standard_version(part)
    if own in (0, version):
        return True
    nodes = part.graph.node if isinstance(part, ModelProto) else part.node
    names = {node.op_type for node in all_nodes(nodes) if node.domain in STANDARD}
    return all(since_version(name, own) == since_version(name, version) for name in names)
