"""The calls of the file that a fused call stands for, and the numbers in them."""

from __future__ import annotations

from collections.abc import Iterator

from ..values.values import Call


def flat_parts(call: Call) -> Iterator[Call]:
    """The calls of the file that a call stands for: itself, if it is none of several."""
    if not call.parts:
        yield call
    for part in call.parts:
        yield from flat_parts(part)


def epsilon_of(call: Call, default: float) -> float | None:
    """The epsilon of a norm, or the number that its formula adds to the variance; None if that is not found."""
    if not call.parts:
        return float(call.attributes.get("epsilon", default))  # type: ignore[arg-type]
    for part in flat_parts(call):
        if part.op_type == "InstanceNormalization":
            return float(part.attributes.get("epsilon", 1e-5))  # type: ignore[arg-type]
        maker = part.inputs[0].producer if part.inputs and part.inputs[0] is not None else None
        if part.op_type in ("Sqrt", "Pow") and maker is not None and maker.op_type == "Add":
            for operand in maker.inputs:
                if operand is not None and operand.known is not None and operand.numel == 1:
                    return float(operand.known.ravel()[0])
    return None
