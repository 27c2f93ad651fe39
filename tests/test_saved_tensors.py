"""What torch really keeps for the backward, op by op, against the planner's table of rules.

Each case runs one op under torch's saved-tensor hooks, finds every saved tensor's storage among the inputs and
outputs, and calls the rest hidden. Parameters and constants are stationary, so only activations are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.planner.backward_rules import Saved, saved_for_backward, shares_gradient
from ogc_plan.planner.graph import Graph, Op, Role, Storage, Tensor

ROLES = {"x": Role.ACTIVATION, "w": Role.PARAMETER, "c": Role.BUFFER}


@dataclass(frozen=True)
class Case:
    """An ONNX op and the torch call with its meaning.

    ``roles`` has one letter per input: x activation, w parameter, c constant, - absent. ``call`` takes the
    inputs in ONNX order (None where absent).
    """

    op_type: str
    roles: str
    inputs: tuple[Any, ...]
    call: Callable[..., Any]
    attributes: dict[str, object] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        return f"{self.op_type}-{self.note}" if self.note else self.op_type


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def positive(*shape: int) -> torch.Tensor:
    return randn(*shape).abs() * 0.5 + 0.2


def constant(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def unary(op_type: str, call: Callable[..., Any], *, note: str = "", **attributes: object) -> Case:
    return Case(op_type, "x", (positive(4, 6),), call, attributes, note)


def on_image(op_type: str, call: Callable[..., Any], *, note: str = "", **attributes: object) -> Case:
    return Case(op_type, "x", (randn(2, 8, 6, 6),), call, attributes, note)


def reduction(op_type: str, call: Callable[..., Any], note: str = "") -> Case:
    return Case(op_type, "xc", (positive(4, 6), constant(1)), lambda x, axes: call(x), {"keepdims": 0}, note)


def binary(op_type: str, call: Callable[..., Any], *, other: tuple[int, ...] = (4, 6), roles: str = "xx") -> Case:
    return Case(op_type, roles, (positive(4, 6), positive(*other)), call, {}, "" if other == (4, 6) else "broadcast")


def batch_norm(x: Any, w: Any, b: Any, mean: Any, variance: Any) -> Any:
    return F.batch_norm(x, mean, variance, w, b, training=True)


def attention_of_rows(q: Any, k: Any, v: Any) -> Any:
    """3-D operands [N, T, heads * D]: the heads are views, and so is the output."""
    heads = (part.view(2, 8, 3, 16).transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(2, 8, 48)


IMAGE = (2, 8, 6, 6)
HEADS = (2, 3, 8, 16)
CASES = [
    Case("Conv", "xww", (randn(*IMAGE), randn(16, 8, 3, 3), randn(16)), lambda x, w, b: F.conv2d(x, w, b, padding=1)),
    Case("Conv", "xw", (randn(*IMAGE), randn(8, 1, 3, 3)), lambda x, w: F.conv2d(x, w, groups=8), note="depthwise"),
    Case("Conv", "xw", (randn(2, 8, 20), randn(4, 8, 3)), F.conv1d, note="1d"),
    Case("Conv", "xw", (randn(2, 4, 6, 6, 6), randn(4, 4, 3, 3, 3)), F.conv3d, note="3d"),
    Case("Conv", "xx", (randn(*IMAGE), randn(4, 8, 3, 3)), F.conv2d, note="computed weight"),
    Case("ConvTranspose", "xww", (randn(*IMAGE), randn(8, 4, 2, 2), randn(4)), F.conv_transpose2d),
    Case("MatMul", "xw", (randn(4, 6), randn(6, 5)), torch.matmul, note="2d"),
    Case("MatMul", "xw", (randn(2, 4, 6), randn(6, 5)), torch.matmul, note="3d x 2d"),
    Case("MatMul", "xx", (randn(2, 4, 6), randn(2, 6, 5)), torch.matmul, note="3d"),
    Case("MatMul", "xx", (randn(2, 3, 4, 6), randn(2, 3, 6, 5)), torch.matmul, note="4d"),
    Case("Gemm", "xww", (randn(4, 6), randn(5, 6), randn(5)), F.linear, {"transB": 1}),
    Case("Gemm", "xxw", (randn(4, 6), randn(6, 5), randn(5)), lambda a, b, c: torch.addmm(c, a, b), note="computed"),
    Case("Einsum", "xx", (randn(2, 4, 6), randn(2, 6, 5)), lambda a, b: torch.einsum("bij,bjk->bik", a, b)),
    unary("Relu", torch.relu),
    unary("Relu", lambda x: F.relu(x + 0, inplace=True), note="in place"),
    unary("Sigmoid", torch.sigmoid),
    unary("Tanh", torch.tanh),
    unary("Tan", torch.tan),
    unary("Exp", torch.exp),
    unary("Log", torch.log),
    unary("Sqrt", torch.sqrt),
    unary("Reciprocal", torch.reciprocal),
    unary("Abs", torch.abs),
    unary("Neg", torch.neg),
    unary("Erf", torch.erf),
    unary("Sin", torch.sin),
    unary("Cos", torch.cos),
    unary("Sinh", torch.sinh),
    unary("Cosh", torch.cosh),
    unary("Asin", torch.asin),
    unary("Acos", torch.acos),
    unary("Atan", torch.atan),
    unary("Asinh", torch.asinh),
    unary("Atanh", torch.atanh),
    Case("Acosh", "x", (positive(4, 6) + 1,), torch.acosh),
    unary("Gelu", F.gelu),
    unary("Gelu", lambda x: F.gelu(x, approximate="tanh"), note="tanh", approximate="tanh"),
    unary("Swish", F.silu),
    unary("Mish", F.mish),
    unary("Softplus", F.softplus),
    unary("Softsign", F.softsign),
    unary("Elu", F.elu),
    unary("Selu", F.selu),
    unary("Celu", F.celu),
    unary("LeakyRelu", F.leaky_relu),
    unary("HardSigmoid", F.hardsigmoid),
    unary("HardSwish", F.hardswish),
    unary("ThresholdedRelu", lambda x: F.threshold(x, 0.1, 0.0)),
    unary("Softmax", lambda x: F.softmax(x, -1), axis=-1),
    unary("LogSoftmax", lambda x: F.log_softmax(x, -1), axis=-1),
    Case("Clip", "xcc", (randn(4, 6), torch.tensor(0.0), torch.tensor(6.0)), lambda x, low, high: F.relu6(x)),
    Case("Clip", "xcc", (randn(4, 6), torch.tensor(0.0), torch.tensor(1.0)), lambda x, *_: x.clamp(0, 1), note="clamp"),
    Case("PRelu", "xw", (randn(4, 6), randn(6)), F.prelu),
    Case("BatchNormalization", "xwwcc", (randn(*IMAGE), *(positive(8) for _ in range(4))), batch_norm),
    Case("LayerNormalization", "xww", (randn(2, 5, 8), randn(8), randn(8)),
         lambda x, w, b: F.layer_norm(x, (8,), w, b)),
    Case(
        "LayerNormalization", "xww", (randn(2, 5, 8), randn(5, 8), randn(5, 8)),
        lambda x, w, b: F.layer_norm(x, (5, 8), w, b), {"axis": 1}, "two axes",
    ),
    Case(
        "GroupNormalization", "xww", (randn(*IMAGE), randn(8), randn(8)),
        lambda x, w, b: F.group_norm(x, 4, w, b), {"num_groups": 4},
    ),
    Case(
        "InstanceNormalization", "xww", (randn(*IMAGE), randn(8), randn(8)),
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    ),
    on_image("LRN", lambda x: F.local_response_norm(x, 5), size=5),
    on_image("MaxPool", lambda x: F.max_pool2d(x, 3, 2, 1), kernel_shape=(3, 3)),
    Case("MaxPool", "x", (randn(2, 4, 8),), lambda x: F.max_pool1d(x, 2), note="1d"),
    Case("MaxPool", "x", (randn(2, 4, 4, 4, 4),), lambda x: F.max_pool3d(x, 2), note="3d"),
    on_image("GlobalMaxPool", lambda x: F.adaptive_max_pool2d(x, 1)),
    on_image("AveragePool", lambda x: F.avg_pool2d(x, 2), kernel_shape=(2, 2)),
    on_image("GlobalAveragePool", lambda x: F.adaptive_avg_pool2d(x, 1)),
    Case("Dropout", "xcc", (randn(4, 6), torch.tensor(0.1), torch.tensor(True)),
         lambda x, ratio, training: torch.native_dropout(x, 0.1, True)[0], note="native"),
    binary("Add", torch.add),
    binary("Add", torch.add, other=(6,), roles="xw"),
    binary("Sub", torch.sub),
    binary("Sub", torch.sub, other=(6,), roles="xw"),
    binary("Mul", torch.mul),
    binary("Mul", torch.mul, other=(6,), roles="xw"),
    binary("Div", torch.div),
    binary("Div", torch.div, other=(6,), roles="xw"),
    Case("Mul", "xc", (randn(4, 6), torch.tensor(1.5)), torch.mul, note="constant"),
    Case("Pow", "xc", (positive(4, 6), torch.tensor(2.0)), lambda x, exponent: x.pow(2.0), note="square"),
    Case("Pow", "xc", (positive(4, 6), torch.tensor(0.5)), lambda x, exponent: x.pow(0.5), note="root"),
    binary("Pow", torch.pow),
    binary("Max", torch.maximum),
    binary("Min", torch.minimum),
    Case("Sum", "xxx", (randn(4, 6), randn(4, 6), randn(4, 6)), lambda a, b, c: a + b + c),
    reduction("ReduceMean", lambda x: x.mean(1)),
    reduction("ReduceSum", lambda x: x.sum(1)),
    reduction("ReduceMax", lambda x: x.amax(1)),
    reduction("ReduceMin", lambda x: x.amin(1)),
    reduction("ReduceProd", lambda x: x.prod(1)),
    reduction("ReduceL1", lambda x: torch.linalg.vector_norm(x, 1, 1)),
    reduction("ReduceL2", lambda x: torch.linalg.vector_norm(x, 2, 1)),
    reduction("ReduceLogSumExp", lambda x: x.logsumexp(1)),
    reduction("ReduceLogSum", lambda x: x.sum(1).log()),
    reduction("ReduceSumSquare", lambda x: x.square().sum(1)),
    Case("CumSum", "xc", (randn(4, 6), constant(1)), lambda x, axis: x.cumsum(1)),
    Case("TopK", "xc", (randn(4, 6), constant(2)), lambda x, k: tuple(x.topk(2, 1))),
    Case("Concat", "xx", (randn(4, 6), randn(4, 3)), lambda a, b: torch.cat([a, b], 1), {"axis": 1}),
    Case("Split", "xc", (randn(4, 6), constant(3, 3)), lambda x, sizes: x.split(3, 1), {"axis": 1}),
    Case("Slice", "xccc", (randn(4, 6), constant(1), constant(3), constant(1)), lambda x, *_: x[:, 1:3]),
    unary("Transpose", lambda x: x.transpose(0, 1)),
    Case("Reshape", "xc", (randn(4, 6), constant(24)), lambda x, shape: x.reshape(24)),
    Case("Flatten", "x", (randn(*IMAGE),), lambda x: x.flatten(1)),
    unary("Squeeze", lambda x: x.squeeze()),
    Case("Unsqueeze", "xc", (randn(4, 6), constant(0)), lambda x, axes: x.unsqueeze(0)),
    unary("Identity", lambda x: x.view_as(x)),
    Case("Expand", "xc", (randn(1, 6), constant(4, 6)), lambda x, shape: x.expand(4, 6)),
    Case("Tile", "xc", (randn(4, 6), constant(2, 1)), lambda x, repeats: x.repeat(2, 1)),
    Case("Pad", "xc", (randn(*IMAGE), constant(0, 0, 1, 1, 0, 0, 1, 1)), lambda x, _: F.pad(x, (1,) * 4)),
    Case("Pad", "xc", (randn(*IMAGE), constant(0, 0, 1, 1, 0, 0, 1, 1)),
         lambda x, _: F.pad(x, (1,) * 4, mode="reflect"), {"mode": "reflect"}, "reflect"),
    Case("Pad", "xc", (randn(*IMAGE), constant(0, 0, 1, 1, 0, 0, 1, 1)),
         lambda x, _: F.pad(x, (1,) * 4, mode="replicate"), {"mode": "edge"}, "edge"),
    Case("Gather", "wx", (randn(10, 4), torch.arange(10).view(2, 5)),
         lambda w, ids: F.embedding(ids, w), note="embedding"),
    Case("Gather", "xx", (randn(4, 6), constant(0, 2)), lambda x, i: x.index_select(1, i), {"axis": 1}, "index_select"),
    Case("GatherElements", "xx", (randn(4, 6), torch.ones(4, 2, dtype=torch.int64)), lambda x, i: x.gather(1, i)),
    Case("ScatterElements", "xxx", (randn(4, 6), torch.ones(4, 1, dtype=torch.int64), randn(4, 1)),
         lambda x, i, updates: x.scatter(1, i, updates), {"axis": 1}),
    Case("Where", "xxx", (randn(4, 6) > 0, randn(4, 6), randn(4, 6)), torch.where),
    Case("Trilu", "x", (randn(4, 6),), torch.triu),
    Case("Cast", "x", (randn(4, 6),), lambda x: x.half(), {"to": 10}),
    Case("Resize", "x-c", (randn(*IMAGE), None, torch.ones(4)), lambda x, *_: F.interpolate(x, scale_factor=2)),
    Case("Resize", "x-c", (randn(*IMAGE), None, torch.ones(4)),
         lambda x, *_: F.interpolate(x, scale_factor=2, mode="bilinear"), {"mode": "linear"}, "bilinear"),
    on_image("DepthToSpace", lambda x: F.pixel_shuffle(x, 2), blocksize=2),
    Case("Attention", "xxx", (randn(*HEADS), randn(*HEADS) + 1, randn(*HEADS) + 2), F.scaled_dot_product_attention),
    Case("Attention", "xxx", (randn(*HEADS), randn(*HEADS) + 1, randn(*HEADS) + 2),
         lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), {"is_causal": 1}, "causal"),
    Case("Attention", "xxx", (randn(2, 8, 48), randn(2, 8, 48) + 1, randn(2, 8, 48) + 2),
         attention_of_rows, {"q_num_heads": 3, "kv_num_heads": 3}, "3d"),
    Case("SoftmaxCrossEntropyLoss", "xx", (randn(4, 6), constant(1, 2, 3, 4)), F.cross_entropy),
    Case("NegativeLogLikelihoodLoss", "xx", (randn(4, 6), constant(1, 2, 3, 4)), F.nll_loss),
]  # fmt: skip


def gradient_choices(case: Case) -> list[frozenset[int]]:
    """Which inputs need a gradient: all, all but the parameters, only the parameters, and each one alone."""
    floats = [
        i for i, (role, value) in enumerate(zip(case.roles, case.inputs, strict=True))
        if role in "xw" and value is not None and value.is_floating_point()
    ]  # fmt: skip
    parameters = frozenset(i for i in floats if case.roles[i] == "w")
    choices = [frozenset(floats), frozenset(floats) - parameters, parameters]
    if not parameters:
        choices += [frozenset([i]) for i in floats]
    return [choice for choice in dict.fromkeys(choices) if choice]


VARIANTS = [
    pytest.param(case, needs, id=f"{case}-gradient of {','.join(map(str, sorted(needs)))}")
    for case in CASES
    for needs in gradient_choices(case)
]


def leaves_of(case: Case, needs: frozenset[int]) -> list[Any]:
    return [
        value if value is None else value.detach().clone().requires_grad_(i in needs)
        for i, value in enumerate(case.inputs)
    ]


def outputs_of(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def measured(case: Case, needs: frozenset[int]) -> Saved:
    """What torch saves, by storage; only activations, and hidden buffers that are not empty."""
    leaves, saved = leaves_of(case, needs), []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = outputs_of(case.call(*leaves))
    inputs = {address(value): i for i, value in enumerate(leaves) if value is not None}
    results = {address(value): i for i, value in enumerate(outputs) if address(value) not in inputs}
    hidden = {
        address(tensor): tensor.untyped_storage().nbytes()
        for tensor in saved
        if address(tensor) not in inputs and address(tensor) not in results
    }
    found = {inputs[address(tensor)] for tensor in saved if address(tensor) in inputs}
    return Saved(
        tuple(sorted(i for i in found if case.roles[i] == "x")),
        tuple(sorted({results[address(tensor)] for tensor in saved if address(tensor) in results})),
        tuple(sorted(nbytes for nbytes in hidden.values() if nbytes)),
    )


def graph_of(case: Case) -> Graph:
    """The planner's graph of the one op; every tensor has its own storage."""
    with torch.no_grad():
        outputs = outputs_of(case.call(*leaves_of(case, frozenset())))
    tensors: list[Tensor] = []
    inputs: list[int | None] = []
    for role, value in zip(case.roles, case.inputs, strict=True):
        inputs.append(None if value is None else len(tensors))
        if value is not None:
            tensors.append(planner_tensor(value, len(tensors), ROLES[role]))
    first = len(tensors)
    for value in outputs:
        tensors.append(planner_tensor(value, len(tensors), Role.ACTIVATION))
    op = Op("op", case.op_type, "", tuple(inputs), tuple(range(first, len(tensors))), tuple(case.attributes.items()))
    storages = tuple(Storage(tensor.name, tensor.nbytes) for tensor in tensors)
    return Graph("one op", storages, tuple(tensors), (op,), (), op.outputs)


