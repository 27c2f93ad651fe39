"""Every network by name: those that are compared with a real step, and those that train by a plan."""

from __future__ import annotations

from dataclasses import replace

from models.architectures import perception, text, vision

_ALL = (*text.CASES, *vision.CASES, *perception.CASES)
_HALF = ("bert", "gpt2", "llama", "gemma2", "t5", "vit", "resnet", "unet2d_condition")

STRESSED = {case.name: case for case in _ALL if not case.compared}
COMPARED = {case.name: case for case in _ALL if case.compared}
COMPARED |= {f"{name}_bf16": replace(COMPARED[name], name=f"{name}_bf16", half=True) for name in _HALF}
