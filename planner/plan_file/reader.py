"""Plan file -> Plan: untrusted JSON, checked key by key; every error names the key or the step."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..annotations import Source
from ..errors import PlanFormatError, PlanVersionError, StorageError
from ..graph import Storage
from ..json_input import refuse_constant
from ..schedule import Schedule, Step, StepKind
from ..simulate import Timeline
from ..training_graph import (
    MAX_NBYTES,
    BackwardOp,
    Gradient,
    GradientEdge,
    GradientSum,
    OpCost,
    Stationary,
    TrainingGraph,
    TrainingOp,
)
from .execution_json import read_execution
from .form import check_form
from .record import FORMAT, RANDOM_STATE_SUFFIX, VERSION, BudgetRecord, Certificate, ModelRecord, Peaks, Plan, Times

MAX_FILE_NBYTES = 512 * 2**20
CERTIFIED = "optimal"
"""The strategy that always states a bound and its class."""
_REDO = "make the plan again with: ogc-plan MODEL --budget SIZE -o plan.json"


_KINDS = {"str": str, "int": int, "bool": bool}


class _Reader:
    """Typed access to untrusted JSON; every error names the key."""

    def __init__(self, data: Mapping[str, Any], where: str = "plan") -> None:
        self.data, self.where = data, where

    def get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        value = self.data.get(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise PlanFormatError(f"{self.where}: key {key!r} is missing or not {_kind_name(kind)}", remedy=_REDO)
        if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < 2**63:
            raise PlanFormatError(f"{self.where}: key {key!r} has the impossible value {value}", remedy=_REDO)
        return value

    def child(self, key: str) -> _Reader:
        return _Reader(self.get(key, dict), f"{self.where}.{key}")

    def children(self, key: str) -> list[_Reader]:
        entries = self.get(key, list)
        for position, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise PlanFormatError(f"{self.where}.{key}[{position}] is not an object", remedy=_REDO)
        return [_Reader(entry, f"{self.where}.{key}[{i}]") for i, entry in enumerate(entries)]

    def strings(self, key: str) -> tuple[str, ...]:
        values = self.get(key, list)
        if not all(isinstance(value, str) for value in values):
            raise PlanFormatError(f"{self.where}: key {key!r} is not a list of names", remedy=_REDO)
        return tuple(values)

    def integers(self, key: str) -> tuple[int, ...]:
        values = self.get(key, list)
        if not all(type(value) is int and 0 <= value < 2**63 for value in values):
            raise PlanFormatError(f"{self.where}: key {key!r} is not a list of byte counts", remedy=_REDO)
        return tuple(values)

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.get(key, str)
        if value not in choices:
            raise PlanFormatError(f"{self.where}: key {key!r} is not one of {', '.join(choices)}", remedy=_REDO)
        return str(value)

    def optional(self, key: str, kind: type) -> Any:
        return None if self.data.get(key, 0) is None else self.get(key, kind)

    def record(self, cls: Any, **given: Any) -> Any:
        """A dataclass whose fields are keys of this object, but for those that are ``given``."""
        kinds = {field.name: str(field.type) for field in fields(cls) if field.name not in given}
        return cls(**{key: self._value(key, kind) for key, kind in kinds.items()}, **given)

    def _value(self, key: str, kind: str) -> Any:
        if kind == "tuple[str, ...]":
            return self.strings(key)
        read = self.optional if kind.endswith(" | None") else self.get
        return read(key, _KINDS[kind.removesuffix(" | None")])


def _kind_name(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    names = {dict: "an object", list: "a list", str: "a string", int: "an integer", bool: "true or false"}
    return " or ".join(names.get(k, k.__name__) for k in kinds)


def _numbered(names: list[str], what: str) -> dict[str, int]:
    table = {name: i for i, name in enumerate(names)}
    if len(table) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise PlanFormatError(f"{what} {twice!r} is listed twice", remedy=_REDO)
    return table


def _look_up(table: dict[str, int], names: tuple[str, ...], what: str, where: str) -> tuple[int, ...]:
    for name in names:
        if name not in table:
            raise PlanFormatError(f"{where} names the unknown {what} {name!r}", remedy=_REDO)
    return tuple(table[name] for name in names)


def _read_backward(part: _Reader, storage_of: dict[str, int], gradient_of: dict[str, int]) -> BackwardOp:
    def gradients(names: tuple[str, ...]) -> tuple[int, ...]:
        return _look_up(gradient_of, names, "gradient", part.where)

    edges = []
    for edge in part.get("gives", list):
        if not (isinstance(edge, list) and len(edge) == 2 and isinstance(edge[0], str)):
            raise PlanFormatError(f"{part.where}.gives is not a list of [gradient, alias]", remedy=_REDO)
        alias = None if edge[1] is None else gradients((str(edge[1]),))[0]
        edges.append(GradientEdge(gradients((edge[0],))[0], alias))
    sums = []
    for entry in part.get("sums", list):
        whole = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], list)
        if not whole or not all(isinstance(name, str) for name in entry[1]):
            raise PlanFormatError(f"{part.where}.sums is not a list of [gradient, [gradient, ...]]", remedy=_REDO)
        sums.append(GradientSum(gradients((entry[0],))[0], gradients(tuple(entry[1]))))
    return BackwardOp(
        _look_up(storage_of, part.strings("reads"), "storage", part.where),
        gradients(part.strings("takes")),
        tuple(edges),
        tuple(sums),
        gradients(part.strings("ends")) if "ends" in part.data else (),
    )


def _read_graph(
    reader: _Reader, fingerprint: str, assumed: tuple[str, ...]
) -> tuple[TrainingGraph, tuple[OpCost, ...]]:
    storages = [
        (entry.get("name", str), entry.get("nbytes", int), entry.strings("aliases"))
        for entry in reader.children("storages")
    ]
    gradients = [entry.record(Gradient, tensor="") for entry in reader.children("gradients")]
    storage_of = _numbered([name for name, _, _ in storages], "storage")
    gradient_of = _numbered([gradient.name for gradient in gradients], "gradient")
    ops, costs = [], []
    for entry in reader.children("ops"):
        backward = None
        if entry.optional("backward", dict) is not None:
            backward = _read_backward(entry.child("backward"), storage_of, gradient_of)
        ops.append(
            TrainingOp(
                entry.get("name", str),
                entry.get("op_type", str),
                _look_up(storage_of, entry.strings("reads"), "storage", entry.where),
                _look_up(storage_of, entry.strings("writes"), "storage", entry.where),
                backward,
                entry.get("random_state_nbytes", int),
                once=entry.get("once", bool),
            )
        )
        costs.append(entry.record(OpCost))
    for field in OpCost.__dataclass_fields__:
        if sum(getattr(cost, field) or 0 for cost in costs) >= MAX_NBYTES:
            raise PlanFormatError(f"plan.ops: key {field!r} adds up to {MAX_NBYTES} or more", remedy=_REDO)
    if not ops:
        raise PlanFormatError("plan.ops is empty", remedy=_REDO)
    graph = TrainingGraph(
        tuple(ops),
        tuple(Storage(name, nbytes) for name, nbytes, _ in storages),
        tuple(gradients),
        _look_up(storage_of, reader.strings("outputs"), "storage", "plan.outputs"),
        _look_up(gradient_of, reader.strings("seeds"), "gradient", "plan.seeds"),
        reader.child("stationary").record(Stationary),
        tuple(aliases for _, _, aliases in storages),
        fingerprint,
        assumed,
    )
    try:
        graph.validate()
    except ValueError as error:
        raise PlanFormatError(f"the plan's graph is inconsistent: {error}", remedy=_REDO) from error
    return graph, tuple(costs)


def _read_schedule(reader: _Reader, graph: TrainingGraph) -> Schedule:
    ops = {op.name: i for i, op in enumerate(graph.ops)}
    storages = {storage.name: i for i, storage in enumerate(graph.storages)}
    kinds = {kind.value: kind for kind in StepKind}
    steps = []
    for position, entry in enumerate(reader.get("schedule", list)):
        where = f"schedule step {position}"
        if not (isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)):
            raise PlanFormatError(f"{where} is not a pair of [kind, name]", remedy=_REDO)
        kind = kinds.get(entry[0])
        if kind is None:
            raise PlanFormatError(f"{where} has the unknown kind {entry[0]!r}", remedy=_REDO)
        name = entry[1]
        if kind is StepKind.FREE and name not in storages and name.endswith(RANDOM_STATE_SUFFIX):
            name = name[: -len(RANDOM_STATE_SUFFIX)]
            steps.append(Step(kind, _look_up(ops, (name,), "op", where)[0], random_state=True))
            continue
        table, what = (storages, "storage") if kind is StepKind.FREE else (ops, "op")
        steps.append(Step(kind, _look_up(table, (name,), what, where)[0]))
    return Schedule(tuple(steps))


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_NBYTES:
            raise PlanFormatError(f"plan {str(path)!r} is larger than {MAX_FILE_NBYTES} bytes", remedy=_REDO)
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):  # whatever its name: plans may be piped or renamed
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(MAX_FILE_NBYTES + 1)
            if len(content) > MAX_FILE_NBYTES:
                raise PlanFormatError(f"plan {str(path)!r} unpacks to more than {MAX_FILE_NBYTES} bytes", remedy=_REDO)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PlanFormatError(f"plan {str(path)!r} is a damaged gzip file: {error}", remedy=_REDO) from error
    except OSError as error:
        raise StorageError(
            f"cannot read plan {str(path)!r}: {error.strerror or error}", remedy="check the path and its permissions"
        ) from error
    return content


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file and check its form; `pipeline.check` replays it.

    Raises StorageError, PlanVersionError, or PlanFormatError, which names the key or the step.
    """
    return loads(_content(Path(path)), str(path))