def planner_tensor(value: torch.Tensor, index: int, role: Role) -> Tensor:
    return Tensor(f"t{index}", tuple(value.shape), str(value.dtype).removeprefix("torch."), index, role)


def ruled(case: Case, needs: frozenset[int]) -> Saved:
    """What the planner says, in the same terms."""
    graph = graph_of(case)
    saved = saved_for_backward(graph.ops[0], graph, needs)
    inputs = tuple(sorted(i for i in saved.inputs if case.roles[i] == "x"))
    return Saved(inputs, tuple(sorted(saved.outputs)), tuple(sorted(saved.hidden_nbytes)))


@pytest.mark.parametrize(("case", "needs"), VARIANTS)
def test_the_rule_names_exactly_what_torch_saves(case: Case, needs: frozenset[int]) -> None:
    assert ruled(case, needs) == measured(case, needs)


def returns_a_view(case: Case, needs: frozenset[int]) -> bool:
    """Whether torch's output lives in an input's memory: the kind of view then decides about its gradient."""
    leaves = leaves_of(case, needs)
    outputs = [value for value in outputs_of(case.call(*leaves)) if value.requires_grad]
    return len(outputs) != 1 or any(address(outputs[0]) == address(leaf) for leaf in leaves if leaf is not None)


@pytest.mark.parametrize(("case", "needs"), [variant for variant in VARIANTS if not returns_a_view(*variant.values)])
def test_a_gradient_that_the_rule_calls_shared_takes_no_memory_in_torch(case: Case, needs: frozenset[int]) -> None:
    leaves = leaves_of(case, needs)
    outputs = [value for value in outputs_of(case.call(*leaves)) if value.requires_grad]
    arriving = torch.ones_like(outputs[0])
    wanted = sorted(needs)
    given = torch.autograd.grad(outputs[0], [leaves[i] for i in wanted], arriving)
    graph = graph_of(case)
    shared = {i for i, gradient in zip(wanted, given, strict=True) if address(gradient) == address(arriving)}
    assert {i for i in wanted if shares_gradient(graph.ops[0], graph, i)} == shared


