"""Arithmetic of one op: floating-point operations of its forward and of each gradient, and its sequential steps.

A multiplication and an addition count as two operations. Op types without a rule do so little arithmetic per byte that
memory traffic decides their time. MEMORY_BOUND lists them, so that no type is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, log2, prod

from ..autodiff.rule_table import call_of
from ..autodiff.rules.einsum import contractions
from ..autodiff.rules.op_call import RuleCall
from ..graph import Graph, Op


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The floating-point operations of one op.

    Attributes:
        forward: Operations of the forward.
        gradients: Parts of the backward: (input positions, operations needed if any of them needs a gradient).
        shared: Operations of any backward.
        matrix: Whether matrix units can do them.
        steps: The number of kernels that run one after the other.
    """

    forward: int = 0
    gradients: tuple[tuple[tuple[int, ...], int], ...] = ()
    shared: int = 0
    matrix: bool = False
    steps: int = 1

    def backward(self, needs: Iterable[int]) -> int:
        """Operations of a backward that makes the gradients of the input positions in ``needs``."""
        wanted = frozenset(needs)
        return self.shared + sum(flops for positions, flops in self.gradients if not wanted.isdisjoint(positions))


NONE = Arithmetic()


def _shape(call: RuleCall, position: int) -> tuple[int, ...]:
    """The shape of an input; none for an absent one."""
    return call.required(position).shape if call.has(position) else ()


Rule = Callable[[RuleCall], Arithmetic]


def _product(flops: int, *, matrix: bool = True) -> Arithmetic:
    """A product of inputs 0 and 1: the gradient of either is a product of the same size."""
    return Arithmetic(flops, (((0,), flops), ((1,), flops)), matrix=matrix)


def _conv(call: RuleCall) -> Arithmetic:
    weight = _shape(call, 1)
    return _product(2 * call.output.numel * prod(weight[1:]), matrix=prod(weight[1:2]) > 1)


def _conv_transpose(call: RuleCall) -> Arithmetic:
    weight = _shape(call, 1)
    return _product(2 * prod(_shape(call, 0)) * prod(weight[1:]), matrix=prod(weight[1:2]) > 1)


def _deform_conv(call: RuleCall) -> Arithmetic:
    """A convolution of samples, each interpolated from four neighbours and weighted by a mask."""
    data, weight = _shape(call, 0), _shape(call, 1)
    product = 2 * call.output.numel * prod(weight[1:])
    samples = prod(data[:2]) * prod(weight[2:]) * prod(call.output.shape[2:])
    sampling = samples * (9 if call.has(4) else 8)
    gradients = (
        ((0, 2, 4), product),  # of the samples, from which the others follow
        ((0,), sampling),
        ((1,), product + sampling),
        ((2,), 2 * sampling),
        ((4,), sampling),
    )
    return Arithmetic(product + sampling, gradients, matrix=True)


def _causal_conv(call: RuleCall) -> Arithmetic:
    return _product(2 * call.output.numel * prod(_shape(call, 1)[1:]), matrix=False)


def _gemm(call: RuleCall) -> Arithmetic:
    first = _shape(call, 0)
    return _product(2 * call.output.numel * prod(first[:1] if call.integer("transA", 0) else first[1:2]))


def _matmul(call: RuleCall) -> Arithmetic:
    """``K`` is the last dimension of the left operand, of rank one too."""
    return _product(2 * call.output.numel * prod(_shape(call, 0)[-1:]))


def _integer_conv(weight: int) -> Rule:
    return lambda call: Arithmetic(2 * call.output.numel * prod(_shape(call, weight)[1:]), matrix=True)


def _integer_matmul(call: RuleCall) -> Arithmetic:
    return Arithmetic(2 * call.output.numel * prod(_shape(call, 0)[-1:]), matrix=True)


def _einsum(call: RuleCall) -> Arithmetic:
    """Contractions from left to right, as PyTorch does without opt_einsum."""
    shapes = [_shape(call, position) for position in range(len(call.inputs))]
    pairs = contractions(call.text("equation", ""), shapes)
    gradients = [part for right, flops, _ in pairs for part in (((right,), flops), (tuple(range(right)), flops))]
    return Arithmetic(sum(flops for _, flops, _ in pairs), tuple(gradients), 0, True, max(1, len(pairs)))