def loads(content: bytes, name: str) -> Plan:
    """`read_plan` for the content of a plan file; errors call it ``name``."""
    try:
        data = json.loads(content.decode("utf-8", "surrogatepass"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise PlanFormatError(f"plan {name!r} is not JSON: {str(error)[:120]}", remedy=_REDO) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PlanFormatError(f"{name!r} is not an ogc-plan file", remedy=_REDO)
    if type(data.get("version")) is not int or not 1 <= data["version"] <= VERSION:
        raise PlanVersionError(
            f"plan version {data.get('version')!r} is unknown", remedy=f"this program reads versions 1 to {VERSION}"
        )
    check_form(data, _REDO)
    reader = _Reader(data)
    model, budget, certificate, times = (reader.child(key) for key in ("model", "budget", "certificate", "time"))
    dims, inputs = model.child("dims"), model.child("inputs")
    source = None if model.optional("annotations", dict) is None else model.child("annotations")
    record = model.record(
        ModelRecord,
        dims=tuple((name, dims.get(name, int)) for name in dims.data),
        inputs=tuple((name, inputs.integers(name)) for name in inputs.data),
        annotations=None if source is None else source.record(Source),
    )
    graph, costs = _read_graph(reader, record.fingerprint, record.assumed)
    if data["version"] > 1:
        graph = replace(graph, execution=read_execution(data.get("execution"), graph, _REDO))
    timeline = reader.child("timeline")
    schedule = _read_schedule(reader, graph)
    time = times.record(Times)
    plan = Plan(
        record,
        budget.record(BudgetRecord, scope=budget.choice("scope", ("total", "activations"))),
        graph,
        costs,
        schedule,
        Timeline(
            timeline.integers("total_nbytes"),
            timeline.integers("activation_nbytes"),
            timeline.integers("after_nbytes"),
            time.recompute_ns + time.store_all_ns,
            time.recompute_ns,
        ),
        reader.child("peak").record(Peaks),
        time,
        certificate.record(Certificate, status=certificate.choice("status", ("optimal", "feasible"))),
        tuple((name, reader.child("modules").get(name, str)) for name in reader.child("modules").data),
    )
    if plan.certificate.bound_ns > time.recompute_ns:
        raise PlanFormatError("plan.certificate: key 'bound_ns' lies above the plan's own recomputation", remedy=_REDO)
    if (plan.certificate.status == "optimal") != (plan.certificate.bound_ns == time.recompute_ns):
        raise PlanFormatError("plan.certificate: key 'status' does not follow from the bound", remedy=_REDO)
    for part, key, true in ((certificate, "gap", plan.gap), (times, "overhead", plan.time.overhead)):
        if abs(part.get(key, (int, float)) - true) > 1e-6:
            raise PlanFormatError(f"{part.where}: key {key!r} does not follow from the times", remedy=_REDO)
    proven = plan.certificate
    searched = proven.strategy == CERTIFIED and not proven.taken_over
    if not proven.bound_class.strip() and (proven.bound_ns or searched):
        raise PlanFormatError("plan.certificate: key 'bound_class' says of no plans that the bound holds", remedy=_REDO)
    runs = reader.child("recompute")
    if reader.strings("keep") != plan.kept or {op: runs.get(op, int) for op in runs.data} != plan.recomputed:
        key = "keep" if reader.strings("keep") != plan.kept else "recompute"
        raise PlanFormatError(f"plan: key {key!r} does not say what the schedule does", remedy=_REDO)
    return plan
