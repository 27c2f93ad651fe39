"""Attention: fused if torch has a kernel for it, else composed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .op_call import FLOAT_NBYTES, RuleCall, Saved, item_nbytes, statistic_nbytes, table

_MASK, _PAST, _LENGTHS = 3, (4, 5), 6
_PROBABILITIES = 3  # qk_matmul_output_mode: the output holds the result of the softmax


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of an Attention: [batch, heads, query_length, width] against [batch, key_heads, key_length, width]."""

    batch: int
    heads: int
    key_heads: int
    query_length: int
    key_length: int
    width: int
    value_width: int

    @property
    def scores(self) -> int:
        """Elements of the matrix of scores."""
        return self.batch * self.heads * self.query_length * self.key_length


def extent(call: RuleCall) -> Extent:
    """The sizes of operands [N, heads, T, width], or [N, T, heads * width] with the heads as attributes."""
    query, key, value = call.first, call.required(1), call.required(2)
    past = call.required(_PAST[0]).shape[2] if call.has(_PAST[0]) else 0
    if len(query.shape) == 4:
        batch, heads, length, width = query.shape
        return Extent(batch, heads, key.shape[1], length, key.shape[2] + past, width, value.shape[3])
    heads, key_heads = call.integer("q_num_heads", 1), call.integer("kv_num_heads", 1)
    batch, length, together = query.shape
    return Extent(
        batch, heads, key_heads, length, key.shape[1] + past, together // heads, value.shape[2] // max(key_heads, 1)
    )


def is_fused(call: RuleCall, size: Extent) -> bool:
    """Whether scaled_dot_product_attention runs as one kernel that saves no matrix of scores.

    It does not with a gradient for the mask, values of another width, a soft cap, or the scores as an output.
    """
    return (
        not call.needed(_MASK)
        and size.width == size.value_width
        and not call.number("softcap", 0.0)
        and len(call.outputs) < 4
    )


def _mask(call: RuleCall, size: Extent) -> tuple[tuple[int, ...], int]:
    """The mask that the kernel reads: (its input, or none, bytes of a mask that is made).

    A mask is made from a bool mask, from lengths, and from a causal mask together with another one.
    """
    item = item_nbytes(call.first)
    if call.has(_LENGTHS):
        return (), size.batch * size.query_length * size.key_length * item
    if not call.has(_MASK):
        aligned = size.query_length == size.key_length or not call.integer("is_causal", 0)
        return (), 0 if aligned else size.query_length * size.key_length * item
    mask = call.required(_MASK)
    if call.integer("is_causal", 0):
        return (), max(mask.numel, prod(mask.shape[:-2]) * size.query_length * size.key_length) * item
    return ((_MASK,), 0) if mask.is_float else ((), mask.numel * item)


def _attention(call: RuleCall) -> Saved:
    size = extent(call)
    keys, copies = _keys_and_values(call, size)
    read, made = _mask(call, size)
    if not is_fused(call, size):
        return _composed(call, size)
    statistics = size.batch * size.heads * size.query_length * statistic_nbytes(call.first)
    outputs = (0, *(position - _PAST[0] + 1 for position in keys if position in _PAST))
    inputs = (0, *(position for position in keys if position not in _PAST), *read)
    return Saved(inputs, outputs, tuple(n for n in (statistics, *copies, made) if n))


def _keys_and_values(call: RuleCall, size: Extent) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(positions of the saved keys and values, bytes of copies).

    These are inputs 1 and 2, the outputs that belong to inputs 4 and 5, or copies joined to the past.
    """
    if not call.has(_PAST[0]):
        return (1, 2), ()
    if len(call.outputs) > 2:
        return _PAST, ()
    return (), key_and_value_nbytes(call, size)


def key_and_value_nbytes(call: RuleCall, size: Extent) -> tuple[int, int]:
    """Bytes of all keys and of all values, including the past ones."""
    rows = size.batch * size.key_heads * size.key_length * item_nbytes(call.first)
    return rows * size.width, rows * size.value_width


def _composed(call: RuleCall, size: Extent) -> Saved:
    """softmax((q * s) (k * s)^T + mask) v: scaled copies of q and k, the probabilities, and v.

    Keys and values of fewer heads are repeated; a soft cap saves its tanh.
    """
    item = item_nbytes(call.first)
    rows = size.batch * size.heads * size.key_length * item
    hidden: list[int] = []
    inputs: list[int] = []
    outputs: list[int] = []
    if call.needed(0):
        hidden.append(rows * size.width)
    if call.needed(1, _PAST[0]):
        hidden.append(size.batch * size.heads * size.query_length * size.width * item)
    if call.needed(0, 1, _MASK, _PAST[0]):
        if size.heads != size.key_heads:
            hidden.append(rows * size.value_width)
        elif not call.has(_PAST[1]):
            inputs.append(2)
        elif len(call.outputs) > 2:
            outputs.append(2)
        else:
            hidden.append(rows * size.value_width)
        if call.number("softcap", 0.0):
            hidden.append(size.scores * item)
    if len(call.outputs) > 3 and call.integer("qk_matmul_output_mode", 0) == _PROBABILITIES:
        outputs.append(3)
    else:
        hidden.append(size.scores * item)
    if call.op.attribute("softmax_precision") is not None and item < FLOAT_NBYTES:
        hidden.append(size.scores * FLOAT_NBYTES)
    return Saved(tuple(inputs), tuple(outputs), tuple(hidden))


def _linear_attention(call: RuleCall) -> Saved:
    """The recurrence that defines the op, token by token: every state is saved, and twice if it decays.

    torch has no call for it. Kernels that work in chunks save fewer states and other buffers instead.
    """
    batch, length, _ = call.first.shape
    heads = call.integer("kv_num_heads", 1)
    widths = [call.required(position).shape[-1] // max(heads, 1) for position in (1, 2)]
    update = call.text("update_rule", "gated_delta")
    gated, corrected = "gated" in update, "delta" in update
    per_token = prod(widths) * (2 if gated else 1)
    per_token += widths[0] if gated else 0  # exp of the decay
    per_token += 2 * widths[1] if corrected else 0  # the correction and its part
    item = statistic_nbytes(call.first)
    return Saved(call.present((0, 1, 2, 4, 5)), (), (length * batch * heads * per_token * item,))


RULES = table({_attention: "Attention", _linear_attention: "LinearAttention"})
