"""Times of the ops of a bare model: ONNX Runtime's profiler for the forward, calibrated ratios for the backward."""

from __future__ import annotations

import json
import os
import tempfile
import time
from json import dumps as quoted
from pathlib import Path

from ...planner.costs.backward_ratios import backward_times
from ...planner.costs.profile import OpTimes, StepProfile
from ...planner.model import Model
from ...planner.units import counted
from ..onnx_step.forward_file import ForwardFile, forward_file
from ..onnx_step.step_file import SESSION
from .session import CPU, on_device, open_session, run_bound, version

_SUFFIX = "_kernel_time"
_LONG_S = 20.0
"""No further run is begun after so long."""


def profile(model: Model, path: str, *, rounds: int = 5, threads: int = 0) -> StepProfile:
    """Measure the forward of a bare model on the CPU op by op, and estimate its backward.

    The time of an op is that of the shortest of its runs. That of its backward is a multiple of it, as PyTorch takes on
    networks (`backward_ratios`). Workspace is the planner's estimate.

    Args:
        model: what `load_model` read, without annotations.
        path: its file.
        rounds: how often the forward runs, after a first run that is not counted.
        threads: threads of one op, 0 for as many as there are cores.

    Returns:
        The times, for `load_model` and ``--profile``.

    Raises:
        UnsupportedOpError: the model has annotations.
        InvalidModelError: ONNX Runtime does not load it.
        AdapterError, StorageError: a run fails, or memory runs out.
    """
    written = forward_file(model, path)
    took = _took(written, Path(path).name, rounds, threads)
    forward = [round(sum(took.get(name, 0.0) for name in names)) for names in written.nodes]
    assert model.graph is not None  # or there were no forward file
    backward = backward_times(model.graph, model.training, forward)
    ops = []
    for op, here, back, cost in zip(model.training.ops, forward, backward, model.costs, strict=True):
        most, of_activations = cost.backward_workspace_nbytes, cost.backward_activation_workspace_nbytes
        within = most if of_activations is None else of_activations
        ops.append(OpTimes(op.name, here, back, cost.forward_workspace_nbytes, most, within))
    return StepProfile(
        model.training.fingerprint,
        f"onnxruntime {version()}",
        f"cpu, {counted(threads or os.cpu_count() or 1, 'thread')}; backward by ratios",
        rounds,
        tuple(ops),
    )


def _took(written: ForwardFile, name: str, rounds: int, threads: int) -> dict[str, float]:
    """The ns of the shortest run of each node."""
    with tempfile.TemporaryDirectory(prefix="ogc-plan-") as folder:
        options: dict[str, object] = {
            **SESSION, "enable_profiling": True,
            "profile_file_prefix": os.path.join(folder, "profile"),
        }  # fmt: skip
        session = open_session(written.content, name, CPU, options, threads)
        binding = session.io_binding()
        held = {key: on_device(array, "cpu") for key, array in written.feed.items()}
        for key, value in held.items():
            binding.bind_ortvalue_input(key, value)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        begun = time.perf_counter()
        for _ in range(1 + rounds):
            run_bound(session, binding, quoted(name))
            if time.perf_counter() - begun > _LONG_S:
                break
        events = json.loads(Path(session.end_profiling()).read_text())
    runs: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            runs.setdefault(event["name"].removesuffix(_SUFFIX), []).append(1e3 * event["dur"])
    return {node: min(times[1:] or times) for node, times in runs.items()}
