"""The numbers of a file's constants and parameters."""

from __future__ import annotations

from json import dumps as quoted
from pathlib import Path

import numpy as np

from ...errors import UnsupportedOpError
from .constant_folding import Array, array_of
from .values import Call, Value


def stored_array(value: Value, folder: Path) -> Array:
    """The values of a leaf, external data included, or those that the reader computed.

    Raises InvalidModelError where they cannot be read, and UnsupportedOpError for a constant that has the batch of the
    file and is another for each sample.
    """
    if isinstance(value.source, Call):
        fill = value.source.attributes.get("value", (0,))
        assert isinstance(fill, tuple)
        known = np.dtype(value.dtype) if value.dtype in np.sctypeDict else None
        return np.full(value.shape, fill[0], known)
    array = value.known if value.known is not None else array_of(value.source, folder, f"constant {value.name!r}")
    for axis, (old, new) in enumerate(zip(array.shape, value.shape, strict=True)):
        if old != new:
            first = array.take([0], axis)
            if not (array == first).all():
                raise UnsupportedOpError(
                    f"constant {quoted(value.name)} has {old} different entries along dimension {axis}, the batch",
                    remedy=f"use the batch of the file, or export the model at batch {new}",
                )
            array = first.repeat(new, axis)
    return array
