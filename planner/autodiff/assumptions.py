"""What is assumed about the parameters of a bare file, and where gradients end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json import dumps as quoted

from ..errors import OgcPlanError, UnsupportedOpError, UsageError
from ..graph import Graph, Op, Role, Tensor
from ..onnx_import.meaning.parameter_detection import INPUT_SCALING, weight_slots
from ..training_graph import TrainingGraph
from ..units import percent
from .derive import trainable_parameters
from .rule_table import is_differentiable, passes_gradient

_QUANTISED = frozenset(
    "QuantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger MatMulInteger DequantizeLinear".split()
)
_FLAT = frozenset({"Round", "Floor", "Ceil", "Sign", "Bernoulli"})
"""Ops whose gradient is zero wherever they have one."""

_REPORTED_SHARE = 0.1
_REMEDY_OUTPUT = "export the model with the floating-point result before that node as its output"
_REMEDY_QUANTISED = "plan the floating-point model that this one was quantised from"
_STATISTICS = {
    ("BatchNormalization", 3): "is a running mean, which training updates without a gradient",
    ("BatchNormalization", 4): "is a running variance, which training updates without a gradient",
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A floating constant that is not a parameter, its size in bytes, and why it is not trained."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Frozen:
    """A ``--frozen`` glob, the number of parameters that it freezes (after ``!``: that it trains) and their bytes."""

    glob: str
    parameters: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Stop:
    """An op type that stops gradients, how many of its ops do, and one of them."""

    op_type: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Parameters:
    """How parameters were told from other constants, and which of them get gradients.

    Attributes:
        count, elements, nbytes: All parameters.
        trained_elements: Elements of the parameters that get a gradient.
        recorded: The number of parameters that the file records as such; the others are in weight slots.
        others: The floating constants that are not trained, largest first.
        integers: The number of other constants.
        frozen, stops: What keeps gradients from parameters.
        without_gradient: Names of the parameters that no gradient reaches.
    """

    count: int
    elements: int
    trained_elements: int
    nbytes: int
    recorded: int
    others: tuple[Leaf, ...]
    integers: int
    frozen: tuple[Frozen, ...]
    stops: tuple[Stop, ...]
    without_gradient: tuple[str, ...]


def parameters_of(graph: Graph, training: TrainingGraph, frozen: tuple[str, ...]) -> Parameters:
    """The parameters of ``graph``, from which ``training`` was derived with these globs frozen."""
    leaves = dict(_leaves(graph))
    parameters = {storage: tensor for storage, tensor in leaves.items() if tensor.role is Role.PARAMETER}
    others = [tensor for tensor in leaves.values() if tensor.role is Role.BUFFER and tensor.is_float]
    trainable = trainable_parameters(graph, frozen)
    given = {gradient.name for gradient in training.gradients if gradient.parameter}
    reached = {t.storage for t in graph.tensors if t.storage in trainable and f"gradient of {t.name}" in given}
    return Parameters(
        len(parameters),
        sum(tensor.numel for tensor in parameters.values()),
        sum(parameters[storage].numel for storage in reached),
        sum(graph.storages[storage].nbytes for storage in parameters),
        sum(graph.storages[storage].name in graph.recorded for storage in parameters),
        tuple(_untrained(graph, sorted(others, key=lambda tensor: (-tensor.nbytes, tensor.name)))),
        sum(not tensor.is_float for tensor in leaves.values()),
        tuple(_frozen(graph, glob) for glob in frozen),
        _stops(graph, trainable),
        tuple(parameters[storage].name for storage in sorted(trainable - reached)),
    )


def nothing_to_train(graph: Graph, path: str, frozen: tuple[str, ...]) -> OgcPlanError:
    """The error for a file in which no parameter gets a gradient."""
    leaves = [tensor for _, tensor in _leaves(graph)]
    parameters = [tensor for tensor in leaves if tensor.role is Role.PARAMETER]
    trainable = trainable_parameters(graph, frozen)
    if parameters and not trainable:
        left = "not even the only parameter" if len(parameters) == 1 else f"none of the {len(parameters)} parameters"
        return UsageError(
            f"--frozen {' '.join(map(quoted, frozen))} leaves {left} of {path!r} to train",
            remedy="freeze fewer of them; list them with: ogc-plan show MODEL -v",
        )
    if parameters:
        stops = _stops(graph, trainable)
        where = f": it stops at {stops[0].op_type} {stops[0].example!r}" if stops else ""
        remedy = _REMEDY_QUANTISED if any(stop.op_type in _QUANTISED for stop in stops) else _REMEDY_OUTPUT
        any_of = "the only parameter" if len(trainable) == 1 else f"any of the {len(trainable)} parameters"
        return UnsupportedOpError(f"no gradient reaches {any_of} of {path!r}{where}", remedy=remedy)
    found = next(_untrained(graph, sorted((t for t in leaves if t.is_float), key=lambda t: -t.nbytes)), None)
    if found is not None:
        shape = "x".join(map(str, found.shape)) or "a scalar"
        why = f"the largest of its floating constants, {found.name!r} ({found.dtype}, {shape}), {found.reason}"
        remedy = "export the model with its weights as initializers that its ops take directly"
        if any(op.op_type in _QUANTISED for op in graph.ops):
            remedy = _REMEDY_QUANTISED
    elif leaves:
        why = f"it holds no constants but integers ({len(leaves)}), which have no gradient"
        remedy = _REMEDY_QUANTISED
    else:
        why = "it holds no constants; inputs are data and are not trained"
        remedy = "export the model with its weights as initializers"
    return UnsupportedOpError(f"{path!r} has no parameter to train: {why}", remedy=remedy)


def cut_off(graph: Graph, frozen: tuple[str, ...]) -> tuple[str, ...]:
    """A sentence if no gradient but zeros reaches more than a tenth of the elements to train, with the ops at fault."""
    trainable = trainable_parameters(graph, frozen)
    floats = [tensor.is_float for tensor in graph.tensors]
    arriving = {i for i in graph.outputs if floats[i]}
    for op in reversed(graph.ops):
        if op.op_type not in _FLAT and not arriving.isdisjoint(op.outputs):
            arriving.update(i for p in passes_gradient(op, floats) if (i := op.inputs[p]) is not None)
    cut = trainable - {graph.tensors[i].storage for i in arriving}
    if not cut:
        return ()
    elements = {storage: tensor.numel for storage, tensor in _leaves(graph) if storage in trainable}
    trained, whole = sum(elements[storage] for storage in trainable - cut), sum(elements.values())
    stops = _stops(graph, cut, lambda op: op.op_type in _FLAT or not is_differentiable(op))
    if whole - trained <= _REPORTED_SHARE * whole or not stops:
        return ()
    where = ", ".join(f"{stop.count:,} {stop.op_type} ({quoted(stop.example)})" for stop in stops[:3])
    zeros = "" if all(stop.op_type not in _FLAT for stop in stops[:3]) else ", where at most zeros pass"
    share = f"{trained:,} of {whole:,} elements of the parameters ({percent(trained / whole)})"
    return (f"gradients stop at {where}{zeros}: {share} are trained",)


def too_little_trained(graph: Graph, path: str, found: str) -> UnsupportedOpError:
    """The error, on request, for a file of whose parameters `cut_off` found too few to be trained."""
    return UnsupportedOpError(
        f"{path!r} is not trained as a whole: {found}",
        remedy=_REMEDY_QUANTISED if any(op.op_type in _QUANTISED for op in graph.ops) else
        f"{_REMEDY_OUTPUT}, or freeze what is not trained with --frozen",
    )  # fmt: skip


def _leaves(graph: Graph) -> Iterator[tuple[int, Tensor]]:
    """Storage and tensor of every constant of the file."""
    made = {output for op in graph.ops for output in op.outputs}
    seen: set[int] = set()
    for index, tensor in enumerate(graph.tensors):
        constant = tensor.role in (Role.PARAMETER, Role.BUFFER)
        if constant and index not in made and tensor.storage not in seen:
            seen.add(tensor.storage)
            yield tensor.storage, tensor


def _untrained(graph: Graph, tensors: list[Tensor]) -> Iterator[Leaf]:
    """Why each of these constants is not a parameter by the rules of `find_parameters`."""
    used: dict[int, tuple[Op, int]] = {}
    scores = {op.inputs[0] for op in graph.ops if op.op_type == "Softmax"}
    for op in graph.ops:
        for position, index in enumerate(op.inputs):
            if index is not None:
                used.setdefault(graph.tensors[index].storage, (op, position))
    for tensor in tensors:
        name, use = graph.storages[tensor.storage].name, used.get(tensor.storage)
        if name in graph.recorded:
            reason = "is recorded as a buffer by the program that wrote the file"
        elif tensor.numel == 1:
            reason = "is a single number, taken for one of a formula" if tensor.shape else "is a scalar"
        elif use is None:
            reason = "is read by no op of the step"
        elif use[0].op_type in INPUT_SCALING and use[1] < 2:
            reason = f"is input {use[1]} of {use[0].op_type} before any weight, as mean and deviation of the data are"
        elif use[0].op_type == "Add" and use[0].outputs[0] in scores:
            reason = "is added to the scores of a Softmax, as masks are"
        elif use[1] in weight_slots(use[0].op_type):
            reason = f"is computed from constants that are not trained before {use[0].op_type} takes it"
        else:
            reason = _STATISTICS.get((use[0].op_type, use[1])) or (
                f"is input {use[1]} of {use[0].op_type}, which is no place for a weight"
            )
        yield Leaf(name, tensor.dtype, tensor.shape, tensor.nbytes, reason)


def _frozen(graph: Graph, glob: str) -> Frozen:
    named = trainable_parameters(graph, ()) - trainable_parameters(graph, (glob.removeprefix("!"),))
    return Frozen(glob, len(named), sum(graph.storages[storage].nbytes for storage in named))


def _ends(op: Op) -> bool:
    return not is_differentiable(op)


def _stops(graph: Graph, trainable: frozenset[int], ends: Callable[[Op], bool] = _ends) -> tuple[Stop, ...]:
    """The op types at which values stop to depend on trained parameters, most frequent first."""
    depends = [t.role is Role.PARAMETER and t.is_float and t.storage in trainable for t in graph.tensors]
    found: Counter[str] = Counter()
    example: dict[str, str] = {}
    for op in graph.ops:
        arrives = any(i is not None and depends[i] for i in op.inputs)
        passes = arrives and not ends(op)
        for output in op.outputs:
            depends[output] = passes and graph.tensors[output].is_float
        if arrives and not any(depends[output] for output in op.outputs):
            found[op.op_type] += 1
            example.setdefault(op.op_type, op.name)
    return tuple(Stop(op_type, count, example[op_type]) for op_type, count in found.most_common())
