"""The inputs of a model and their shapes: symbolic dimensions bound, shapes replaced, the batch changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps as quoted
from shlex import quote

from ...errors import InvalidModelError, UnboundDimensionError, UnsupportedOpError, UsageError
from ...units import counted
from ..document.protobuf import GraphProto, ValueInfoProto, dtype_name
from ..document.subgraphs import all_nodes, constant_names
from ..document.unsupported_ops import EXPORT_AGAIN

Dimension = int | str | None  # a number, a symbol, or nothing at all


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """An input as the file declares it; ``dims`` is None if the file gives no shape.

    ``unknown`` are the sizes that are no size, 0 or less, by their dimension.
    """

    name: str
    dtype: str
    dims: tuple[Dimension, ...] | None
    unknown: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BoundInputs:
    """Static input shapes; ``rebatch`` is (old, new) if a static batch was changed, from ``shapes_before``."""

    shapes: dict[str, tuple[int, ...]]
    shapes_before: dict[str, tuple[int, ...]]
    dims: tuple[tuple[str, int], ...]
    rebatch: tuple[int, int] | None


def bind_inputs(
    declared: Sequence[DeclaredInput],
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    batch: int | None,
) -> BoundInputs:
    """Give every input a static shape.

    ``dims`` binds symbols. ``shapes`` replaces whole shapes and binds the symbols in them. ``batch`` replaces the
    leading dimension of every input that starts with the old batch. Raises UsageError for names that do not exist and
    for values that contradict one another, and UnboundDimensionError for a dimension without a value.
    """
    symbols = dict.fromkeys(dim for entry in declared for dim in entry.dims or () if isinstance(dim, str))
    bound = dict(dims)
    for name, value in bound.items():
        if name not in symbols:
            raise UsageError(
                f"the model has no dimension {quoted(name)}", remedy=_choices("symbolic dimensions", symbols)
            )
        _positive(value, f"dimension {quoted(name)}")
    current = {entry.name: entry.dims for entry in declared}
    for name, shape in shapes.items():
        current[name] = _replace(name, shape, current, bound)
    main = _main_input(declared)
    if batch is not None:
        _positive(batch, "the batch")
        if main is None:
            raise UsageError("the model has no input whose batch could be changed", remedy="leave --batch out")
        _rebatch(main, batch, current, bound, shapes)
    _check_bound(current, bound, main)
    unknown = {entry.name: entry.unknown for entry in declared}
    resolved = {name: _resolve(name, entry, bound, unknown[name]) for name, entry in current.items()}
    used = tuple((symbol, bound[symbol]) for symbol in symbols if symbol in bound)
    rebatch = None
    if main is not None and main.dims:
        old, new = main.dims[0], resolved[main.name][0]
        rebatch = (old, new) if isinstance(old, int) and old != new else None
    before = dict(resolved)
    if rebatch is not None:
        for entry in declared:
            if entry.dims and (entry.dims[0], resolved[entry.name][0]) == rebatch:
                before[entry.name] = (rebatch[0], *resolved[entry.name][1:])
    return BoundInputs(resolved, before, used, rebatch)


def _main_input(declared: Sequence[DeclaredInput]) -> DeclaredInput | None:
    """The input that carries the batch: the first float input of rank two or more, else the first of all."""
    ranked = [entry for entry in declared if entry.dims]
    floats = [
        entry
        for entry in ranked
        if entry.dtype.startswith(("float", "bfloat")) and entry.dims is not None and len(entry.dims) >= 2
    ]
    return next(iter(floats or ranked), None)


def _replace(
    name: str, shape: tuple[int, ...], current: Mapping[str, tuple[Dimension, ...] | None], bound: dict[str, int]
) -> tuple[Dimension, ...]:
    if name not in current:
        raise UsageError(f"the model has no input {quoted(name)}", remedy=_choices("inputs", current))
    declared = current[name]
    for size in shape:
        if size != 0:  # an empty tensor is allowed
            _positive(size, f"a dimension of input {quoted(name)}")
    if declared is None:
        return tuple(shape)
    if len(declared) != len(shape):
        shown = "x".join("?" if dim is None else str(dim) for dim in declared) or "a scalar"
        raise UsageError(
            f"input {quoted(name)} has {counted(len(declared), 'dimension')} ({shown}), not {len(shape)}",
            remedy="give one size per dimension",
        )
    for dim, size in zip(declared, shape, strict=True):
        if isinstance(dim, str):
            _bind(dim, size, bound, f"input {quoted(name)}")
    return tuple(shape)


def _rebatch(
    main: DeclaredInput,
    batch: int,
    current: dict[str, tuple[Dimension, ...] | None],
    bound: dict[str, int],
    replaced: Mapping[str, tuple[int, ...]],
) -> None:
    """Replace the old batch by ``batch``; a shape that the user gave must agree with it."""
    assert main.dims
    old = main.dims[0]
    if main.name in replaced and replaced[main.name][0] != batch:
        raise UsageError(
            f"the batch {batch} contradicts the shape given for input {quoted(main.name)}",
            remedy="give the batch once, with --batch or with --shape",
        )
    if isinstance(old, str):
        _bind(old, batch, bound, "the batch")
        return
    for name, dims in current.items():
        if dims and name not in replaced and type(dims[0]) is type(old) and dims[0] == old:
            current[name] = (batch, *dims[1:])


def _bind(symbol: str, size: int, bound: dict[str, int], by: str) -> None:
    if bound.setdefault(symbol, size) != size:
        raise UsageError(
            f"{by} makes dimension {quoted(symbol)} {size}, but it is bound to {bound[symbol]}",
            remedy="give each dimension one value",
        )


def _check_bound(
    current: Mapping[str, tuple[Dimension, ...] | None], bound: Mapping[str, int], main: DeclaredInput | None
) -> None:
    """Raise UnboundDimensionError for the first symbol without a value; the remedy has an option for each one."""
    batch = main.dims[0] if main is not None and main.dims else None
    owner: dict[str, str] = {}
    for name, dims in current.items():
        for dim in dims or ():
            if isinstance(dim, str) and dim not in bound and None not in (dims or ()):
                owner.setdefault(dim, name)
    for dim, name in owner.items():
        options = (f"--dim {quote(f'{other}={8 if other == batch else 512}')}" for other in owner)
        raise UnboundDimensionError(
            f"dimension {quoted(dim)} of input {quoted(name)} is not bound", remedy=f"pass {' '.join(options)}"
        )


def _resolve(
    name: str, dims: tuple[Dimension, ...] | None, bound: Mapping[str, int], unknown: Mapping[int, int]
) -> tuple[int, ...]:
    if dims is None:
        raise UnboundDimensionError(
            f"input {quoted(name)} has no shape", remedy=f"pass --shape {quote(name)}=8x64 with as many sizes as it has"
        )
    if None in dims:
        sizes = "x".join(str(unknown.get(axis, "?") if other is None else other) for axis, other in enumerate(dims))
        first = dims.index(None)
        what, sizes_of = "has neither a size nor a name", "with your sizes"
        if first in unknown:
            what = f"is {unknown[first]}, which exporters write for a size that they do not know"
            sizes_of += ", 0 if it is empty"
        raise UnboundDimensionError(
            f"dimension {first} of input {quoted(name)} ({sizes}) {what}",
            remedy=f"pass --shape {quote(name)}={'x'.join(_example(other, bound) for other in dims)} {sizes_of}",
        )
    return tuple(bound[dim] if isinstance(dim, str) else dim for dim in dims if dim is not None)


def _example(dim: Dimension, bound: Mapping[str, int]) -> str:
    return str(bound.get(dim, 64) if isinstance(dim, str) else dim or 64)


def _positive(size: int, what: str) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**40:
        raise UsageError(f"{what} is {size!r}", remedy=f"give a whole number from 1 to {2**40 - 1}")


def _choices(what: str, names: Iterable[str]) -> str:
    listed = ", ".join(quoted(name) for name in names)
    return f"its {what} are {listed}" if listed else f"it has no {what}"


def read_inputs(
    graph: GraphProto, constants: frozenset[str]
) -> tuple[list[DeclaredInput], dict[str, UnsupportedOpError]]:
    """The inputs that are not initializers; files of IR version 3 list those, too.

    An input that is no tensor of numbers is refused if a node reads it: the second result has its error.
    """
    declared: list[DeclaredInput] = []
    refused: dict[str, UnsupportedOpError] = {}
    for entry in graph.input:
        if entry.name in constants:
            continue
        try:
            sizes = enumerate(entry.type.tensor_type.shape.dim)
            unknown = {axis: dim.dim_value for axis, dim in sizes if dim.HasField("dim_value") and dim.dim_value < 1}
            declared.append(DeclaredInput(entry.name, _input_dtype(entry), _dims(entry), unknown))
        except UnsupportedOpError as error:
            refused[entry.name] = error
    return declared, refused


def _input_dtype(entry: ValueInfoProto) -> str:
    where = f"input {quoted(entry.name)}"
    kind = entry.type.WhichOneof("value")
    if kind is None or (kind == "tensor_type" and not entry.type.tensor_type.elem_type):
        raise InvalidModelError(f"{where} has no type", remedy=EXPORT_AGAIN)
    if kind != "tensor_type":
        raise UnsupportedOpError(f"{where} is a {kind.removesuffix('_type')}", remedy="only tensors can be planned")
    return dtype_name(entry.type.tensor_type.elem_type, where)


def _dims(entry: ValueInfoProto) -> tuple[int | str | None, ...] | None:
    """The declared dimensions; exporters write 0, -1 or "?" for an unknown size."""
    if not entry.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        (None if dim.dim_param in ("", "?") else dim.dim_param)
        if dim.WhichOneof("value") != "dim_value"
        else (dim.dim_value if dim.dim_value > 0 else None)
        for dim in entry.type.tensor_type.shape.dim
    )


def tensor_names(graph: GraphProto) -> frozenset[str]:
    """The names of all values in the graph and its subgraphs."""
    names = {name for node in all_nodes(graph.node) for name in (*node.input, *node.output)}
    return frozenset(names | {entry.name for entry in graph.input} | constant_names(graph))
