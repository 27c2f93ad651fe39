"""Python's assertions on tensor values that no trace knows: a planned step makes them, as eager training does."""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

_NOT_THEIRS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_RAISES = ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT")
_BETWEEN = ("TO_BOOL", "NOT_TAKEN", "NOP", "CACHE", "EXTENDED_ARG")


@dataclass(frozen=True, slots=True)
class Assertion:
    """An ``assert`` statement that asks for the truth of a tensor: what it must be, and where that is."""

    needed: bool
    place: str


def assertion() -> Assertion | None:
    """The assertion in the user's code that asks for a value right now; None if other code does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THEIRS):
        frame = frame.f_back
    if frame is None:
        return None
    steps = [step for step in dis.get_instructions(frame.f_code) if step.offset >= frame.f_lasti]
    steps = [step for step in steps if step.opname not in _BETWEEN]
    if len(steps) < 2 or not steps[0].opname.startswith("POP_JUMP"):
        return None
    jumps_if = "_IF_TRUE" in steps[0].opname
    target = next((step for step in dis.get_instructions(frame.f_code) if step.offset == steps[0].argval), steps[0])
    place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    if _raises(steps[1]):
        return Assertion(jumps_if, place)
    return Assertion(not jumps_if, place) if _raises(target) else None


def _raises(step: dis.Instruction) -> bool:
    return step.opname in _RAISES and "Assert" in (step.argrepr or "AssertionError")
