"""The inputs of a model and their shapes: symbolic dimensions bound, shapes replaced, the batch changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps as quoted

from ...errors import InvalidModelError, UnsupportedOpError, UsageError, shell_word
from ...units import counted
from ..document.protobuf import GraphProto, ValueInfoProto, dtype_name
from ..document.subgraphs import all_nodes, constant_names
from ..document.unsupported_ops import EXPORT_AGAIN
from .derived_dimensions import Formula, formula
from .input_hints import Template
from .offered_sizes import COMMON, Sizes, UnboundSizesError

_EMPTY = ", 0 if it is empty"
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
    template_of: Callable[[str], Template | None] = lambda _: None,
) -> BoundInputs:
    """Give every input a static shape.

    ``dims`` binds symbols. ``shapes`` replaces whole shapes and binds the symbols in them. ``batch`` replaces the
    leading dimension of every input that starts with the old batch. ``template_of`` says what the weights know of an
    input's shape, for the sizes that an error offers. Raises UsageError for names that do not exist and for values that
    contradict one another, and UnboundSizesError for a dimension without a value.
    """
    named = dict.fromkeys(dim for entry in declared for dim in entry.dims or () if isinstance(dim, str))
    formulas = {text: found for text in named if (found := formula(text, named)) is not None}
    symbols = dict.fromkeys((*named, *(name for found in formulas.values() for name in found.names)))
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
    main = _main_input(declared, formulas)
    if batch is not None:
        _positive(batch, "the batch")
        if main is None:
            raise UsageError("the model has no input whose batch could be changed", remedy="leave --batch out")
        _rebatch(main, batch, current, bound, shapes)
    _derive(formulas, bound)
    _check_bound(current, bound, main, formulas, template_of)
    unknown = {entry.name: entry.unknown for entry in declared}
    resolved = {name: _resolve(name, entry, bound, template_of, unknown[name]) for name, entry in current.items()}
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


def _derive(formulas: Mapping[str, Formula], bound: dict[str, int]) -> None:
    """Bind the dimensions that follow from bound ones, and the names that follow from bound formulas."""
    for text, entry in formulas.items():
        found = entry.solved(bound[text], bound) if text in bound else None
        if found is not None:
            name = next(name for name in entry.names if name not in bound)
            if found < 1:
                raise UsageError(
                    f"dimension {quoted(text)} cannot be {bound[text]}: no size of {quoted(name)} makes it that",
                    remedy=f"pass --dim {shell_word(name)}=N, from which it follows",
                )
            bound[name] = found
    for text, entry in formulas.items():
        if any(name not in bound for name in entry.names):
            continue
        size, by = entry.value(bound), " and ".join(f"{name}={bound[name]}" for name in entry.names)
        if size is None:
            raise UsageError(
                f"dimension {quoted(text)} is no whole number with {by}", remedy="give its names other sizes"
            )
        if text not in bound:
            _positive(size, f"dimension {quoted(text)}, with {by},")
        _bind(text, size, bound, by)


def _main_input(declared: Sequence[DeclaredInput], formulas: Mapping[str, Formula]) -> DeclaredInput | None:
    """The input that carries the batch: the first float input of rank two or more, else the first of all.

    One that begins with a formula, as twice the batch, does so only if all do.
    """
    ranked = [entry for entry in declared if entry.dims]
    ranked = [entry for entry in ranked if entry.dims is not None and entry.dims[0] not in formulas] or ranked
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
    current: Mapping[str, tuple[Dimension, ...] | None],
    bound: Mapping[str, int],
    main: DeclaredInput | None,
    formulas: Mapping[str, Formula],
    template_of: Callable[[str], Template | None],
) -> None:
    """Raise UnboundSizesError for the first symbol without a value; its offers have a value for each one."""
    batch = main.dims[0] if main is not None and main.dims else None
    owner: dict[str, str] = {}
    wanted: dict[str, int] = {}
    for name, dims in current.items():
        if None in (dims or ()):
            continue
        template = None
        for place, dim in enumerate(dims or ()):
            if isinstance(dim, str) and dim not in bound:
                template = template or _aligned(template_of(name), len(dims or ()))
                size = template[place]
                if size is not None and dim not in formulas:
                    wanted.setdefault(dim, size)
                for symbol in formulas[dim].names if dim in formulas else (dim,):
                    if symbol not in bound:
                        owner.setdefault(symbol, name)
    for symbol, name in owner.items():
        offers = [
            Sizes({other: wanted.get(other, first if other == batch else size) for other in owner})
            for first, size in COMMON
        ]
        raise UnboundSizesError(f"dimension {quoted(symbol)} of input {quoted(name)} is not bound", offers)


def _aligned(template: Template | None, rank: int) -> Template:
    """What is known of a shape of that rank; a template of another rank, as of a matrix, is about the last sizes."""
    if template is not None and len(template) == rank:
        return template
    return (*[None] * (rank - 1), template[-1] if template else None) if rank else ()


def _resolve(
    name: str,
    dims: tuple[Dimension, ...] | None,
    bound: Mapping[str, int],
    template_of: Callable[[str], Template | None],
    unknown: Mapping[int, int],
) -> tuple[int, ...]:
    if dims is None:
        known = template_of(name)
        templates = [(None, None), (None, 3, None, None), (None, None, None), (None,)] if known is None else [known]
        offers = [Sizes(shapes={name: _filled(each, *sizes)}) for sizes in COMMON for each in templates]
        raise UnboundSizesError(f"input {quoted(name)} has no shape", offers)
    if None in dims:
        sizes = "x".join(str(unknown.get(axis, "?") if other is None else other) for axis, other in enumerate(dims))
        first = dims.index(None)
        what, ending = "has neither a size nor a name", ""
        if first in unknown:
            what, ending = f"is {unknown[first]}, which exporters write for a size that they do not know", _EMPTY
        known = _aligned(template_of(name), len(dims))
        given = tuple(
            at if dim is None else bound.get(dim, at) if isinstance(dim, str) else dim
            for dim, at in zip(dims, known, strict=True)
        )
        raise UnboundSizesError(
            f"dimension {first} of input {quoted(name)} ({sizes}) {what}",
            [Sizes(shapes={name: _filled(given, *sizes)}) for sizes in COMMON],
            ending,
        )
    return tuple(bound[dim] if isinstance(dim, str) else dim for dim in dims if dim is not None)


def _filled(template: Template, batch: int, size: int) -> tuple[int, ...]:
    """A shape with ``batch`` in front and ``size`` elsewhere, but for the sizes that are known."""
    return tuple(known or (size if place else batch) for place, known in enumerate(template))


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
