"""Batch norms that an exporter folded into the op before them: training needs them, and the file lacks them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from ...units import counted
from ..document.protobuf import GraphProto, NodeProto

_RULE = "pkg.onnxscript.rewriter.rule_name"
"""Under this key PyTorch's exporter records by which of its rules a node was made."""
_RENAMED = re.compile(r"(onnx::Conv_)?\d+")
"""What PyTorch's older exporter calls weights and biases that it computed."""
_FUSED = "_weights_fused_bn"
"""In the name of a weight that tf2onnx computed."""
_AGAIN = "; export again with ogc_plan.adapters.pytorch.export, or with "


def folded_norms(graph: GraphProto, producer: str) -> Iterable[str]:
    """A sentence for each op type that batch norms were folded into, with their number and what keeps them."""
    named = producer == "pytorch" and any("." in entry.name for entry in graph.initializer)
    found = Counter((node.op_type, remedy) for node in graph.node if (remedy := _remedy(node, named)) is not None)
    for (op_type, remedy), count in found.items():
        yield (
            f"{counted(count, 'batch norm')} {'was' if count == 1 else 'were'} folded into {op_type} by the exporter: "
            f"a training step holds more than the peaks here{remedy}"
        )


def _remedy(node: NodeProto, named: bool) -> str | None:
    """What else to export with, None for a node without a folded norm; ``named``: other weights keep their names."""
    if any(entry.key == _RULE and "FuseBatchNorm" in entry.value for entry in node.metadata_props):
        return f"{_AGAIN}optimize=False"
    weights = node.input[1:]
    if node.op_type != "Conv" or len(weights) != 2:
        return None
    if named and all(map(_RENAMED.fullmatch, weights)):
        return f"{_AGAIN}training=torch.onnx.TrainingMode.TRAINING"
    return "" if _FUSED in weights[0] else None
