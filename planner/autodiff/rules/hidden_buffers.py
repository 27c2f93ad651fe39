"""What the hidden buffers of an op hold, for those who read plans: a name, a shape and a type for each."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph import StorageForm, Tensor
from .op_call import INDEX_NBYTES, RuleCall, item_nbytes, statistic_nbytes

_MEANINGS = {
    "BatchNormalization": "mean of the batch, inverse standard deviation",
    "LayerNormalization": "mean of each row, inverse standard deviation",
    "GroupNormalization": "mean of each group, inverse standard deviation",
    "InstanceNormalization": "mean of each channel, inverse standard deviation, weight of each channel",
    "RMSNormalization": "inverse root of the mean square, normalised input",
    "Dropout": "mask",
    "MaxPool": "indices",
    "GlobalMaxPool": "indices",
    "Attention": "log-sum-exp of each query",
    "LSTM": "reserve",
    "GRU": "reserve",
    "RNN": "reserve",
}
_INTEGERS = frozenset({"indices"})


def hidden_buffers(call: RuleCall, sizes_nbytes: Sequence[int]) -> list[StorageForm]:
    """What the hidden buffers of an op hold, given their sizes.

    Where the table has no name for one it is "saved for the backward of OP". A buffer of the size of an operand or
    result has its shape; statistics have one dimension, and all that fits no number of elements is bytes.
    """
    names = _MEANINGS.get(call.op.op_type, "").split(", ")
    found: list[StorageForm] = []
    for position, nbytes in enumerate(sizes_nbytes):
        known = position < len(names) and bool(names[position])
        meaning = names[position] if known else f"saved for the backward of {call.op.op_type}"
        found.append(StorageForm(*_form(call, nbytes, meaning), hidden=meaning))
    return found


def _form(call: RuleCall, nbytes: int, meaning: str) -> tuple[tuple[int, ...], str]:
    like: list[Tensor] = [call.output, *(tensor for tensor in call.inputs if tensor is not None)]
    item = statistic_nbytes(call.first) if call.inputs else 1
    dtype = call.first.dtype if call.inputs and item == item_nbytes(call.first) else "float32"
    if meaning in _INTEGERS:
        item, dtype = INDEX_NBYTES, "int64"
    elif meaning == "mask" and nbytes == call.output.numel:
        item, dtype = 1, "bool"
    elif meaning == "reserve" or nbytes % item:
        return (nbytes,), "uint8"
    shape = next((tensor.shape for tensor in like if tensor.numel * item == nbytes), (nbytes // item,))
    return shape, dtype