def _attention(call: RuleCall) -> Arithmetic:
    """Two products forward, five backward: the scores again, and two gradients of each product.

    A causal mask does not halve them: which tiles are skipped depends on the kernel.
    """
    query, key = _shape(call, 0), _shape(call, 1)
    if len(query) < 3 or len(key) < 3:
        return NONE
    keys = key[-2] + (_shape(call, 4)[-2] if len(_shape(call, 4)) == 4 else 0)
    scores, mixing = 2 * prod(query) * keys, 2 * call.output.numel * keys  # all heads, in one dimension or in two
    return Arithmetic(scores + mixing, (), 3 * scores + 2 * mixing, True)


def _linear_attention(call: RuleCall) -> Arithmetic:
    """Per token, the outer product into the state, for a delta rule the prediction of the state, and the read-out.

    The backward recomputes the states and makes two gradients of each product.
    """
    query, key, value = _shape(call, 0), _shape(call, 1), _shape(call, 2)
    if len(query) != 3 or len(key) != 3 or len(value) != 3:
        return NONE
    heads, kv_heads = max(1, call.integer("q_num_heads", 1)), max(1, call.integer("kv_num_heads", 1))
    state = (key[2] // kv_heads) * (value[2] // kv_heads)
    updates = 2 if "delta" in call.text("update_rule", "gated_delta") else 1
    forward = 2 * query[0] * query[1] * state * (updates * kv_heads + heads)
    return Arithmetic(forward, (), 3 * forward, True, max(1, ceil(query[1] / max(1, call.integer("chunk_size", 64)))))


def _recurrent(call: RuleCall) -> Arithmetic:
    """Products with W and R at every step of every direction; backward through time needs R once more."""
    data, weight, recurrence = _shape(call, 0), _shape(call, 1), _shape(call, 2)
    cells = 2 * prod(data[:2])  # time steps and batch, in either layout
    ahead, back = cells * prod(weight), cells * prod(recurrence)
    length = data[1 if call.integer("layout", 0) else 0] if len(data) > 1 else 1
    steps = max(1, length * prod(weight[:1]))
    return Arithmetic(ahead + back, (((0,), ahead), ((1,), ahead), ((2,), back)), back, True, steps)


def _windows(call: RuleCall) -> Arithmetic:
    """Every output reads its window from the cache, which is arithmetic and not traffic."""
    kernel = call.op.attribute("kernel_shape", ())
    flops = call.output.numel * (prod(kernel) if isinstance(kernel, tuple) else 1)
    return Arithmetic(flops, (((0,), call.output.numel if call.op.op_type == "MaxPool" else flops),))


def _local_response(call: RuleCall) -> Arithmetic:
    """The window over the channels, and four operations of the power and the quotient."""
    flops = call.output.numel * (max(1, call.integer("size", 1)) + 4)
    return Arithmetic(flops, (((0,), 2 * flops),))


def _fourier(points: Callable[[RuleCall], int]) -> Rule:
    """5 n log2 n operations of each transform of n points; the gradient is a transform too."""

    def rule(call: RuleCall) -> Arithmetic:
        n = max(1, points(call))
        flops = ceil(2.5 * call.output.numel * log2(n)) if n > 1 else 0  # two reals in each of n outputs
        return Arithmetic(flops, (((0,), flops), ((2,), flops)))

    return rule


def _dft_points(call: RuleCall) -> int:
    """Length of the transformed axis; of the longest axis if the axis is an input, whose value is not known."""
    data, out = _shape(call, 0), call.output.shape
    length = len(data)
    changed = [axis for axis in range(1, length - 1) if len(out) == length and data[axis] != out[axis]]
    if changed:
        axes = changed
    elif isinstance(axis := call.op.attribute("axis"), int) and length:
        axes = [axis % length]
    else:
        axes = list(range(1, length - 1))
    return max((max(data[axis], out[axis]) for axis in axes if axis < len(out)), default=1)


def _stft_points(call: RuleCall) -> int:
    window, out = _shape(call, 2), call.output.shape
    bins = out[-2] if len(out) >= 2 else 1
    return window[0] if len(window) == 1 else (2 * bins if call.integer("onesided", 1) else bins)


def _determinant(call: RuleCall) -> Arithmetic:
    """LU: 2/3 n^3 for each matrix; the gradient solves with n right-hand sides."""
    data = _shape(call, 0)
    cubes = prod(data) * prod(data[-1:])
    return Arithmetic(ceil(cubes * 2 / 3), (((0,), 2 * cubes),))


def _grid_sample(call: RuleCall) -> Arithmetic:
    """Each output interpolates its neighbours: 1, 2 or 4 along every axis."""
    taps = {"nearest": 1, "cubic": 4, "bicubic": 4}.get(call.text("mode", "linear"), 2)
    flops = 2 * call.output.numel * taps ** max(1, len(call.output.shape) - 2)
    return Arithmetic(flops, (((0,), flops), ((1,), 2 * flops)))


def _roi_align(call: RuleCall) -> Arithmetic:
    """Four neighbours of each sample; with an adaptive number of samples, as many as the whole map gives."""
    out, data = call.output.shape, _shape(call, 0)
    ratio = call.integer("sampling_ratio", 0)
    cells = [ceil(size / max(1, bins)) for size, bins in zip(data[2:], out[2:], strict=False)]
    flops = 8 * call.output.numel * (ratio * ratio if ratio > 0 else prod(cells))
    return Arithmetic(flops, (((0,), flops),))


def _max_roi_pool(call: RuleCall) -> Arithmetic:
    """At most the whole map for every region."""
    return Arithmetic(prod(_shape(call, 1)[:1]) * prod(_shape(call, 0)[1:]), (((0,), call.output.numel),))


def _affine_grid(call: RuleCall) -> Arithmetic:
    flops = 2 * call.output.numel * (prod(call.output.shape[-1:]) + 1)
    return Arithmetic(flops, (((0,), flops),), matrix=True)


def _column_to_image(call: RuleCall) -> Arithmetic:
    return Arithmetic(prod(_shape(call, 0)))


RULES: dict[str, Rule] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "DeformConv": _deform_conv, "CausalConvWithState": _causal_conv,
    "Gemm": _gemm, "MatMul": _matmul, "Einsum": _einsum,
    "ConvInteger": _integer_conv(1), "QLinearConv": _integer_conv(3),
    "MatMulInteger": _integer_matmul, "QLinearMatMul": _integer_matmul,
    "Attention": _attention, "LinearAttention": _linear_attention,
    "LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent,
    "MaxPool": _windows, "AveragePool": _windows, "LpPool": _windows, "LRN": _local_response,
    "DFT": _fourier(_dft_points), "STFT": _fourier(_stft_points), "Det": _determinant,
    "GridSample": _grid_sample, "RoiAlign": _roi_align, "MaxRoiPool": _max_roi_pool, "AffineGrid": _affine_grid,
    "Col2Im": _column_to_image,
}  # fmt: skip

