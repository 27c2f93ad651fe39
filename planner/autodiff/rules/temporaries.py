"""Temporaries between the kernels of an op that torch composes of several.

In the forward they come in addition to outputs and hidden buffers, in the backward in addition to saved tensors and
given gradients. The figures were measured by a meter of storages, and test_temporaries.py checks them; scratch inside a
kernel is not included.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ...graph import Role
from . import gradient_sequences as sequences
from .attention import extent, is_fused, key_and_value_nbytes
from .einsum import contractions, copies_nothing
from .matmul_conv import repeated_operands
from .normalisation import composes_rms_norm
from .op_call import INDEX_NBYTES, RuleCall, item_nbytes, statistic_nbytes
from .reductions import product

BACKWARD_MULTIPLES = {
    "Abs": 1, "Sin": 1, "Sinh": 1, "Cosh": 1, "Sqrt": 1, "Cos": 2, "Tan": 2, "Reciprocal": 2, "Atan": 2, "Asinh": 3,
    "Acosh": 3, "Atanh": 3, "Softsign": 3, "Erf": 4, "Asin": 4, "Acos": 5, "HardSigmoid": 1,
    "LpNormalization": 3, "LpPool": 3, "GlobalLpPool": 2, "SwiGLU": 3, "RotaryEmbedding": 2,
    "MeanVarianceNormalization": 4, "CumProd": 10, "CumSum": 2, "LRN": 4, "DFT": 3, "STFT": 5, "Det": 3, "TopK": 1,
    "ReduceSumSquare": 2, "CenterCropPad": 1, "AffineGrid": 2, "ReverseSequence": 1,
}  # fmt: skip
"""Temporaries of a backward in multiples of the size of the input or the output, whichever is larger."""

_FORWARD_MULTIPLES = {
    "HardSigmoid": 1, "ReduceSumSquare": 1, "GlobalLpPool": 1, "RotaryEmbedding": 2, "Col2Im": 1, "CenterCropPad": 1,
    "CumProd": 1,
}  # fmt: skip
"""The same for a forward."""

_BY_INPUT = {"GatherElements": 1, "GatherND": 1, "Compress": 1, "ReduceL1": 1, "ReduceLogSumExp": 2}
"""The same for a backward in multiples of the input's size alone."""


def _size(call: RuleCall) -> int:
    first = call.inputs[0] if call.inputs else None
    return max(first.nbytes if first is not None else 0, call.output.nbytes)


def _broadcast(call: RuleCall, positions: tuple[int, ...]) -> int:
    """Gradients of the output's shape, which are then reduced to operands that were broadcast."""
    smaller = [p for p in positions if p in call.needs and call.required(p).shape != call.output.shape]
    return len(smaller) * call.output.nbytes


def _where(call: RuleCall) -> tuple[int, int]:
    return 0, _broadcast(call, (1, 2)) + item_nbytes(call.output)


def _extremum(call: RuleCall) -> tuple[int, int]:
    """A chain of pairs: the forward makes another result."""
    return (len(call.inputs) > 2) * call.output.nbytes, sequences.extremum(call)


def _several(call: RuleCall) -> tuple[int, int]:
    """Sum and Mean add from left to right; Mean then divides."""
    return call.output.nbytes if call.op.op_type == "Mean" else sequences.partial_sum_nbytes(call), 0


def _slopes(call: RuleCall) -> tuple[int, int]:
    """F.prelu makes the gradients of input and slopes together, each of the input's size."""
    return 0, (1 if call.needed(0) else 2) * call.first.nbytes


def _gather(call: RuleCall) -> tuple[int, int]:
    """An embedding adds into zeros, index_select into a copy of them."""
    table = call.integer("axis", 0) == 0 and len(call.first.shape) == 2
    return 0, 0 if table and call.first.role is Role.PARAMETER else call.first.nbytes


def _scatter(call: RuleCall) -> tuple[int, int]:
    return 0, sequences.scatter(call)


def _write_cache(call: RuleCall) -> tuple[int, int]:
    """A scatter, or without indices a copy into which the update is copied."""
    copied = 0 if call.has(2) else call.output.nbytes
    return copied, copied


def _shrink(call: RuleCall) -> tuple[int, int]:
    composed = call.number("bias", 0.0) not in (0, call.number("lambd", 0.5))
    return (3 * call.first.nbytes, 3 * call.first.nbytes) if composed else (0, 0)


def _swish(call: RuleCall) -> tuple[int, int]:
    composed = call.number("alpha", 1.0) != 1
    return 0, 3 * call.first.nbytes if composed else 0


