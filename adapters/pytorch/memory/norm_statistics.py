"""Running statistics of norms: what reads them in name only, and so may be re-run after they have moved."""

from __future__ import annotations

from torch import fx

from .allocations import target_name

_IGNORED_STATISTICS = {
    "native_batch_norm_backward": ((3, 4), 7),
    "cudnn_batch_norm_backward": ((3, 4), None),
    "miopen_batch_norm_backward": ((3, 4), None),
    "batch_norm_backward": ((3, 4), 7),
}
"""Places of running statistics that a backward takes and, in training (the flag's place), never reads."""

_TRAINING_NORMS = {
    "_native_batch_norm_legit_functional": 5,
    "_native_batch_norm_legit": 5,
    "native_batch_norm": 5,
    "cudnn_batch_norm": 5,
    "miopen_batch_norm": 5,
    "_batch_norm_with_update_functional": None,
    "_batch_norm_with_update": None,
}
"""Norms whose training result does not depend on the running statistics they read; the flag's place."""


def drop_ignored_statistics(graph: fx.Graph) -> None:
    """Take running statistics away from training backwards, which do not read them."""
    for node in graph.nodes:
        if node.op == "call_function" and target_name(node) in _IGNORED_STATISTICS:
            places, flag = _IGNORED_STATISTICS[target_name(node)]
            if flag is None or (len(node.args) > flag and node.args[flag]):
                node.args = tuple(None if i in places else argument for i, argument in enumerate(node.args))


def ignores_statistics(node: fx.Node) -> bool:
    """Whether a forward reads running statistics only to move them."""
    name = target_name(node)
    if name not in _TRAINING_NORMS:
        return False
    flag = _TRAINING_NORMS[name]
    return flag is None or bool(node.args[flag])
