"""LSTM, GRU and RNN by torch's own kernels, whose gates stand in another order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .node import Node, Run, Table

_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # torch's gates among those of ONNX
_USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


def _recurrent(node: Node) -> Run:
    kind = node.call.op_type
    first, directions = bool(node.attr("layout", 0)), node.shape(2)[0]
    steps = node.shape()[1 if first else 0]
    usual = _USUAL[kind] * directions
    named = tuple(str(name).lower() for name in node.attr("activations", usual))
    relu = kind == "RNN" and named == ("relu",) * directions
    if (named != usual and not relu) or node.attr("clip") is not None or node.has(7) or node.attr("input_forget", 0):
        raise node.refused("peepholes, a clip and activations other than the usual are not built")
    if node.has(4) and (node.known(4) != steps).any():
        raise node.refused("lengths of sequences are not built")
    early = kind == "GRU" and not node.attr("linear_before_reset", 0)
    call: Any = {
        "LSTM": torch.lstm,
        "GRU": _early_reset if early else torch.gru,
        "RNN": torch.rnn_relu if relu else torch.rnn_tanh,
    }[kind]
    backwards = str(node.attr("direction", "forward")) == "reverse"
    units, rows = node.shape(2)[-1], node.shape()[0 if first else 1]
    count, order = len(node.call.outputs), _ORDER[kind]
    biased = node.has(3)

    def turned(weight: Tensor) -> Tensor:
        gates = weight.chunk(len(order), 0)
        return torch.cat([gates[at] for at in order]) if len(order) > 1 else weight

    def run(
        x: Tensor, weights: Tensor, recurrences: Tensor, biases: Tensor | None = None, lengths: Any = None,
        state: Tensor | None = None, cell: Tensor | None = None,
    ) -> Any:  # fmt: skip
        flat = list[Tensor]()
        for at in range(directions):
            flat += [turned(weights[at]), turned(recurrences[at])]
            if biases is not None:
                flat += [turned(half) for half in biases[at].chunk(2)]
        x = x.transpose(0, 1) if first else x
        x = x.flip(0) if backwards else x
        zeros = x.new_zeros(directions, rows, units) if state is None or (kind == "LSTM" and cell is None) else x
        states = [zeros if given is None else given.transpose(0, 1) if first else given for given in (state, cell)]
        states = [given.contiguous() for given in states]
        made, *last = call(
            x, states if kind == "LSTM" else states[0], flat, biased, 1, 0.0, False, directions > 1, False
        )
        made = made.flip(0) if backwards else made
        made = made.view(steps, rows, directions, units)
        made = made.transpose(0, 1) if first else made.transpose(1, 2)
        return (made, *(entry.transpose(0, 1) if first else entry for entry in last))[:count]

    return run


def _early_reset(
    x: Tensor, state: Tensor, flat: list[Tensor], biased: bool, _layers: int, _rate: float, _training: bool, both: bool,
    _first: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A GRU that resets its state before the product, step by step: torch's kernel resets after it."""
    made, last, per = list[Tensor](), list[Tensor](), 4 if biased else 2
    for at in range(2 if both else 1):
        weight, recurrence, *biases = flat[per * at : per * (at + 1)]
        hidden, states = state[at], list[Tensor]()
        resets = recurrence.chunk(3)
        added = sum(biases) if biases else x.new_zeros(len(weight))
        inputs = (x.flip(0) if at else x) @ weight.t() + added
        for step in inputs.unbind(0):
            reset, update, new = step.chunk(3, -1)
            reset = torch.sigmoid(reset + hidden @ resets[0].t())
            update = torch.sigmoid(update + hidden @ resets[1].t())
            new = torch.tanh(new + (reset * hidden) @ resets[2].t())
            hidden = (1 - update) * new + update * hidden
            states.append(hidden)
        whole = torch.stack(states)
        made.append(whole.flip(0) if at else whole)
        last.append(hidden)
    return torch.cat(made, -1), torch.stack(last)


OPS: Table = {"LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent}
FUSED: Table = {}
