"""What the backward of each op type reads and saves, with the semantics of PyTorch 2.13 (derivatives.yaml).

If torch has no op of the same meaning, the rule is that of a composition of torch ops, and names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..graph import ATEN_DOMAIN, Graph, Op, View
from .rules import aten_calls as recorded
from .rules import attention, elementwise, normalisation, recurrent, reductions, shaping, spectral
from .rules import matmul_conv as products
from .rules.op_call import Rule, RuleCall
from .rules.op_call import Saved as Saved

RULES_VERSION = 3

RULES: dict[str, Rule] = {
    op_type: rule
    for family in (attention, elementwise, normalisation, products, recurrent, reductions, shaping, spectral)
    for op_type, rule in family.RULES.items()
}

ESTIMATED = {
    "LSTM": "its reserve is that of torch on the CPU",
    "GRU": "its reserve is that of torch on the CPU",
    "RNN": "its reserve is that of torch on the CPU",
    "LinearAttention": "charged as the recurrence that defines it, with a state for every token",
}
"""Ops whose hidden buffers depend on the library, and what is charged for them; a plan names them."""

_NON_DIFFERENTIABLE = """
Shape Size ArgMax ArgMin Hardmax Equal Greater GreaterOrEqual Less LessOrEqual Not And Or Xor IsNaN IsInf NonZero
OneHot Range EyeLike RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial
ConstantOfShape Constant BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitCast Unique NonMaxSuppression
QuantizeLinear DynamicQuantizeLinear ConvInteger MatMulInteger QLinearConv QLinearMatMul HannWindow HammingWindow
BlackmanWindow MelWeightMatrix ImageDecoder StringConcat StringNormalizer StringSplit RegexFullMatch
TfIdfVectorizer
"""
NON_DIFFERENTIABLE = frozenset(_NON_DIFFERENTIABLE.split())
"""Ops that pass no gradient on: integers, comparisons, texts, choices of an index, random numbers.

Quantisation rounds, so its gradient is zero; dequantised again it is fake quantisation, which the reader makes one call
that passes the gradient on. assumptions.py reports where gradients stop.
"""


def is_known(op: Op) -> bool:
    """Whether the table has the training semantics of the op."""
    if op.domain == ATEN_DOMAIN:
        return op.op_type in recorded.RULES
    return op.domain in ("", "ai.onnx") and (op.op_type in RULES or op.op_type in NON_DIFFERENTIABLE)


def is_differentiable(op: Op) -> bool:
    """Whether gradients flow through the op at all."""
    if op.op_type in ("Identity", "Sub") and op.attribute("stops_gradient"):
        return False
    return not (op.domain in ("", "ai.onnx") and op.op_type in NON_DIFFERENTIABLE)


def passes_gradient(op: Op, needs: Sequence[bool]) -> frozenset[int]:
    """The input positions to which the op passes a gradient on, if ``needs`` says which tensors need one."""
    if not is_differentiable(op):
        return frozenset()
    inputs = op.inputs[:1] if op.op_type == "fake_quantize" else op.inputs
    return frozenset(position for position, i in enumerate(inputs) if i is not None and needs[i])


def saved_for_backward(op: Op, graph: Graph, needs: frozenset[int]) -> Saved:
    """What the backward of ``op`` reads if the input positions in ``needs`` need a gradient.

    For an op outside the table it reads every input and output. If the op copies an input first, the copy is saved.
    """
    call = call_of(op, graph, needs)
    rules = recorded.RULES if op.domain == ATEN_DOMAIN else RULES
    if op.op_type not in rules or not is_known(op):
        return Saved(call.present(range(len(call.inputs))), tuple(range(len(call.outputs))))
    saved = rules[op.op_type](call)
    copies = dict(op.copied)
    return Saved(
        tuple(position for position in saved.inputs if position not in copies),
        saved.outputs,
        saved.hidden_nbytes + tuple(copies[position] for position in saved.inputs if position in copies),
    )


def call_of(op: Op, graph: Graph, needs: frozenset[int]) -> RuleCall:
    """The op with its tensors."""
    inputs = tuple(None if i is None else graph.tensors[i] for i in op.inputs)
    return RuleCall(op, inputs, tuple(graph.tensors[i] for i in op.outputs), needs)


def shares_gradient(op: Op, graph: Graph, position: int) -> bool:
    """Whether the gradient of one input is a view of the output's gradient, which takes no memory.

    True for an addend of full shape, of a Gemm too, an operand of Concat (a narrow view) or ReduceSum (an expanded
    view), the dividend of a Mod, the input that a scatter adds to, and the operand of an Einsum without a diagonal.
    """
    index = op.inputs[position]
    if index is None or op.domain not in ("", "ai.onnx"):
        return False
    tensor, output = graph.tensors[index], graph.tensors[op.outputs[0]]
    same = tensor.shape == output.shape and tensor.dtype == output.dtype
    if op.op_type in ("Add", "Sum"):
        return same
    if op.op_type in ("Sub", "Mod"):
        return same and position == 0
    if op.op_type in ("ScatterElements", "ScatterND"):
        return position == 0 and op.attribute("reduction", "none") == "add"
    if op.op_type == "Gemm":
        return position == 2 and same and op.attribute("beta", 1.0) == 1
    if op.op_type == "Einsum" and len(op.inputs) == 1:
        labels = str(op.attribute("equation", "")).partition("->")[0].replace(" ", "").replace(".", "")
        return len(set(labels)) == len(labels)
    return (op.op_type in ("Concat", "ReduceSum") and tensor.dtype == output.dtype) or (op.op_type == "Expand" and same)


def is_read_densely(graph: Graph, tensor: int, makers: Mapping[int, Op], ends_at: Callable[[int], bool]) -> bool:
    """Whether some backward copies the gradient of ``tensor``, an expanded view, into a dense layout.

    Products, convolutions and norms do, also behind views and sums that pass the gradient on; elementwise ops read
    any layout. An unknown op is assumed to copy. ``makers`` has the op that makes each tensor; ``ends_at`` says whether
    the gradient of a tensor is a sum, which is dense.
    """
    waiting, seen = [tensor], {tensor}
    while waiting:
        current = waiting.pop()
        op = makers.get(current)
        if op is None or ends_at(current):
            continue
        if op.view is View.NONE and op.op_type in elementwise.RULES and not op.domain:
            passed = [p for p in range(len(op.inputs)) if shares_gradient(op, graph, p)]
        elif op.view is View.WHOLE:
            passed = [0]
        elif op.op_type in ("ReduceSum", "Concat"):
            passed = list(range(len(op.inputs)))
        else:
            return True
        fresh = [i for p in passed if (i := op.inputs[p]) is not None and i not in seen]
        seen.update(fresh)
        waiting.extend(fresh)
    return False
