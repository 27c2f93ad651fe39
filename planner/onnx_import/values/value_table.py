"""The values and calls that have been read so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from json import dumps as quoted

from ...errors import InvalidModelError, OgcPlanError, OversizeError, UnsupportedOpError
from ...graph import NodePath
from ..document.protobuf import MAX_NBYTES
from .consistency import REMEDY, check_call, shape_text
from .constant_folding import Array
from .layout_copies import copied_inputs
from .values import Call, Value
from .view_ops import mark_view

MAX_RANK = 64
MAX_KNOWN_NBYTES = 2**28
"""Most bytes of values that are computed from constants and kept: real files need kilobytes."""


def check_rank(shape: Sequence[int], what: str) -> None:
    """Raise UnsupportedOpError for more dimensions than a tensor of PyTorch or NumPy can have."""
    if len(shape) > MAX_RANK:
        raise UnsupportedOpError(
            f"{what} has {len(shape)} dimensions; at most {MAX_RANK} can be planned", remedy="check the file"
        )


class ValueTable:
    """Values by name, calls in order. ``used`` are the names that nodes read, ``taken`` those that exist anywhere.

    ``sequences`` are the tensors of each sequence of known length. ``refused`` are values that cannot be planned, with
    the error that is raised if a node reads one; a value that no node reads never refuses a model.
    """

    def __init__(self, used: Iterable[str], taken: Iterable[str]) -> None:
        self.values: dict[str, Value] = {}
        self.sequences: dict[str, list[Value]] = {}
        self.refused: dict[str, OgcPlanError] = {}
        self.calls: list[Call] = []
        self._known_nbytes = 0
        self.node: NodePath = ()  # the one that is read now
        self.used = set(used)
        self._taken = set(taken) | self.used
        self._call_names: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self.values or name in self.sequences or name in self.refused

    def get(self, name: str, where: str) -> Value:
        """The tensor of that name. Raises its refusal, and UnsupportedOpError for a sequence."""
        found = self.values.get(name)
        if found is not None:
            return found
        self.raise_refusal(name)
        raise UnsupportedOpError(
            f"{where} takes {quoted(name)}, a sequence of tensors",
            remedy="only ops on sequences can read a sequence; export the model with tensors instead",
        )

    def tensors(self, name: str, where: str) -> list[Value]:
        """The tensor of that name, or all tensors of the sequence of that name."""
        return self.sequences[name] if name in self.sequences else [self.get(name, where)]

    def raise_refusal(self, name: str) -> None:
        """Raise the error of a value that cannot be planned."""
        if name in self.refused:
            raise self.refused[name]

    def inputs(self, names: Iterable[str], where: str) -> tuple[Value | None, ...]:
        """The tensors of those names; an empty name is an absent input."""
        return tuple(self.get(name, where) if name else None for name in names)

    def fresh(self, name: str) -> str:
        """A name that no value of the file has, taken from now on."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def call_name(self, name: str, prefix: str = "") -> str:
        """A name that no call has, taken from now on; ``prefix`` distinguishes two calls of one name."""
        if name in self._call_names and prefix:
            name = f"{prefix}.{name}"
        while name in self._call_names:
            name += "_"
        self._call_names.add(name)
        return name

    def keep_values(self, value: Value, array: Array) -> None:
        """Keep the values of a tensor that could be computed."""
        value.known = array
        self._known_nbytes += array.nbytes

    @property
    def full(self) -> bool:
        """Whether so many values are known that no more are computed."""
        return self._known_nbytes > MAX_KNOWN_NBYTES

    def make(self, name: str, dtype: str, shape: tuple[int, ...], where: str) -> Value:
        """Enter a new value of a node; see `enter`."""
        return self.enter(Value(name, dtype, shape), f"{where} makes")

    def enter(self, value: Value, what: str) -> Value:
        """Enter a value. Raises what `check_rank` raises, and InvalidModelError for an impossible size."""
        nbytes = value.nbytes
        if len(value.shape) > MAX_RANK or min(value.shape, default=0) < 0 or max(nbytes, value.numel) >= MAX_NBYTES:
            what = f"{what} {quoted(value.name)}"
            check_rank(value.shape, f"{what}, which")
            if min(value.shape) < 0:
                raise InvalidModelError(f"{what} of shape {shape_text(value.shape)}", remedy=REMEDY)
            raise OversizeError(f"{what} of {nbytes} bytes", remedy=REMEDY)
        self.values[value.name] = value
        return value

    def add(self, call: Call, where: str) -> None:
        """Enter a call with its outputs: set their origin and memory layout, and check the call."""
        from_input = any(value.from_input for value in call.data_inputs) or not call.deterministic
        from_file = call.deterministic and all(value.from_file for value in call.inputs if value is not None)
        for output in call.outputs:
            output.producer, output.from_input, output.from_file = call, from_input, from_file
        call.node = self.node
        check_call(call, where)
        mark_view(call)
        call.copied = copied_inputs(call)
        self.calls.append(call)

    def derive(self, op_type: str, inputs: Sequence[Value], output: Value, where: str, **attributes: object) -> Value:
        """Enter a call that the reader inserts, with one output, and return the output."""
        call = Call(self.call_name(f"{op_type}_{output.name}"), op_type, "", tuple(inputs), (output,), dict(attributes))
        self.add(call, where)
        call.node = ()
        return output
