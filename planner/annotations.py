"""Annotations: the training graph that a framework adapter knows, inside a standard ONNX file.

The graph is JSON under one key of the model's metadata, and each ONNX node names the op that it belongs to. Storages,
gradients and ops are written in their order and referred to by index; an op is a list, see `_OP` and `_WORK`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NoReturn

from .errors import InvalidModelError
from .graph import Storage
from .json_input import refuse_constant
from .training_graph import (
    MAX_NBYTES,
    BackwardOp,
    Gradient,
    GradientEdge,
    GradientSum,
    Stationary,
    TrainingGraph,
    TrainingOp,
)

MODEL_KEY = "ogc_plan.training_graph"
NODE_KEY = "ogc_plan.op"
IN_PLACE_SUM = " += "
"""Part of the name of a gradient that is a sum written into one of its operands."""
VERSION = 1

MAX_OPS = 2**20
MAX_KERNELS = 2**20
"""The most launches of one op."""

REMEDY = "export the model again, or pass --ignore-annotations to plan the bare file"
_FIXED = ("parameter_nbytes", "buffer_nbytes", "input_nbytes")
_OP = ("name", "type", "reads", "writes", "backward", "random_state_nbytes", "once", "scope", "work")


@dataclass(frozen=True, slots=True)
class OpWork:
    """Arithmetic and traffic of one op, forward and backward: enough for a roofline of any device.

    ``traffic`` is the bytes read and written, ``kernels`` the number of launches. ``half`` says that the 16-bit rate
    applies. Workspace is that of `OpCost`. Workspace, ``forward_ns`` and ``backward_ns`` are measured on the annotated
    device; the times are 0 in an annotation without times.
    """

    forward_flops: int
    forward_traffic_nbytes: int
    forward_kernels: int
    backward_flops: int = 0
    backward_traffic_nbytes: int = 0
    backward_kernels: int = 0
    half: bool = False
    forward_workspace_nbytes: int = 0
    backward_workspace_nbytes: int = 0
    backward_activation_workspace_nbytes: int = 0
    forward_ns: int = 0
    backward_ns: int = 0


_WORK = tuple(OpWork.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Source:
    """The framework and the device that annotations are valid for: ``"torch 2.13.0"``, ``"cpu"``."""

    framework: str
    device: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """A training graph, the work of each op, and the path of the module that each op comes from, "" for none.

    ``framework`` and ``device`` are those of `Source`.
    """

    graph: TrainingGraph
    works: tuple[OpWork, ...]
    scopes: tuple[str, ...]
    framework: str
    device: str

    @property
    def timed(self) -> bool:
        """Whether its ops have measured times."""
        return any(work.forward_ns or work.backward_ns for work in self.works)


def dumps(annotation: Annotation) -> str:
    """The annotation as one line of JSON in ASCII; equal annotations give equal text.

    Left out are the bytes that the options of a plan decide, the fingerprint, the ops' indices in a forward graph and
    the positions of gradient edges. The gradients that backwards end are there, for plans of steps that accumulate.
    """
    graph = annotation.graph
    aliases = graph.aliases or tuple((storage.name,) for storage in graph.storages)
    data = {
        "version": VERSION,
        "framework": annotation.framework,
        "device": annotation.device,
        "stationary": {key: getattr(graph.stationary, key) for key in _FIXED},
        "storages": [[s.name, s.nbytes, list(names)] for s, names in zip(graph.storages, aliases, strict=True)],
        "gradients": [[gradient.name, gradient.nbytes, gradient.parameter] for gradient in graph.gradients],
        "outputs": list(graph.outputs),
        "seeds": list(graph.seeds),
        "assumed": list(graph.assumed),
        "ops": [
            [
                op.name,
                op.op_type,
                list(op.reads),
                list(op.writes),
                _backward_lists(op.backward),
                op.random_state_nbytes,
                op.once,
                scope,
                list(astuple(work)),
            ]
            for op, work, scope in zip(graph.ops, annotation.works, annotation.scopes, strict=True)
        ],
    }
    return json.dumps(data, separators=(",", ":"))


def fingerprint(graph: TrainingGraph) -> str:
    """SHA-256 over names, sizes and structure of a training graph.

    Costs, tensor aliases and assumptions do not count. What the options of a plan decide does not count: optimizer and
    accumulated gradient bytes, and the gradients that backwards end.
    """
    fields = [
        [getattr(graph.stationary, key) for key in _FIXED],
        [[storage.name, storage.nbytes] for storage in graph.storages],
        [[gradient.name, gradient.nbytes, gradient.parameter] for gradient in graph.gradients],
        graph.outputs,
        graph.seeds,
        [
            [op.name, op.op_type, op.reads, op.writes, _backward_lists(op.backward), op.random_state_nbytes, op.once]
            for op in graph.without_ends().ops
        ],
    ]
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode()).hexdigest()


def _backward_lists(backward: BackwardOp | None) -> list[Any] | None:
    """[reads, takes, [[gradient, alias or null]], [[result, [operands]]]], and the gradients that it ends, if any."""
    if backward is None:
        return None
    ends = [list(backward.ends)] if backward.ends else []
    return [
        list(backward.reads),
        list(backward.takes),
        [[edge.gradient, edge.alias_of] for edge in backward.gives],
        [[total.result, list(total.operands)] for total in backward.sums],
        *ends,
    ]


def loads(text: str) -> Annotation:
    """Read and check what `dumps` wrote; the graph's fingerprint is left empty.

    Raises InvalidModelError, which names the place, for anything that is not a consistent annotation.
    """
    try:
        data = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        _fail(f"not JSON: {str(error)[:120]}")
    if not isinstance(data, dict):
        _fail("not a JSON object")
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        _fail(f"version {str(version)[:40]!r}, this program reads version {VERSION}")
    storages = _rows(data, "storages", 3, _storage)
    gradients = _rows(data, "gradients", 3, _gradient)
    counts = len(storages), len(gradients)
    ops = _rows(data, "ops", len(_OP), lambda row, where: _op(row, where, *counts))
    if not 0 < len(ops) <= MAX_OPS:
        _fail(f"{len(ops)} ops; 1 to {MAX_OPS} can be planned")
    graph = TrainingGraph(
        tuple(op for op, _, _ in ops),
        tuple(storage for storage, _ in storages),
        tuple(gradients),
        _indices(data.get("outputs"), "outputs", len(storages)),
        _indices(data.get("seeds"), "seeds", len(gradients)),
        _stationary(data.get("stationary")),
        tuple(aliases for _, aliases in storages),
        assumed=_texts(data.get("assumed"), "assumed"),
    )
    works = tuple(work for _, work, _ in ops)
    _check_sums(graph, works)
    try:
        graph.validate()
    except ValueError as error:
        _fail(str(error))
    return Annotation(
        graph,
        works,
        tuple(scope for _, _, scope in ops),
        _text(data.get("framework"), "framework"),
        _text(data.get("device"), "device"),
    )


def _fail(what: str) -> NoReturn:
    raise InvalidModelError(f"the annotations of the file cannot be used: {what}", remedy=REMEDY)


def _rows(data: dict[str, Any], key: str, width: int, read: Callable[[list[Any], str], Any]) -> list[Any]:
    rows = data.get(key)
    if not isinstance(rows, list):
        _fail(f"{key!r} is missing or not a list")
    found = []
    for number, row in enumerate(rows):
        where = f"{key}[{number}]"
        if not isinstance(row, list) or len(row) != width:
            _fail(f"{where} is not a list of {width} entries")
        found.append(read(row, where))
    return found


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        _fail(f"{where} is missing or not a string")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        _fail(f"{where} is not a list")
    return tuple(_text(entry, where) for entry in value)


def _size(value: object, where: str, limit: int = 2**63) -> int:
    if type(value) is not int or not 0 <= value < limit:
        _fail(f"{where} is not a whole number from 0 to {limit - 1}")
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        _fail(f"{where} is not true or false")
    return value


def _indices(value: object, where: str, count: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        _fail(f"{where} is missing or not a list")
    for entry in value:
        if type(entry) is not int or not 0 <= entry < count:
            _fail(f"{where} refers to number {str(entry)[:40]} of {count}")
    return tuple(value)


def _storage(row: list[Any], where: str) -> tuple[Storage, tuple[str, ...]]:
    return Storage(_text(row[0], where), _size(row[1], where)), _texts(row[2], where)


def _gradient(row: list[Any], where: str) -> Gradient:
    return Gradient(_text(row[0], where), _size(row[1], where), _flag(row[2], where))


def _stationary(value: object) -> Stationary:
    if not isinstance(value, dict):
        _fail("'stationary' is missing or not an object")
    return Stationary(**{key: _size(value.get(key), f"stationary.{key}") for key in _FIXED})


def _op(row: list[Any], where: str, storages: int, gradients: int) -> tuple[TrainingOp, OpWork, str]:
    entry = dict(zip(_OP, row, strict=True))
    op = TrainingOp(
        _text(entry["name"], f"{where} name"),
        _text(entry["type"], f"{where} type"),
        _indices(entry["reads"], f"{where} reads", storages),
        _indices(entry["writes"], f"{where} writes", storages),
        None if entry["backward"] is None else _backward(entry["backward"], f"{where} backward", storages, gradients),
        _size(entry["random_state_nbytes"], f"{where} random_state_nbytes"),
        once=_flag(entry["once"], f"{where} once"),
    )
    return op, _work(entry["work"], f"{where} work"), _text(entry["scope"], f"{where} scope")


def _backward(value: object, where: str, storages: int, gradients: int) -> BackwardOp:
    if not isinstance(value, list) or len(value) not in (4, 5):
        _fail(f"{where} is not a list of 4 or 5 entries")
    reads, takes, gives, sums = value[:4]
    edges = []
    for gradient, alias in _pairs(gives, f"{where} gives"):
        shared = None if alias is None else _indices([alias], f"{where} gives", gradients)[0]
        edges.append(GradientEdge(_indices([gradient], f"{where} gives", gradients)[0], shared))
    totals = [
        GradientSum(_indices([result], f"{where} sums", gradients)[0], _indices(operands, f"{where} sums", gradients))
        for result, operands in _pairs(sums, f"{where} sums")
    ]
    return BackwardOp(
        _indices(reads, f"{where} reads", storages),
        _indices(takes, f"{where} takes", gradients),
        tuple(edges),
        tuple(totals),
        _indices(value[4], f"{where} ends", gradients) if len(value) == 5 else (),
    )


def _pairs(value: object, where: str) -> Sequence[tuple[object, object]]:
    if not isinstance(value, list) or not all(isinstance(entry, list) and len(entry) == 2 for entry in value):
        _fail(f"{where} is not a list of pairs")
    return [(first, second) for first, second in value]


def _work(value: object, where: str) -> OpWork:
    if not isinstance(value, list) or len(value) != len(_WORK):
        _fail(f"{where} is not a list of {len(_WORK)} entries")
    numbers = dict(zip(_WORK, value, strict=True))
    half = _flag(numbers.pop("half"), f"{where} half")
    limits = {"forward_kernels": MAX_KERNELS + 1, "backward_kernels": MAX_KERNELS + 1}
    return OpWork(
        half=half, **{key: _size(number, f"{where} {key}", limits.get(key, 2**63)) for key, number in numbers.items()}
    )


def _check_sums(graph: TrainingGraph, works: Sequence[OpWork]) -> None:
    # An optimizer and accumulation keep up to three more copies of the parameters' gradients.
    options = 3 * graph.parameter_gradient_nbytes
    for what, amounts in (
        ("sizes", [graph.sizes_nbytes, options]),
        (
            "workspaces",
            [
                w.forward_workspace_nbytes + w.backward_workspace_nbytes + w.backward_activation_workspace_nbytes
                for w in works
            ],
        ),
        ("traffic", [work.forward_traffic_nbytes + work.backward_traffic_nbytes for work in works]),
        ("times", [work.forward_ns + work.backward_ns for work in works]),
        ("flops", [work.forward_flops + work.backward_flops for work in works]),
    ):
        if sum(amounts) >= MAX_NBYTES:
            _fail(f"its {what} add up to {MAX_NBYTES} or more")
