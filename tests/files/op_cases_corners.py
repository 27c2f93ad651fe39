"""Ops in unusual form: other types, outputs that hold what is saved, broadcasting, several operands, attributes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.files.op_cases import Case, constant, on_image, positive, quiet, randn

IMAGE, HEADS = (2, 8, 6, 6), (2, 3, 8, 16)
Q, K, V = randn(*HEADS), randn(*HEADS) + 1, randn(*HEADS) + 2
MASK = randn(8, 8)
attend = F.scaled_dot_product_attention


def einsum(equation: str, *shapes: tuple[int, ...]) -> Case:
    operands = tuple(randn(*shape) + i for i, shape in enumerate(shapes))
    return Case("Einsum", "x" * len(shapes), operands, lambda *given: torch.einsum(equation, *given),
                {"equation": equation}, equation)  # fmt: skip


def capped_attention(q: Any, k: Any, v: Any) -> Any:
    """softmax(30 tanh(q k / 30)) v, with the scale shared out as torch's composition does."""
    scores = torch.tanh((q * 0.5) @ (k * 0.5).transpose(-1, -2) / 30) * 30
    return scores.softmax(-1) @ v


def attention_with_scores(q: Any, k: Any, v: Any) -> Any:
    scores = (q * 0.5) @ (k * 0.5).transpose(-1, -2)
    return scores.softmax(-1) @ v, k.clone(), v.clone(), scores


def attention_with_probabilities(q: Any, k: Any, v: Any) -> Any:
    probabilities = ((q * 0.5) @ (k * 0.5).transpose(-1, -2)).softmax(-1)
    return probabilities @ v, k.clone(), v.clone(), probabilities


def attention_with_past(q: Any, k: Any, v: Any, mask: Any, past_k: Any, past_v: Any) -> Any:
    k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    return attend(q, k, v), k, v


def group_norm_18(x: Any, w: Any, b: Any) -> Any:
    """Opset 18: scale and bias for each of four groups."""
    normalised = F.group_norm(x, 4).view(2, 4, 2, 6, 6)
    return (normalised * w.view(1, 4, 1, 1, 1) + b.view(1, 4, 1, 1, 1)).view(*IMAGE)


def double(*shape: int) -> torch.Tensor:
    return positive(*shape).double()


def batch_norm(x: Any, w: Any, b: Any, mean: Any, variance: Any) -> Any:
    return F.batch_norm(x, mean, variance, w, b, training=True)


def scatter_reduce(reduction: str, torch_name: str) -> Case:
    return Case("ScatterElements", "xxx", (positive(4, 6), torch.ones(4, 2, dtype=torch.int64), positive(4, 2)),
                lambda x, i, u: x.scatter_reduce(1, i, u, torch_name), {"axis": 1, "reduction": reduction},
                reduction)  # fmt: skip


