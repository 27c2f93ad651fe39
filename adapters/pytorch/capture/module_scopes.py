"""The submodule, and the call of an ONNX file, of each traced call: stored on its node under ``meta["custom"]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import fx, nn
from torch.fx.traceback import annotate
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_KEY, _CALL_KEY = "ogc_plan_scope", "ogc_plan_call"


@contextmanager
def record_scopes(module: nn.Module) -> Iterator[None]:
    """Record the submodule of every call traced inside; the path of ``module`` itself is empty."""
    paths = {id(child): path for path, child in module.named_modules()}
    entered: list[AbstractContextManager[None]] = []

    def enter(child: nn.Module, _: Any) -> None:
        if id(child) in paths:
            entered.append(annotate({_KEY: paths[id(child)]}))
            entered[-1].__enter__()

    def leave(child: nn.Module, _: Any, __: Any) -> None:
        if id(child) in paths and entered:
            entered.pop().__exit__(None, None, None)

    with register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True):
        yield


def scope_of(node: fx.Node) -> str:
    """The path of the submodule that made the call; empty for the module itself, or if unknown."""
    return str((node.meta.get("custom") or {}).get(_KEY, ""))


def within_call(name: str) -> AbstractContextManager[None]:
    """Record that what is traced inside computes the call ``name`` of an ONNX file."""
    noted: AbstractContextManager[None] = annotate({_CALL_KEY: name})
    return noted


def file_call_of(node: fx.Node) -> str:
    """The call of an ONNX file that a traced call is part of; empty if it is of none."""
    return str((node.meta.get("custom") or {}).get(_CALL_KEY, ""))
