"""The modules that a file's model calls, as torch's exporter recorded them on each node.

A list of modules is part of a path but is never called, so it cannot be wrapped.
"""

from __future__ import annotations

import ast
import os

from ...planner.onnx_import.document.model_file import open_model

_SCOPES = "pkg.torch.onnx.name_scopes"
_LONGEST = 10_000


def called_modules(path: str | os.PathLike[str]) -> frozenset[str]:
    """The paths of the modules that the file's model calls, without the model itself.

    Raises StorageError or InvalidModelError if the file cannot be read.
    """
    model = open_model(path)
    called: set[str] = set()
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        for entry in node.metadata_props:
            if entry.key == _SCOPES:
                called.update(_scopes(entry.value))
    return frozenset(called - {""})


def _scopes(text: str) -> list[str]:
    """The modules around a node, outermost first; the last entry is the node itself."""
    if len(text) > _LONGEST:
        return []
    try:
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return [scope for scope in parsed[:-1] if isinstance(scope, str)] if isinstance(parsed, list) else []
