"""Plan -> plan file: JSON as its schema describes it, deterministic and written atomically."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import StorageError
from ..schedule import Step, StepKind
from ..training_graph import TrainingGraph
from .execution_json import execution_data
from .record import FORMAT, RANDOM_STATE_SUFFIX, VERSION, Plan


def _step_name(graph: TrainingGraph, step: Step) -> str:
    if step.random_state:
        return graph.ops[step.index].name + RANDOM_STATE_SUFFIX
    return graph.storages[step.index].name if step.kind is StepKind.FREE else graph.ops[step.index].name


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data, keys as in the schema of its version."""
    graph, timeline = plan.graph, plan.timeline
    names = [storage.name for storage in graph.storages]
    gradients = [gradient.name for gradient in graph.gradients]
    ops = []
    for op, cost in zip(graph.ops, plan.costs, strict=True):
        backward = op.backward and {
            "reads": [names[s] for s in op.backward.reads],
            "takes": [gradients[g] for g in op.backward.takes],
            "gives": [
                [gradients[e.gradient], None if e.alias_of is None else gradients[e.alias_of]]
                for e in op.backward.gives
            ],
            "sums": [[gradients[t.result], [gradients[g] for g in t.operands]] for t in op.backward.sums],
            **({"ends": [gradients[g] for g in op.backward.ends]} if op.backward.ends else {}),
        }
        ops.append(
            {
                "name": op.name,
                "op_type": op.op_type,
                "reads": [names[s] for s in op.reads],
                "writes": [names[s] for s in op.writes],
                "random_state_nbytes": op.random_state_nbytes,
                "once": op.once,
                "backward": backward,
                **asdict(cost),
            }
        )
    return {
        "format": FORMAT,
        "version": 1 if graph.execution is None else VERSION,
        "model": {**asdict(plan.model), "dims": dict(plan.model.dims), "inputs": dict(plan.model.inputs)},
        "budget": asdict(plan.budget),
        "peak": asdict(plan.peak),
        "time": {**asdict(plan.time), "overhead": round(plan.time.overhead, 9)},
        "certificate": {**asdict(plan.certificate), "gap": round(plan.gap, 9)},
        "stationary": asdict(graph.stationary),
        "keep": list(plan.kept),
        "recompute": plan.recomputed,
        "schedule": [[step.kind.value, _step_name(graph, step)] for step in plan.schedule],
        "timeline": {
            "total_nbytes": list(timeline.total_nbytes),
            "activation_nbytes": list(timeline.activation_nbytes),
            "after_nbytes": list(timeline.after_nbytes),
        },
        "storages": [
            {"name": storage.name, "nbytes": storage.nbytes, "aliases": list(graph.aliases[i] if graph.aliases else ())}
            for i, storage in enumerate(graph.storages)
        ],
        "gradients": [{"name": g.name, "nbytes": g.nbytes, "parameter": g.parameter} for g in graph.gradients],
        "outputs": [names[s] for s in graph.outputs],
        "seeds": [gradients[g] for g in graph.seeds],
        "ops": ops,
        "modules": dict(plan.modules),
        **({} if graph.execution is None else {"execution": execution_data(graph.execution)}),
    }


def dumps(plan: Plan) -> str:
    """The plan as text, as `one_key_per_line` writes it."""
    return one_key_per_line(to_json(plan), ensure_ascii=False)


def one_key_per_line(data: dict[str, Any], *, ensure_ascii: bool = True) -> str:
    """JSON with one top-level key per line, lists of objects and lists with one entry per line."""
    lines = []
    for key, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            body = ",\n  ".join(json.dumps(entry, ensure_ascii=ensure_ascii) for entry in value)
            text = f"[\n  {body}\n ]"
        else:
            text = json.dumps(value, ensure_ascii=ensure_ascii)
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the plan to ``path`` atomically, with gzip if it ends in .gz.

    Raises StorageError if the folder or the disk refuses; an existing file is then unchanged.
    """
    content = dumps(plan).encode("utf-8", "surrogatepass")
    if Path(path).name.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    write_whole(content, path, "plan ")


def write_whole(content: bytes | Iterable[bytes], path: str | os.PathLike[str], what: str = "") -> None:
    """Write a file atomically, from its bytes or their pieces in turn; errors put ``what`` before its path.

    Raises what `write_plan` raises.
    """
    target = Path(path)
    temporary = None
    if target.exists() and not target.is_file():
        raise StorageError(f"cannot write {what}{str(target)!r}: it is not a file", remedy="choose another -o path")
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:80]}.", suffix=".tmp", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise StorageError(
            f"cannot write {what}{str(target)!r}: {error.strerror or error}", remedy="choose another -o path"
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
