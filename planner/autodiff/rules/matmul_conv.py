"""Convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from .einsum import contractions
from .gradient_sequences import folds_batch
from .op_call import INDEX_NBYTES, RuleCall, Saved, both_inputs, factors, item_nbytes, table


def _causal_convolution(call: RuleCall) -> Saved:
    """F.conv1d over the state joined to the input, or over the padded input; then F.silu, which saves its input."""
    batch, channels, length = call.first.shape
    joined = batch * channels * (length + call.required(1).shape[-1] - 1) * item_nbytes(call.first)
    activated = call.text("activation", "none") != "none"
    return Saved((1,), (), (joined, call.output.nbytes) if activated else (joined,))


def _deformable_convolution(call: RuleCall) -> Saved:
    """torchvision's deform_conv2d saves input, weight, offsets and mask."""
    return Saved(inputs=call.present((0, 1, 2, 4)))


def expanded(shape: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    """Whether torch.matmul copies an operand of ``shape`` to repeat it over the ``batch`` dimensions.

    It expands the operand and joins its batch dimensions, which is a view only if none or all of them are repeated.
    """
    own = (1,) * (len(batch) - len(shape) + 2) + shape[:-2]
    repeated = [mine == 1 and size != 1 for mine, size in zip(own, batch, strict=True) if size != 1]
    return any(repeated) and not all(repeated)


def repeated_operands(call: RuleCall) -> Iterator[tuple[int, int]]:
    """(position, bytes) of the operands of a MatMul that torch copies to repeat them over the batch."""
    first, second = call.first, call.required(1)
    if len(first.shape) < 3 or len(second.shape) < 3:
        return  # folded into one matrix instead
    batch = call.output.shape[:-2]
    for position, tensor in enumerate((first, second)):
        if expanded(tensor.shape, batch):
            yield position, prod(batch) * prod(tensor.shape[-2:]) * item_nbytes(tensor)


def _matrix_product(call: RuleCall) -> Saved:
    """Each operand for the gradient of the other; if the batches differ, the copy that repeats it.

    A matrix that is to get a gradient is multiplied by a copy of the batch.
    """
    if folds_batch(call):
        return Saved((0,) if call.needed(1) else (), (), (call.required(1).nbytes,))
    read = factors(call).inputs
    copies = dict(repeated_operands(call))
    return Saved(
        tuple(position for position in read if position not in copies),
        (),
        tuple(copies[position] for position in read if position in copies),
    )


def _einsum(call: RuleCall) -> Saved:
    """Pair by pair from the left, each operand for the gradient of the other; intermediate results are hidden."""
    shapes = [call.required(position).shape for position in range(len(call.inputs))]
    pairs = contractions(call.text("equation", ""), shapes)
    if len(pairs) < len(shapes) - 1:
        return Saved(tuple(range(len(shapes))), (0,))
    inputs: list[int] = []
    hidden: list[int] = []
    for position in range(1, len(shapes)):
        inputs += [position] if call.needed(*range(position)) else []
        if call.needed(position):
            inputs += [0] if position == 1 else []
            hidden += [pairs[position - 2][2] * item_nbytes(call.output)] if position > 1 else []
    return Saved(tuple(sorted(inputs)), (), tuple(hidden))


def _rotary_embedding(call: RuleCall) -> Saved:
    """x * cos and x * sin on each half; with position_ids the rows taken from the tables are saved."""
    mine = (0,) if call.needed(1, 2) else ()
    if not call.has(3):
        return Saved((*mine, 1, 2) if call.needed(0) else mine)
    positions = call.required(3)
    rows = positions.numel * call.required(1).shape[-1] * item_nbytes(call.first)
    looked_up = (3,) if call.needed(1, 2) else ()
    index = (positions.numel * INDEX_NBYTES,) if looked_up and positions.dtype != "int64" else ()
    return Saved((*mine, *looked_up), (), ((rows, rows) if call.needed(0) else ()) + index)


RULES = table(
    {
        factors: "Gemm",
        _matrix_product: "MatMul",
        both_inputs: "Conv ConvTranspose",  # convolution_backward takes them even for a frozen weight
        _causal_convolution: "CausalConvWithState",
        _deformable_convolution: "DeformConv",
        _rotary_embedding: "RotaryEmbedding",
        _einsum: "Einsum",
    }
)
