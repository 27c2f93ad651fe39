"""Which module of the user's model a node comes from, where the exporter recorded it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .protobuf import NodeProto


def scope_of(node: NodeProto) -> str:
    """The module path that torch's exporter recorded for a node, or nothing."""
    recorded = {entry.key: entry.value for entry in node.metadata_props}
    scopes: Iterable[object] = ()
    text = recorded.get("pkg.torch.onnx.name_scopes", "")
    if text and len(text) < 10_000:
        try:
            parsed = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            parsed = ()
        scopes = parsed if isinstance(parsed, list) else ()
    elif "namespace" in recorded:
        scopes = [part.split(":")[0].strip() for part in recorded["namespace"].split("/")]
    modules = [scope for scope in scopes if isinstance(scope, str)][:-1]
    return modules[-1] if modules else ""
