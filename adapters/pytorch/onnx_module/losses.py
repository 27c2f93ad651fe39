"""Losses of class labels."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .node import Node, Run, Table


def _settings(node: Node) -> dict[str, Any]:
    return {"reduction": str(node.attr("reduction", "mean")), "ignore_index": int(node.attr("ignore_index", -(2**31)))}


def _negative_log_likelihood(node: Node) -> Run:
    settings = _settings(node)
    return lambda x, labels, weight=None: F.nll_loss(x, labels.long(), weight, **settings)


def _cross_entropy(node: Node) -> Run:
    settings, count = _settings(node), len(node.call.outputs)

    def run(x: Tensor, labels: Tensor, weight: Tensor | None = None) -> Any:
        if labels.is_floating_point():  # class probabilities; they have no labels to ignore
            loss = F.cross_entropy(x, labels, weight, reduction=settings["reduction"])
            return (loss, F.log_softmax(x, 1))[:count] if count > 1 else loss
        logs = F.log_softmax(x, 1)
        return (F.nll_loss(logs, labels.long(), weight, **settings), logs)[:count]

    return run


OPS: Table = {"NegativeLogLikelihoodLoss": _negative_log_likelihood, "SoftmaxCrossEntropyLoss": _cross_entropy}
FUSED: Table = {}
