"""What the backward of each op type reads and saves: the table behind `derive_backward`.

Semantics are PyTorch's (derivatives.yaml of torch 2.13), checked op by op against
torch.autograd.graph.saved_tensors_hooks in tests/test_saved_tensors.py. An op that is not listed is
charged conservatively: it reads all of its inputs and outputs, and the plan names it as assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from .graph import Graph, Op, Role, Tensor

RULES_VERSION = 1
STATISTIC_NBYTES = 4  # norms and attention keep their statistics in float32
INDEX_NBYTES = 8  # max pooling keeps int64 indices


@dataclass(frozen=True, slots=True)
class Saved:
    """What one backward needs: positions of inputs and outputs, and the bytes of each hidden buffer."""

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    hidden_nbytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Call:
    """An op with its tensors at hand; ``needs`` are the input positions that need a gradient."""

    op: Op
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    needs: frozenset[int]

    def first(self) -> Tensor:
        tensor = self.inputs[0]
        assert tensor is not None
        return tensor


Rule = Callable[[_Call], Saved]


def _nothing(call: _Call) -> Saved:
    return Saved()


def _input(call: _Call) -> Saved:
    return Saved(inputs=(0,))


def _output(call: _Call) -> Saved:
    return Saved(outputs=(0,))


def _input_and_output(call: _Call) -> Saved:
    return Saved(inputs=(0,), outputs=(0,))


def _indices(call: _Call) -> Saved:
    return Saved(inputs=(1,))


def _bilinear(call: _Call) -> Saved:
    """Each operand is read for the gradient of the other one."""
    return Saved(inputs=tuple(mine for mine, other in ((0, 1), (1, 0)) if other in call.needs))


def _divide(call: _Call) -> Saved:
    return Saved(inputs=(0, 1) if 1 in call.needs else (1,))


def _both_inputs(call: _Call) -> Saved:
    """Both operands whatever needs a gradient: convolution_backward takes them even for a frozen weight."""
    return Saved(inputs=(0, 1))


def _power(call: _Call) -> Saved:
    """A constant scalar exponent is an attribute to torch; a tensor one is saved with base and result."""
    exponent = call.inputs[1]
    assert exponent is not None
    scalar = exponent.numel == 1 and exponent.role is Role.BUFFER
    return Saved(inputs=(0,)) if scalar else Saved(inputs=(0, 1), outputs=(0,))


def _pad(call: _Call) -> Saved:
    return Saved(inputs=(0,)) if call.op.attribute("mode", "constant") in ("reflect", "edge") else Saved()


def _softsign(call: _Call) -> Saved:
    return Saved((0,), (), (call.first().nbytes,))


def _log_of_sum(call: _Call) -> Saved:
    return Saved(hidden_nbytes=(call.outputs[0].nbytes,))


def _einsum(call: _Call) -> Saved:
    """A product of several operands: each is read for the gradients of the others."""
    everyone = range(len(call.inputs))
    return Saved(inputs=tuple(i for i in everyone if any(other in call.needs for other in everyone if other != i)))


def _labels(call: _Call) -> Saved:
    """nll_loss keeps its log-probabilities, the labels and the total weight."""
    return Saved((0, 1), (), (STATISTIC_NBYTES,))


def _extremum(call: _Call) -> Saved:
    return Saved(inputs=tuple(range(len(call.inputs)))) if len(call.inputs) > 1 else Saved()


def _statistics(count: int, rows: int) -> tuple[int, ...]:
    return (rows * STATISTIC_NBYTES,) * count


def _batch_norm(call: _Call) -> Saved:
    return Saved((0,), (), _statistics(2, call.first().shape[1]))


def _layer_norm(call: _Call) -> Saved:
    shape = call.first().shape
    axis = call.op.attribute("axis", -1)
    assert isinstance(axis, int)
    return Saved((0,), (), _statistics(2, prod(shape[: axis % len(shape)])))


def _rms_norm(call: _Call) -> Saved:
    shape = call.first().shape
    axis = call.op.attribute("axis", -1)
    assert isinstance(axis, int)
    return Saved((0,), (), _statistics(1, prod(shape[: axis % len(shape)])))


def _group_norm(call: _Call) -> Saved:
    groups = call.op.attribute("num_groups", 1)
    assert isinstance(groups, int)
    return Saved((0,), (), _statistics(2, call.first().shape[0] * groups))


def _instance_norm(call: _Call) -> Saved:
    """torch repeats the weight over the batch and keeps it beside mean and inverse deviation."""
    return Saved((0,), (), _statistics(3, prod(call.first().shape[:2])))


def _local_response_norm(call: _Call) -> Saved:
    """x / (k + alpha * mean_window(x^2))^beta as torch composes it: padded squares, the base and the power."""
    tensor, size = call.first(), call.op.attribute("size", 1)
    assert isinstance(size, int)
    channels = tensor.shape[1]
    padded = tensor.nbytes // max(channels, 1) * (channels + size - 1)
    return Saved((0,), (), (padded, tensor.nbytes, tensor.nbytes))


def _max_pool(call: _Call) -> Saved:
    return Saved((0,), (), (call.outputs[0].numel * INDEX_NBYTES,))


def _dropout(call: _Call) -> Saved:
    return Saved(hidden_nbytes=(call.outputs[0].numel,))


def _attention(call: _Call) -> Saved:
    """Fused attention: q, k, v, the output and the log-sum-exp of each row."""
    query, heads = call.first(), call.op.attribute("q_num_heads", 1)
    assert isinstance(heads, int)
    rows = prod(query.shape[:3]) if len(query.shape) == 4 else query.shape[0] * query.shape[1] * heads
    return Saved((0, 1, 2), (0,), _statistics(1, rows))


def _cross_entropy(call: _Call) -> Saved:
    """log_softmax and the class labels, with the total weight; log_prob is an output where it is asked for."""
    if len(call.outputs) > 1:
        return Saved((1,), (1,), (STATISTIC_NBYTES,))
    return Saved((1,), (), (call.first().nbytes, STATISTIC_NBYTES))


_TABLE: dict[Rule, str] = {
    _nothing: "Add Sub Sum Mean Neg Identity Reshape Flatten Squeeze Unsqueeze Transpose Concat Slice Split Expand"
    " ReduceMean ReduceSum Cast CastLike Resize Upsample Tile DepthToSpace SpaceToDepth GlobalAveragePool CumSum"
    " Trilu",
    _input: "Gelu Swish HardSwish HardSigmoid Softplus LeakyRelu ThresholdedRelu Elu Selu Celu Mish Erf Log Abs Sin Cos"
    " Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Clip AveragePool ReduceSumSquare",
    _output: "Relu Sigmoid Tanh Tan Softmax LogSoftmax Exp Sqrt Reciprocal",
    _input_and_output: "ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSumExp",
    _labels: "NegativeLogLikelihoodLoss",
    _indices: "Gather GatherND ScatterElements ScatterND",
    _bilinear: "Mul MatMul Gemm",
    _both_inputs: "Conv ConvTranspose PRelu GatherElements",
    _einsum: "Einsum",
    _extremum: "Max Min",
    _divide: "Div",
    _power: "Pow",
    _pad: "Pad",
    _softsign: "Softsign",
    _log_of_sum: "ReduceLogSum",
    _batch_norm: "BatchNormalization",
    _layer_norm: "LayerNormalization",
    _rms_norm: "RMSNormalization",
    _group_norm: "GroupNormalization",
    _instance_norm: "InstanceNormalization",
    _local_response_norm: "LRN",
    _max_pool: "MaxPool GlobalMaxPool",
    _dropout: "Dropout",
    _attention: "Attention",
    _cross_entropy: "SoftmaxCrossEntropyLoss",
}
RULES: dict[str, Rule] = {op_type: rule for rule, names in _TABLE.items() for op_type in names.split()}
RULES["Where"] = lambda call: Saved(inputs=(0,))
RULES["TopK"] = lambda call: Saved(outputs=(1,))

_NON_DIFFERENTIABLE = """
Shape Size ArgMax ArgMin Equal Greater GreaterOrEqual Less LessOrEqual Not And Or Xor IsNaN IsInf NonZero OneHot
Range EyeLike Floor Ceil Round Sign RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli
Multinomial ConstantOfShape Constant BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot Unique NonMaxSuppression
QuantizeLinear DynamicQuantizeLinear ConvInteger MatMulInteger QLinearConv QLinearMatMul HannWindow HammingWindow
BlackmanWindow
"""
NON_DIFFERENTIABLE = frozenset(_NON_DIFFERENTIABLE.split())


def is_known(op: Op) -> bool:
    """Whether the op's training semantics are in the table."""
    return op.domain in ("", "ai.onnx") and (op.op_type in RULES or op.op_type in NON_DIFFERENTIABLE)