CASES = [
    Case("LayerNormalization", "xww", (double(2, 5, 8), double(8), double(8)),
         lambda x, w, b: F.layer_norm(x, (8,), w, b), note="double"),
    Case("LayerNormalization", "xww", (randn(2, 5, 8), randn(8), randn(8)),
         lambda x, w, b: torch.native_layer_norm(x, [8], w, b, 1e-5), note="statistics as outputs"),
    Case("BatchNormalization", "xwwcc", (double(*IMAGE), *(double(8) for _ in range(4))), batch_norm, note="double"),
    Case("GroupNormalization", "xww", (randn(*IMAGE), randn(4), randn(4)), group_norm_18, {"num_groups": 4},
         "opset 18"),
    Case("LayerNormalization", "xxx", (randn(2, 5, 8), positive(8), randn(8)),
         lambda x, w, b: F.layer_norm(x, (8,), w, b), note="computed scale"),
    Case("BatchNormalization", "xxx", (randn(*IMAGE), positive(8), randn(8)),
         lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), note="computed scale"),
    Case("GroupNormalization", "xxx", (randn(*IMAGE), positive(8), randn(8)),
         lambda x, w, b: F.group_norm(x, 4, w, b), {"num_groups": 4}, "computed scale"),
    Case("InstanceNormalization", "xxx", (randn(*IMAGE), positive(8), randn(8)),
         lambda x, w, b: F.instance_norm(x, weight=w, bias=b), note="computed scale"),
    Case("ConvTranspose", "xx", (randn(*IMAGE), randn(8, 4, 2, 2)), F.conv_transpose2d, note="computed weight"),
    Case("PRelu", "xx", (randn(4, 6), positive(6)), F.prelu, note="computed slope"),
    Case("CausalConvWithState", "xx", (randn(2, 4, 10), randn(4, 1, 3)),
         lambda x, w: F.conv1d(F.pad(x, (2, 0)), w, groups=4), note="computed weight"),
    on_image("MaxPool", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), note="indices as output"),
    Case("Dropout", "xcc", (randn(4, 6), torch.tensor(0.1), torch.tensor(True)),
         lambda x, ratio, training: torch.native_dropout(x, 0.1, True), note="mask as output"),
    Case("Clip", "xxx", (randn(4, 6), randn(4, 6) - 2, randn(4, 6) + 2), torch.clamp, note="bounds that are tensors"),
    Case("Max", "xxx", (randn(4, 6), randn(4, 6) + 1, randn(4, 6) - 1),
         lambda a, b, c: torch.maximum(torch.maximum(a, b), c), note="three"),
    Case("Min", "xxxx", tuple(randn(4, 6) + i for i in range(4)),
         lambda a, b, c, d: torch.minimum(torch.minimum(torch.minimum(a, b), c), d), note="four"),
    Case("Gemm", "xxx", (randn(6, 4), randn(6, 5), randn(5)),
         lambda a, b, c: torch.addmm(c, a.t(), b, alpha=0.5, beta=2),
         {"transA": 1, "alpha": 0.5, "beta": 2.0}, "alpha"),
    Case("MatMul", "xx", (randn(6), randn(6) + 1), torch.matmul, note="vectors"),
    Case("MatMul", "xx", (randn(4, 6), randn(6)), torch.matmul, note="matrix x vector"),
    Case("MatMul", "xx", (randn(6), randn(6, 5)), torch.matmul, note="vector x matrix"),
    Case("MatMul", "xx", (randn(2, 3, 4, 6), randn(3, 6, 5)), torch.matmul, note="repeated over the batch"),
    Case("MatMul", "xx", (randn(2, 1, 4, 6), randn(2, 3, 6, 5)), torch.matmul, note="repeated over heads"),
    Case("MatMul", "xx", (randn(2, 3, 4, 6), randn(1, 1, 6, 5)), torch.matmul, note="repeated over all"),
    Case("MatMul", "xx", (randn(2, 1, 4, 6), randn(1, 3, 6, 5)), torch.matmul, note="both repeated"),
    einsum("ij,jk,kl->il", (4, 6), (6, 5), (5, 3)),
    einsum("bij,bjk,bkl,lm->bim", (2, 4, 6), (2, 6, 5), (2, 5, 3), (3, 7)),
    einsum("i,j->ij", (4,), (5,)),
    einsum("ij,ij->ij", (4, 5), (4, 5)),
    einsum("...ij,...jk", (2, 4, 6), (2, 6, 5)),
    einsum("ii->i", (4, 4)),
    einsum("ij->j", (4, 5)),
    scatter_reduce("mul", "prod"),
    scatter_reduce("min", "amin"),
    scatter_reduce("max", "amax"),
    Case("ScatterElements", "xxx", (randn(4, 6), torch.ones(4, 2, dtype=torch.int64), randn(4, 2)),
         lambda x, i, u: x.scatter_add(1, i, u), {"axis": 1, "reduction": "add"}, "add"),
    Case("ScatterElements", "xxx", (randn(4, 6), torch.ones(4, 2, dtype=torch.int32), randn(4, 2)),
         lambda x, i, u: x.scatter(1, i.long(), u), {"axis": 1}, "int32 indices"),
    Case("GatherElements", "xx", (randn(4, 6), torch.ones(4, 2, dtype=torch.int32)), lambda x, i: x.gather(1, i.long()),
         note="int32 indices"),
    Case("ScatterND", "xxx", (randn(4, 6), constant(0, 2).view(2, 1), randn(2, 6)),
         lambda x, i, u: x.index_put((i[:, 0],), u, accumulate=True), {"reduction": "add"}, "add"),
    Case("ScatterND", "xxx", (positive(4, 6), constant(0, 2).view(2, 1), positive(2, 6)),
         quiet(lambda x, i, u: x.index_reduce(0, i[:, 0], u, "prod")), {"reduction": "mul"}, "mul"),
    Case("ScatterND", "xxx", (positive(4, 6), torch.tensor([[0, 1], [2, 3]]), positive(2)),
         quiet(lambda x, i, u: x.flatten().index_reduce(0, i[:, 0] * 6 + i[:, 1], u, "amax").view(4, 6)),
         {"reduction": "max"}, "max of points"),
    Case("Gather", "xx", (randn(4, 6), torch.tensor([[1, 2], [0, 1]])), lambda x, i: x[:, i], {"axis": 1},
         "2d indices"),
    Case("Gather", "xx", (randn(4, 6), torch.tensor([1, 2], dtype=torch.int32)), lambda x, i: x.index_select(1, i),
         {"axis": 1}, "int32 indices"),
    Case("ReduceProd", "x", (positive(4, 6),), lambda x: x.prod(), {"keepdims": 0}, "all"),
    Case("ReduceMax", "x", (positive(4, 6),), lambda x: x.amax(), {"keepdims": 0}, "all"),
    Case("ReduceMax", "xc", (positive(4, 6), constant(1)), lambda x, _: x.amax(1, keepdim=True), note="keepdims"),
    Case("ReduceL1", "xc", (positive(4, 6, 5), constant(0, 2)), lambda x, _: torch.linalg.vector_norm(x, 1, (0, 2)),
         {"keepdims": 0}, "two axes"),
    Case("ReduceLogSumExp", "xc", (positive(4, 6, 5), constant(0, 2)), lambda x, _: x.logsumexp((0, 2)),
         {"keepdims": 0}, "two axes"),
    Case("Softmax", "x", (randn(2, 3, 4),), lambda x: x.reshape(2, 12).softmax(1).view(2, 3, 4), {"axis": 1},
         "flattened, opset 12"),
    Case("CumSum", "xc", (randn(4, 6), constant(1)), lambda x, _: F.pad(x.flip(1), (1, -1)).cumsum(1).flip(1),
         {"exclusive": 1, "reverse": 1}, "exclusive, reverse"),
    Case("Trilu", "xc", (randn(4, 6), torch.tensor(1)), lambda x, _: torch.tril(x, 1), {"upper": 0}, "lower"),
    Case("Pad", "xc", (randn(*IMAGE), constant(0, 0, 1, 1, 0, 0, 1, 1)),
         lambda x, _: F.pad(x, (1,) * 4, mode="circular"), {"mode": "wrap"}, "wrap"),
    Case("Resize", "x-c", (randn(*IMAGE), None, torch.ones(4)),
         lambda x, *_: F.interpolate(x, scale_factor=2, mode="bicubic"), {"mode": "cubic"}, "bicubic"),
    Case("Cast", "x", (randn(4, 6).half(),), lambda x: x.float(), {"to": 1}, "to float"),
    Case("Pow", "xx", (positive(4, 6), torch.tensor(2.0)), torch.pow, note="computed scalar"),
    Case("Where", "xxx", (randn(4, 1) > 0, randn(4, 6), randn(6)), torch.where, note="broadcast"),
    Case("Attention", "xxxc", (Q, K, V, MASK), lambda q, k, v, mask: attend(q, k, v, mask), note="mask"),
    Case("Attention", "xxxx", (Q, K, V, MASK > -1), lambda q, k, v, mask: attend(q, k, v, mask), note="bool mask"),
    Case("Attention", "xxxx", (Q, K, V, MASK), lambda q, k, v, mask: attend(q, k, v, mask),
         note="mask with a gradient"),
    Case("Attention", "xxx", (Q, K, randn(2, 3, 8, 4)), attend, note="narrow values"),
    Case("Attention", "xxx", (randn(2, 4, 8, 16), randn(2, 2, 8, 16), randn(2, 2, 8, 16) + 1),
         lambda q, k, v: attend(q, k, v, enable_gqa=True), note="grouped queries"),
    Case("Attention", "xxx", (Q, K, V), capped_attention, {"softcap": 30.0}, "soft cap"),
    Case("Attention", "xxx", (randn(2, 4, 8, 16), randn(2, 2, 8, 16), randn(2, 2, 8, 16) + 1),
         lambda q, k, v: capped_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)), {"softcap": 30.0},
         "grouped queries, soft cap"),
    Case("Attention", "xxx", (Q, K, V), attention_with_scores, {"qk_matmul_output_mode": 0}, "scores as output"),
    Case("Attention", "xxx", (Q, K, V), attention_with_probabilities, {"qk_matmul_output_mode": 3},
         "probabilities as output"),
    Case("Attention", "xxx-xx", (Q, K, V, None, K + 1, V + 1), attention_with_past, note="past"),
    Case("Attention", "xxx-xx", (Q, K, V, None, K + 1, V + 1), lambda *operands: attention_with_past(*operands)[0],
         note="past, present not asked for"),
    Case("Attention", "xxx", (Q.bfloat16(), K.bfloat16(), V.bfloat16()), attend, note="bfloat16"),
    Case("Attention", "xxx", (Q.double(), K.double(), V.double()), attend, note="double"),
    Case("SoftmaxCrossEntropyLoss", "xxc", (randn(4, 6), constant(1, 2, 3, 4), positive(6)),
         lambda x, labels, w: F.cross_entropy(x, labels, w), note="weights"),
    Case("SoftmaxCrossEntropyLoss", "xx", (randn(4, 6, 5), torch.ones(4, 5, dtype=torch.int32)),
         lambda x, labels: F.cross_entropy(x, labels.long(), reduction="none"), {"reduction": "none"}, "int32, 2d"),
    Case("NegativeLogLikelihoodLoss", "xxc", (randn(4, 6), constant(1, 2, 3, 4), positive(6)),
         lambda x, labels, w: F.nll_loss(x, labels, w), note="weights"),
]  # fmt: skip

