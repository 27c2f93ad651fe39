"""What the weights of the ops that read an input say about its shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..document.protobuf import GraphProto, NodeProto

Template = tuple[int | None, ...]
"""A shape of which some sizes are known."""

_DEPTH = 6
_SAME_SHAPE = frozenset({"Identity", "Cast", "Relu", "Dropout", "Add", "Sub", "Mul", "Div", "Sigmoid", "Tanh"})
_RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}


class InputHints:
    """The shapes that the inputs of a graph must have for its weights, whose ``shapes`` are given by name."""

    def __init__(self, graph: GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._sizes = shapes
        self._readers: dict[str, list[tuple[NodeProto, int]]] = {}
        for node in graph.node:
            for position, name in enumerate(node.input):
                self._readers.setdefault(name, []).append((node, position))

    def template(self, name: str) -> Template | None:
        """What is known of a value's shape; None if nothing is."""
        return next(self._templates(name, _DEPTH), None)

    def _templates(self, name: str, depth: int) -> Iterator[Template]:
        for node, position in self._readers.get(name, ()) if depth else ():
            weights = [self._sizes.get(read) for read in node.input]
            found = _wanted(node, position, weights)
            if found is not None:
                yield found
            elif node.op_type in _SAME_SHAPE and node.output and all(len(size or ()) <= 1 for size in weights):
                yield from self._templates(node.output[0], depth - 1)
            elif node.op_type in ("Slice", "Split") and position == 0 and node.output:  # as states of layers, in front
                yield from ((None, *made[1:]) for made in self._templates(node.output[0], depth - 1))
            elif node.op_type == "Transpose" and node.output:
                order = next((list(entry.ints) for entry in node.attribute if entry.name == "perm"), None)
                for made in self._templates(node.output[0], depth - 1):
                    if order is None or sorted(order) == list(range(len(made))):
                        places = order if order is not None else list(range(len(made)))[::-1]
                        known: Mapping[int, int | None] = dict(zip(places, made, strict=True))
                        yield tuple(known[place] for place in range(len(made)))


def _wanted(node: NodeProto, position: int, weights: list[tuple[int, ...] | None]) -> Template | None:
    """The shape that an op's input must have by the shapes of its weights."""
    kind = node.op_type
    weight = weights[1] if len(weights) > 1 else None
    if kind in _RECURRENT and weight is not None and len(weight) == 3:
        directions, hidden = weight[0], weight[1] // _RECURRENT[kind]
        if position == 0:
            return None, None, weight[2]
        if position == 4:
            return (None,)
        return (directions, None, hidden) if position in (5, 6) else None
    if kind in ("Gather", "GatherElements") and position == 1 and weights[0] is not None:
        return None, None
    if position != 0 or weight is None:
        return None
    if kind in ("Conv", "ConvTranspose") and len(weight) > 2:
        groups = next((entry.i for entry in node.attribute if entry.name == "group"), 1)
        return (
            None,
            weight[0 if kind == "ConvTranspose" else 1] * (1 if kind == "ConvTranspose" else groups),
            *([None] * (len(weight) - 2)),
        )
    if kind == "Gemm" and len(weight) == 2:
        transposed = next((entry.i for entry in node.attribute if entry.name == "transB"), 0)
        return None, weight[1 if transposed else 0]
    if kind == "MatMul" and len(weight) == 2:
        return None, weight[0]
    return None
