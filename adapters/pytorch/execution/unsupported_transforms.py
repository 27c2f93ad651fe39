"""Transforms of torch under which a planned step cannot run: they would trace its calls, or bypass them."""

from __future__ import annotations

import torch

from .. import torch_private
from .attachment import InputMismatchError


def refuse_transforms() -> None:
    """Raise InputMismatchError inside torch.func's transforms, forward-mode differentiation, a trace or an export."""
    if torch_private.inside_functorch():
        found = "inside a transform of torch.func (vmap, grad, jvp, ...)"
    elif torch_private.differentiates_forward():
        found = "under forward-mode differentiation (torch.autograd.forward_ad), which it has no rule for"
    elif torch.jit.is_tracing():
        found = "inside torch.jit.trace"
    elif torch.compiler.is_exporting():
        found = "inside torch.export"
    else:
        return
    raise InputMismatchError(
        f"a planned step cannot run {found}",
        remedy="give it the module that was planned, which has the same parameters, or call .eval() before",
    )