HALF = positive(16, 24).bfloat16()
CASES += [
    Case("Clip", "xcc", (HALF, torch.tensor(0.0), torch.tensor(1.0)), lambda x, *_: x.clamp(0, 1), note="bfloat16"),
    Case("Clip", "xxx", (HALF, HALF - 2, HALF + 2), torch.clamp, note="tensors, bfloat16"),
    Case("ReduceMax", "xc", (HALF, constant(1)), lambda x, _: x.amax(1), {"keepdims": 0}, "bfloat16"),
    Case("Max", "xx", (HALF, HALF + 1), torch.maximum, note="bfloat16"),
    Case("Pow", "xx", (HALF, HALF + 1), torch.pow, note="bfloat16"),
    Case("Pow", "xc", (HALF, torch.tensor(3.0)), lambda x, _: x.pow(3.0), note="cube, bfloat16"),
    Case("TopK", "xc", (HALF, constant(2)), lambda x, _: tuple(x.topk(2, 1)), note="bfloat16"),
    Case("CumSum", "xc", (HALF, constant(1)), lambda x, _: x.cumsum(1), note="bfloat16"),
    Case("Gelu", "x", (HALF,), F.gelu, note="bfloat16"),
    Case("Softmax", "x", (HALF,), lambda x: x.softmax(-1), {"axis": -1}, "bfloat16"),
    Case("ReduceL2", "xc", (HALF, constant(1)), lambda x, _: torch.linalg.vector_norm(x, 2, 1), {"keepdims": 0},
         "bfloat16"),
    Case("ReduceLogSumExp", "xc", (HALF, constant(1)), lambda x, _: x.logsumexp(1), {"keepdims": 0}, "bfloat16"),
    Case("GatherElements", "xx", (HALF, torch.ones(16, 2, dtype=torch.int64)), lambda x, i: x.gather(1, i),
         note="bfloat16"),
    Case("MatMul", "xx", (HALF, HALF.t()), torch.matmul, note="bfloat16"),
    Case("Div", "xx", (HALF, HALF[0]), torch.div, note="broadcast, bfloat16"),
    Case("Conv", "xw", (randn(*IMAGE).bfloat16(), randn(4, 8, 3, 3).bfloat16()), F.conv2d, note="bfloat16"),
    Case("SoftmaxCrossEntropyLoss", "xx", (HALF, torch.arange(16)), F.cross_entropy, note="bfloat16"),
    Case("SoftmaxCrossEntropyLoss", "xc", (randn(4, 6, 5), positive(4, 6, 5)), F.cross_entropy, note="probabilities"),
    Case("SoftmaxCrossEntropyLoss", "xcc", (randn(4, 6), positive(4, 6), positive(6)),
         lambda x, target, w: F.cross_entropy(x, target, w), note="probabilities, weights"),
    Case("LayerNormalization", "xww", (HALF, positive(24), positive(24)),
         lambda x, w, b: F.layer_norm(x, (24,), w, b), note="bfloat16, float32 scale"),
    Case("RMSNormalization", "xw", (HALF, positive(24)), quiet(lambda x, w: F.rms_norm(x, (24,), w)),
         note="bfloat16, float32 scale"),
    Case("GroupNormalization", "xww", (randn(*IMAGE).bfloat16(), positive(8), positive(8)),
         lambda x, w, b: F.group_norm(x, 4, w, b), {"num_groups": 4}, "bfloat16, float32 scale"),
]  # fmt: skip