def test_a_transposed_operand_of_a_batched_matmul_is_saved_as_a_copy_of_the_same_size() -> None:
    """The rule charges the operand itself: the same bytes, in another storage."""
    case = Case(
        "MatMul", "xx", (randn(2, 4, 18), randn(2, 4, 18) + 1),
        lambda a, b: a.view(2, 4, 3, 6).transpose(1, 2) @ b.view(2, 4, 3, 6).transpose(1, 2).transpose(-1, -2),
    )  # fmt: skip
    assert measured(case, frozenset([0, 1])) == Saved((), (), (case.inputs[0].nbytes,) * 2)


def test_eager_dropout_on_the_cpu_keeps_a_mask_of_floats_where_the_rule_charges_bytes() -> None:
    case = Case("Dropout", "x", (randn(4, 6),), lambda x: F.dropout(x, 0.1, training=True))
    assert measured(case, frozenset([0])).hidden_nbytes == (4 * ruled(case, frozenset([0])).hidden_nbytes[0],)


def test_rms_norm_on_the_cpu_also_keeps_the_normalised_input_that_the_fused_kernel_does_without() -> None:
    case = Case("RMSNormalization", "xw", (randn(2, 5, 8), randn(8)), lambda x, w: F.rms_norm(x, (8,), w))
    both = frozenset([0, 1])
    assert measured(case, both).hidden_nbytes == (*ruled(case, both).hidden_nbytes, case.inputs[0].nbytes)


def test_attention_with_dropout_on_the_cpu_is_decomposed_and_keeps_probabilities() -> None:
    """Two probability matrices and a mask of [N, heads, T, T] beside copies of q and k: charged only when annotated."""
    case = Case(
        "Attention", "xxx", (randn(*HEADS), randn(*HEADS) + 1, randn(*HEADS) + 2),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),
    )  # fmt: skip
    square, operand = 2 * 3 * 8 * 8 * 4, case.inputs[0].nbytes
    assert measured(case, frozenset([0, 1, 2])) == Saved((2,), (), (square,) * 3 + (operand,) * 2)