_MEMORY_BOUND = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization Bernoulli BitCast BitShift BitwiseAnd
BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast CastLike Ceil Celu CenterCropPad Clip Compress Concat Constant
ConstantOfShape Cos Cosh CumProd CumSum DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Elu Equal Erf
Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gelu GlobalAveragePool GlobalLpPool GlobalMaxPool
Greater GreaterOrEqual GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity
InstanceNormalization IsInf IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization Max
MaxUnpool Mean MeanVarianceNormalization MelWeightMatrix Min Mish Mod Mul Multinomial Neg NegativeLogLikelihoodLoss
NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow QuantizeLinear RMSNormalization RandomNormal RandomNormalLike
RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence RotaryEmbedding Round Scatter
ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin Sinh Slice Softmax SoftmaxCrossEntropyLoss Softplus Softsign
SpaceToDepth Split Sqrt Squeeze Sub Sum SwiGLU Swish Tan Tanh TensorScatter TfIdfVectorizer ThresholdedRelu Tile TopK
Transpose Trilu Unique Unsqueeze Upsample Where Xor
"""
MEMORY_BOUND = frozenset(_MEMORY_BOUND.split())
"""Op types of ONNX's default domain whose traffic decides their time."""

SHAPE_ONLY = frozenset({"Shape", "Size"})
"""Op types that read a tensor's type alone: no traffic, no kernel."""

_UNTIMED = """
If Loop Scan SequenceMap SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
SplitToSequence ConcatFromSequence Optional OptionalGetElement OptionalHasElement StringConcat StringNormalizer
StringSplit RegexFullMatch ImageDecoder
"""
UNTIMED = frozenset(_UNTIMED.split())
"""Control flow, sequences, optionals, text and image files: never an op of a graph of tensors."""


def arithmetic(op: Op, graph: Graph) -> Arithmetic:
    """The operations of one op; none for an op of another domain or without a rule."""
    rule = RULES.get(op.op_type) if op.domain in ("", "ai.onnx") else None
    if rule is None or not op.outputs:
        return NONE
    return rule(call_of(op, graph, frozenset()))
