"""Checks of tensor values that no trace knows, which raise an error or go on: a planned step makes them, too."""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ...errors import HERE, TORCH

_NOT_THEIRS = (TORCH, HERE)
_CHECKS_FOR_THEM = (f"{TORCH}/distributions", f"{TORCH}/nn")
"""Code of torch that asks for the values of a user's tensors only to raise an error."""
_BETWEEN = ("TO_BOOL", "NOT_TAKEN", "NOP", "CACHE", "EXTENDED_ARG")
_GOES_ON = ("JUMP", "RETURN", "STORE", "DELETE", "YIELD", "FOR_ITER", "SEND", "SETUP", "BEFORE_WITH", "PUSH_EXC")
"""In the names of instructions after which code does more than raise."""


@dataclass(frozen=True, slots=True)
class Assertion:
    """A statement that raises unless a tensor is true, or false: what it must be, and where that is."""

    needed: bool
    place: str


def assertion() -> Assertion | None:
    """The check in the user's code that asks for a value right now; None if other code does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THEIRS):
        if frame.f_code.co_filename.startswith(_CHECKS_FOR_THEM):
            break
        frame = frame.f_back
    if frame is None:
        return None
    code = list(dis.get_instructions(frame.f_code))
    steps = [step for step in code if step.offset >= frame.f_lasti and step.opname not in _BETWEEN]
    if len(steps) < 2 or not steps[0].opname.startswith("POP_JUMP"):
        return None
    jumps_if = "_IF_TRUE" in steps[0].opname
    target = next((number for number, step in enumerate(code) if step.offset == steps[0].argval), len(code))
    place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    if _only_raises(steps[1:]):
        return Assertion(jumps_if, place)
    return Assertion(not jumps_if, place) if _only_raises(code[target:]) else None


def _only_raises(steps: list[dis.Instruction]) -> bool:
    for step in steps:
        if step.opname == "RAISE_VARARGS":
            return True
        if any(part in step.opname for part in _GOES_ON):
            return False
    return False
