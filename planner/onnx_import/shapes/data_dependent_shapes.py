"""Inner tensors whose shape depends on data: the user gives it, or they are refused by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from json import dumps as quoted

from ...errors import UsageError, shell_word
from ..values.consistency import shape_text
from ..values.values import Partial, Value
from .offered_sizes import SIZES, Sizes, UnknownSizesError


class DataShapes:
    """The shapes that the user gave to inner tensors whose shape depends on data."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = dict(shapes)
        self._bound: dict[str, tuple[tuple[int, ...], str]] = {}

    def given(self, name: str) -> bool:
        """Whether the user gave that tensor a shape."""
        return name in self._shapes

    def bind(
        self, name: str, dims: Partial, where: str, reason: str, like: tuple[int, ...] = (), instead: str = ""
    ) -> tuple[int, ...]:
        """The shape of a tensor of which only ``dims`` are known; ``reason`` says why.

        ``like`` is a shape that it may have if nothing is known, ``instead`` a remedy where no shape is found. Raises
        UnknownSizesError if the user gave none, and UsageError if it does not fit.
        """
        if name not in self._shapes:
            filled = [tuple(size if dim is None else dim for dim in dims) for size in SIZES] if dims else [(64, 64)]
            likely = [like] if like and (dims is None or fits(like, dims)) else []
            raise UnknownSizesError(
                f"{where}: the shape of its output {quoted(name)} {reason}",
                [Sizes(shapes={name: shape}) for shape in ((*filled, *likely) if dims else (*likely, *filled))],
                instead,
            )
        shape = self._shapes[name]
        if dims is not None and not fits(shape, dims):
            raise UsageError(
                f"--shape gives {quoted(name)} the shape {shape_text(shape)}, but {where} makes it {_shown(dims)}",
                remedy=f"pass --shape {shell_word(name)}={_example(dims)} with its sizes",
            )
        self._bound[name] = shape, reason
        return shape

    def check(self, values: Mapping[str, Value], inputs: Iterable[str]) -> None:
        """Raise UsageError for a given shape that was not used, unless the tensor has that shape anyway."""
        for name, shape in self._shapes.items():
            if name in self._bound or (name in values and values[name].shape == shape):
                continue
            if name in values:
                reason = f"but it always has shape {shape_text(values[name].shape)}"
            else:
                reason = "but it is no tensor that an output depends on"
            raise UsageError(
                f"--shape gives {quoted(name)} the shape {shape_text(shape)}, {reason}",
                remedy=bindable((*inputs, *self._bound)),
            )

    def assumed(self) -> Iterable[str]:
        """A sentence for every shape that the user gave."""
        for name, (shape, reason) in self._bound.items():
            yield f"the shape of {quoted(name)}, which {reason}, is bound to {shape_text(shape)}"


def fits(shape: tuple[int, ...], dims: tuple[int | None, ...]) -> bool:
    """Whether a shape has the sizes that are known."""
    return len(dims) == len(shape) and all(dim in (None, size) for dim, size in zip(dims, shape, strict=True))


def check_names(names: Iterable[str], tensors: Collection[str], inputs: Collection[str]) -> None:
    """Raise UsageError for a name that no tensor of the file has."""
    for name in names:
        if name not in tensors:
            raise UsageError(f"the model has no input {quoted(name)}, and no tensor either", remedy=bindable(inputs))


def bindable(names: Iterable[str]) -> str:
    """What a shape can be given to."""
    listed = ", ".join(quoted(name) for name in names)
    inputs = f"shapes can be given to {listed}" if listed else "it has no inputs"
    return f"{inputs}, and to a tensor inside whose shape depends on data"


def _example(dims: Partial) -> str:
    """A valid shape, with 64 for every size that is not known."""
    return "64x64" if dims is None else "x".join("64" if dim is None else str(dim) for dim in dims)


def _shown(dims: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"
