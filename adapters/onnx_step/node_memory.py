"""The bytes that the nodes of a step hold when they run one by one in the order of the file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ...planner.onnx_import.document.protobuf import NodeProto

_SHARING = frozenset({"Reshape", "Identity"})
"""Ops whose result is their first input under another shape."""
_IN_PLACE = frozenset(
    "Clip Elu HardSigmoid LeakyRelu Relu ScatterElements Selu Sigmoid Softmax Softplus Softsign Tanh".split()
)
"""Ops that write their result over an input of the same size that nothing reads after them."""


@dataclass(frozen=True, slots=True)
class NodePeak:
    """Most bytes that are alive at once, without what lives all step, and the node that runs then."""

    nbytes: int
    node: str


def node_peak(nodes: Iterable[NodeProto], nbytes: Mapping[str, int], lasting: Collection[str]) -> NodePeak:
    """Replay nodes in their order; results named in ``lasting`` are held to the end.

    ``nbytes`` has the size of each result. Scratch memory of kernels is not counted.
    """
    listed = list(nodes)
    holder: dict[str, str] = {}  # result -> the result whose memory it is in
    for node in listed:
        for name in node.output:
            shares = node.op_type in _SHARING and node.input[0] in nbytes
            holder[name] = holder.get(node.input[0], node.input[0]) if shares else name
    last: dict[str, int] = {}
    for at, node in enumerate(listed):
        for name in node.input:
            last[holder.get(name, name)] = at
    for name in lasting:
        last[holder.get(name, name)] = len(listed)
    alive: dict[str, int] = {}
    now, peak = 0, NodePeak(0, "")
    for at, node in enumerate(listed):
        inputs = {holder.get(name, name) for name in node.input}
        ending = [name for name in inputs if name in alive and last[name] == at]
        reused = 0
        made = [name for name in node.output if name and holder[name] == name]
        for name in made:
            alive[name] = nbytes[name]
            now += nbytes[name]
        if node.op_type in _IN_PLACE and made:
            reused = next((alive[name] for name in ending if alive[name] == nbytes[made[0]]), 0)
        if now - reused > peak.nbytes:
            peak = NodePeak(now - reused, node.name)
        for name in (*ending, *(name for name in made if name not in last)):
            now -= alive.pop(name, 0)
    return peak