def _swiglu(call: RuleCall) -> tuple[int, int]:
    return call.first.nbytes, 3 * call.first.nbytes if call.needed(0) else 0


def _fourier(call: RuleCall) -> tuple[int, int]:
    """A real input's spectrum is filled up again, as complex numbers."""
    return 0, (3 if call.integer("onesided", 0) else 1) * _size(call)


def _group_norm(call: RuleCall) -> tuple[int, int]:
    """Scale and bias per group (opset 18) are applied after the norm."""
    if not call.has(1) or call.required(1).numel == call.first.shape[1]:
        return 0, 0
    return 2 * call.first.nbytes, 2 * call.first.nbytes


def _rms_norm(call: RuleCall) -> tuple[int, int]:
    """Composed in the wider of two element types: squares, the norm and the scaled norm, and their gradients."""
    if not composes_rms_norm(call):
        return 0, 0
    wide, narrow = call.first.numel * item_nbytes(call.required(1)), call.first.nbytes
    forward = wide if call.needed(0) and call.needed(1) else 2 * wide
    return forward, 4 * wide + narrow if call.needed(0) else 2 * wide


def _cross_entropy(call: RuleCall) -> tuple[int, int]:
    """The product of the probabilities and log_softmax; with class weights another one."""
    if not call.required(1).is_float:
        return 0, call.first.nbytes
    return call.first.nbytes * (2 if call.has(2) else 1), call.first.nbytes


def _instance_norm(call: RuleCall) -> tuple[int, int]:
    """Weight, bias and statistics repeated over the batch."""
    rows = prod(call.first.shape[:2]) * statistic_nbytes(call.first)
    return rows, 2 * rows


def _pad(call: RuleCall) -> tuple[int, int]:
    """A circular padding is a concatenation of copies, and its gradient is cut out of them."""
    return 0, 3 * call.output.nbytes - call.first.nbytes if call.text("mode", "constant") == "wrap" else 0


def _resize(call: RuleCall) -> tuple[int, int]:
    cropped = call.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return 0, _size(call) if cropped else 0


def _grid_sample(call: RuleCall) -> tuple[int, int]:
    """The gradient of the grid is always made."""
    return 0, 0 if call.needed(1) else call.required(1).nbytes


def _reverse_sequence(call: RuleCall) -> tuple[int, int]:
    """The indices are computed from several tensors of their size."""
    return 3 * prod(call.first.shape[:2]) * INDEX_NBYTES, _size(call)


def _causal_convolution(call: RuleCall) -> tuple[int, int]:
    joined = call.first.nbytes + prod(call.first.shape[:2]) * call.required(1).shape[-1] * item_nbytes(call.first)
    activated = call.output.nbytes if call.text("activation", "none") != "none" else 0
    return activated, activated + (joined if call.needed(0, 3) else 0)


def _softmax(call: RuleCall) -> tuple[int, int]:
    """The input cast to a wider type, and its gradient in that type, which is freed before the next is made."""
    wider = call.output.nbytes if call.output.nbytes > call.first.nbytes else 0
    return wider, max(wider - call.first.nbytes, 0)


def _widening_mean(call: RuleCall) -> tuple[int, int]:
    """The gradient of a mean in a wider type than the input's, in that type."""
    item = item_nbytes(call.output)
    return 0, call.first.numel * item if item > item_nbytes(call.first) else 0


def _dequantize(call: RuleCall) -> tuple[int, int]:
    return call.output.nbytes, call.output.nbytes if call.needed(1) else 0


def _matrix_product(call: RuleCall) -> tuple[int, int]:
    """Operands repeated over the batch: a forward copy that is not saved; a folded product is laid out anew."""
    if sequences.folds_batch(call):
        return call.output.nbytes * (len(call.first.shape) > 1), sequences.matrix_product(call)
    copies = {**dict(repeated_operands(call)), **dict(call.op.copied)}
    forward = sum(nbytes for position, nbytes in copies.items() if 1 - position not in call.needs)
    return forward, sequences.matrix_product(call)


def _einsum(call: RuleCall) -> tuple[int, int]:
    """Operands and gradients of results in the layout of a batched product, unless they lie in it already.

    A product that sums over nothing is elementwise: the gradients of both sides have its size.
    """
    shapes = [call.required(position).shape for position in range(len(call.inputs))]
    pairs = contractions(call.text("equation", ""), shapes)
    elementwise = any(flops == elements for _, flops, elements in pairs)
    if len(pairs) == 1 and copies_nothing(call.text("equation", ""), shapes):
        return 0, sequences.broadcast(call, {0: (), 1: ()}) if elementwise else 0
    largest = max([call.output.numel, *(elements for _, _, elements in pairs)]) * item_nbytes(call.output)
    operands = sum(tensor.nbytes for tensor in call.inputs if tensor is not None)
    return operands, (len(pairs) + elementwise) * largest


