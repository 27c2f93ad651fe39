"""Sessions of ONNX Runtime: which provider runs them, and under which options a step keeps its planned peak."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from json import dumps as quoted
from typing import Any

from ...planner.errors import AdapterError, InvalidModelError, StorageError, UsageError, needed

with needed("onnxruntime"):
    import onnxruntime

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def version() -> str:
    """That of the runtime."""
    found: str = onnxruntime.__version__
    return found


def chosen_provider(wanted: str | None) -> str:
    """The provider of that name, or CUDA's where the installed package has it, else the CPU's."""
    there = onnxruntime.get_available_providers()
    if wanted is None:
        return CUDA if CUDA in there else CPU
    if wanted not in there:
        raise UsageError(
            f"provider {wanted!r} is not in the installed onnxruntime", remedy=f"pass one of {', '.join(there)}"
        )
    return wanted


def device_of(provider: str) -> str:
    """The name of a provider's device."""
    return "cuda" if provider == CUDA else "cpu"


def open_session(content: bytes, name: str, provider: str, options: Mapping[str, object], threads: int) -> Any:
    """A session for a model. Raises InvalidModelError with the runtime's first line if it does not take it."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # its errors are raised, too
    settings.intra_op_num_threads = threads
    settings.enable_cpu_mem_arena = False  # it would hold more than the step does, and never give it back
    providers: Sequence[Any] = [provider] if provider == CPU else [provider, CPU]
    try:
        for key, value in options.items():
            kind = {"graph_optimization_level": "GraphOptimizationLevel", "execution_order": "ExecutionOrder"}.get(key)
            setattr(settings, key, value if kind is None else getattr(getattr(onnxruntime, kind), str(value)))
        return onnxruntime.InferenceSession(content, settings, providers=providers)
    except Exception as error:  # its own classes, which share no base but this one
        raise InvalidModelError(
            f"ONNX Runtime {onnxruntime.__version__} does not load {quoted(name)}: {_first_line(error)}",
            remedy="pip install -U onnxruntime, or onnxruntime-gpu",
        ) from None


def run_bound(session: Any, binding: Any, name: str) -> None:
    """Run what is bound. Raises StorageError if memory ran out, else AdapterError with the runtime's first line."""
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # as above
        told = f"ONNX Runtime {onnxruntime.__version__} cannot run {name}: {_first_line(error)}"
        if "allocate" in told.lower():
            raise StorageError(told, remedy="plan the model with a smaller --budget or --batch") from None
        raise AdapterError(told, remedy="look for numbers of the batch that do not fit, such as an index") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition(os.linesep)[0]


def on_device(array: Any, device: str) -> Any:
    """A value of the runtime with the numbers of an array, which it does not share."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array.copy(), device, 0)
