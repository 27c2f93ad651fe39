"""Running statistics of norms, which a training forward reads only to update them."""

from __future__ import annotations

from torch import fx

from .allocations import target_name

_TRAINING_NORMS = {
    "_native_batch_norm_legit_functional": 5,
    "_native_batch_norm_legit": 5,
    "native_batch_norm": 5,
    "cudnn_batch_norm": 5,
    "miopen_batch_norm": 5,
    "_batch_norm_with_update_functional": None,
    "_batch_norm_with_update": None,
}
"""Norm -> the argument that says whether it trains; None: always."""


def ignores_statistics(node: fx.Node) -> bool:
    """Whether a norm's result does not depend on the running statistics it reads, so that it may be recomputed."""
    name = target_name(node)
    if name not in _TRAINING_NORMS:
        return False
    flag = _TRAINING_NORMS[name]
    return flag is None or bool(node.args[flag])