def _attention(call: RuleCall) -> tuple[int, int]:
    """A fused kernel always makes the gradients of q, k and v; a composition makes scores in between."""
    size, item = extent(call), item_nbytes(call.first)
    query, key, value = call.first.nbytes, *key_and_value_nbytes(call, size)
    if is_fused(call, size):
        together = ((query, (0,)), (key, (1, 4)), (value, (2, 5)))
        unwanted = sum(
            nbytes - sum(call.required(p).nbytes for p in positions if p in call.needs)
            for nbytes, positions in together
        )
        return 0, max(unwanted, key + value if len(call.outputs) > 1 else 0)
    forward = size.scores * item + (0 if call.needed(0) else key) + (0 if call.needed(1) else query)
    backward = 2 * size.scores * item
    if size.heads != size.key_heads:  # keys and values of fewer heads are repeated, their gradients summed
        repeated = size.batch * size.heads * size.key_length * item
        forward += repeated * (size.width + size.value_width)
        backward += repeated * (size.width * call.needed(1, 4) + size.value_width * call.needed(2, 5))
    return forward, backward


def _linear_attention(call: RuleCall) -> tuple[int, int]:
    """Several states of one token."""
    widths = [call.required(p).shape[-1] // max(call.integer("kv_num_heads", 1), 1) for p in (1, 2)]
    state = call.first.shape[0] * call.integer("kv_num_heads", 1) * prod(widths) * statistic_nbytes(call.first)
    return 3 * state + call.output.nbytes, 4 * state + _size(call)


_COMPOSED: dict[str, Callable[[RuleCall], tuple[int, int]]] = {
    "Mul": lambda call: (0, sequences.broadcast(call, {1: (), 0: ()})),
    "Sub": lambda call: (0, sequences.broadcast(call, {1: ()}, passed=0)),
    "Div": lambda call: (0, sequences.quotient(call)), "Pow": lambda call: (0, sequences.power(call)),
    "Mod": lambda call: (0, sequences.broadcast(call, {1: (call.output.nbytes,) * 2}, passed=0)),
    "Max": _extremum, "Min": _extremum, "Clip": lambda call: (0, sequences.clamp(call)),
    "Where": _where, "Sum": _several, "Mean": _several, "PRelu": _slopes,
    "ReduceMax": lambda call: (0, sequences.reduced_extremum(call)),
    "ReduceMin": lambda call: (0, sequences.reduced_extremum(call)),
    "ReduceProd": lambda call: (0, 5 * call.first.nbytes + sum(product(call).hidden_nbytes)),
    "ReduceL2": lambda call: (0, call.first.nbytes + call.output.numel),
    "Gemm": lambda call: (0, sequences.gemm(call)),
    "Softmax": _softmax, "LogSoftmax": _softmax, "ReduceMean": _widening_mean, "ReduceSum": _widening_mean,
    "Gather": _gather, "SwiGLU": _swiglu, "DFT": _fourier,
    "ScatterElements": _scatter, "ScatterND": _scatter, "Scatter": _scatter, "Shrink": _shrink, "Swish": _swish,
    "SoftmaxCrossEntropyLoss": _cross_entropy, "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm, "InstanceNormalization": _instance_norm, "Pad": _pad, "Resize": _resize,
    "TensorScatter": _write_cache, "GridSample": _grid_sample, "ReverseSequence": _reverse_sequence,
    "CausalConvWithState": _causal_convolution,
    "DequantizeLinear": _dequantize, "MatMul": _matrix_product, "Einsum": _einsum,
    "Attention": _attention, "LinearAttention": _linear_attention,
}  # fmt: skip


def temporaries_nbytes(call: RuleCall) -> tuple[int, int]:
    """(forward, backward) bytes between the kernels of an op of the default domain."""
    kind = call.op.op_type
    if kind in _COMPOSED:
        return _COMPOSED[kind](call)
    size = _size(call)
    turned = kind == "CumSum" and (call.integer("reverse", 0) or call.integer("exclusive", 0))
    forward, backward = _FORWARD_MULTIPLES.get(kind, 0), BACKWARD_MULTIPLES.get(kind, 0)
    by_input = _BY_INPUT.get(kind, 0) * (call.first.nbytes if call.inputs else 0)
    return (forward + bool(turned)) * size, (backward + bool(turned)) * size + by_input