AT_LEAST = [
    Case("ReduceProd", "xc", (positive(4, 6, 5), constant(1, 2)), lambda x, _: x.prod(2).prod(1), {"keepdims": 0},
         "two axes"),
    Case("LayerNormalization", "xww", (randn(2, 5, 8).bfloat16(), randn(8).bfloat16(), randn(8).bfloat16()),
         lambda x, w, b: F.layer_norm(x, (8,), w, b), note="bfloat16"),
    Case("BatchNormalization", "xww", (randn(*IMAGE).bfloat16(), randn(8).bfloat16(), randn(8).bfloat16()),
         lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), note="bfloat16"),
    einsum("bthd,bshd->bhts", (2, 8, 3, 16), (2, 8, 3, 16)),
    einsum("...ij,jk,...kl", (2, 4, 6), (6, 5), (2, 5, 3)),
    Case("MatMul", "xx", (randn(4, 6), randn(2, 6, 5)), torch.matmul, note="matrix x batch"),
    Case("MatMul", "xx", (randn(6), randn(2, 6, 5)), torch.matmul, note="vector x batch"),
    on_image("Resize", lambda x: F.grid_sample(x, randn(2, 5, 5, 2), align_corners=False),
             coordinate_transformation_mode="tf_crop_and_resize", note="cropped"),
]  # fmt: skip
"""Cases where torch may keep less, or a copy of the same size instead of the operand."""