def is_differentiable(op: Op) -> bool:
    """Whether gradients flow through the op at all."""
    return not (op.domain in ("", "ai.onnx") and op.op_type in NON_DIFFERENTIABLE)


def saved_for_backward(op: Op, graph: Graph, needs: frozenset[int]) -> Saved:
    """What the backward of ``op`` reads when the input positions in ``needs`` need a gradient.

    An op outside the table reads every input and output.
    """
    inputs = tuple(None if i is None else graph.tensors[i] for i in op.inputs)
    outputs = tuple(graph.tensors[i] for i in op.outputs)
    if not is_known(op):
        present = tuple(i for i, tensor in enumerate(inputs) if tensor is not None)
        return Saved(present, tuple(range(len(outputs))))
    return RULES[op.op_type](_Call(op, inputs, outputs, needs))


def shares_gradient(op: Op, graph: Graph, position: int) -> bool:
    """Whether the gradient of one input is a view of the output's gradient, so it takes no memory.

    True for an addend of full shape, a Concat operand (a narrow view) and a ReduceSum (an expanded view).
    """
    tensor = graph.tensors[op.inputs[position] or 0] if op.inputs[position] is not None else None
    if tensor is None:
        return False
    output = graph.tensors[op.outputs[0]]
    same = tensor.shape == output.shape and tensor.dtype == output.dtype
    if op.op_type in ("Add", "Sum"):
        return same
    if op.op_type == "Sub":
        return same and position == 0
    return op.op_type in ("Concat", "ReduceSum") or (op.op_type == "Expand" and same)
