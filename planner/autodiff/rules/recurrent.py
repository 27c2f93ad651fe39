"""LSTM, GRU and RNN: one op each, with the reserve that its backward reads.

Measured with torch 2.13 on the CPU, T steps of N rows with I inputs and H units, for each direction:

- LSTM in float32 or bfloat16 runs in oneDNN, whose workspace has the states of layer, iteration and cell of T + 1
  steps, their gradients and the four gates; `lstm_workspace_nbytes` gives its exact size. It is 15 to 20 T N H floats,
  more if I is above H.
- LSTM in other types, or without oneDNN, runs step by step and saves 7 T N H numbers: four gates, the cell, its tanh
  and the state. GRU always runs step by step and saves 7 T N H; RNN saves (T + 1) N H.

On CUDA, cuDNN saves input, output and a reserve of unknown size. There the rule is an estimate: the CPU's buffers and
the output. Peepholes, sequence_lens and linear_before_reset = 0 are composed step by step in torch and save no more
than that. A clip, or an activation other than the default, may save its input and its result.
"""

from __future__ import annotations

from .op_call import FLOAT_NBYTES, RuleCall, Saved, item_nbytes, table

_PAGE_NBYTES = 4096
_LINE_NBYTES = 64
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_STEP_BUFFERS = {"LSTM": 7, "GRU": 7, "RNN": 1}
_DEFAULT_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
_INITIAL_STATES = (5, 6)
_PEEPHOLES = 7


def lstm_workspace_nbytes(steps: int, rows: int, inputs: int, units: int, item: int) -> int:
    """The workspace that oneDNN saves for the backward of one direction, with elements of ``item`` bytes."""
    widest, states, moments = max(inputs, units), 2 * (steps + 1) * rows, steps * rows
    parts = [states * _padded(widest, item) * item] + [states * _padded(widest, FLOAT_NBYTES) * FLOAT_NBYTES] * 2
    parts += [states * units * FLOAT_NBYTES, states * units * item]
    parts += [moments * _padded(units, item) * item, moments * _padded(4 * units, item) * item]
    return sum(-(-part // _PAGE_NBYTES) * _PAGE_NBYTES for part in parts)


def _padded(size: int, item: int) -> int:
    """Elements of a row: whole cache lines, and one more if rows would map to the same cache sets."""
    line = _LINE_NBYTES // item
    rounded = -(-size // line) * line
    return rounded + line if rounded % 256 == 0 else rounded


def _recurrent(call: RuleCall) -> Saved:
    kind, tensor, recurrence = call.op.op_type, call.first, call.required(2)
    directions, units = recurrence.shape[0], recurrence.shape[-1]
    steps, rows = tensor.shape[:2] if not call.integer("layout", 0) else tensor.shape[1::-1]
    item, state = item_nbytes(tensor), rows * units * item_nbytes(tensor)
    reserve = steps * state * (_STEP_BUFFERS[kind] + _extra_buffers(call)) + state
    if kind == "LSTM" and tensor.dtype in ("float32", "bfloat16"):
        reserve = max(reserve, lstm_workspace_nbytes(steps, rows, tensor.shape[-1], units, item))
    hidden = [reserve] * directions
    if kind == "LSTM":
        hidden += [state] * 2 * directions  # the last state and cell
        hidden += [state * directions for position in _INITIAL_STATES if not call.has(position)]
    initial = _INITIAL_STATES if kind == "LSTM" else _INITIAL_STATES[:1]
    return Saved((0, 1, 2, *call.present((*initial, _PEEPHOLES))), (0,), tuple(hidden))


def _extra_buffers(call: RuleCall) -> int:
    """Additional buffers of one step: for activations that save their input, and for a clip."""
    kind, gates = call.op.op_type, _GATES[call.op.op_type]
    given = call.op.attribute("activations", ())
    assert isinstance(given, tuple)
    usual = _DEFAULT_ACTIVATIONS[kind]
    changed = any(str(name).lower() not in ("sigmoid", "tanh", "relu") for name in given)
    clipped = call.op.attribute("clip") is not None
    return (changed + clipped) * (gates + len(usual) - 2 if kind == "LSTM" else gates)


RULES = table({_recurrent: "LSTM GRU RNN"})
