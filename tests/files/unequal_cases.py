"""Cases whose operands have unequal sizes, generated for every op with several shapes: operands, indices, axes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from tests.files.op_cases import Case, gradient_choices, positive, quiet, randn
from tests.files.op_cases_rest import causal_convolution, reversed_sequence, rotated, written_to_cache

FULL = (6, 32, 24)
NARROW = ((24,), (32, 1), (6, 1, 1), (6, 32, 1), (1, 32, 24), (1,), ())
PAIRS = [(FULL, FULL), *((FULL, small) for small in NARROW), *((small, FULL) for small in NARROW),
         ((6, 1, 24), (32, 1)), ((6, 32, 1), (24,))]  # fmt: skip
IMAGE = (4, 8, 12, 12)


def values(shape: tuple[int, ...], shift: float = 0) -> torch.Tensor:
    return positive(*shape) + shift if shape else torch.tensor(0.7 + shift)


def note(*parts: object) -> str:
    return " ".join("x".join(map(str, part)) or "scalar" if isinstance(part, tuple) else str(part) for part in parts)


def indices(shape: tuple[int, ...], below: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(prod(shape) + below)
    return torch.randint(0, below, shape, generator=generator)


def constants(*sizes: int) -> torch.Tensor:
    return torch.tensor(sizes)


def binary() -> Iterator[Case]:
    calls: dict[str, Any] = {
        "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Pow": torch.pow,
        "Max": torch.maximum, "Min": torch.minimum, "Mod": torch.fmod,
    }  # fmt: skip
    for (op_type, call), (left, right), roles in product(calls.items(), PAIRS, ("xx", "xw", "wx")):
        if roles == "xx" or left != right:
            attributes = {"fmod": 1} if op_type == "Mod" else {}
            yield Case(op_type, roles, (values(left), values(right, 1)), call, attributes, note(left, right, roles))
    for shapes in ((FULL, (24,), (32, 1)), ((24,), FULL, FULL), ((24,), (32, 1), FULL), (FULL, (), FULL)):
        operands = tuple(values(shape, i) for i, shape in enumerate(shapes))
        yield Case("Sum", "xxx", operands, lambda a, b, c: a + b + c, {}, note(*shapes))
        yield Case("Mean", "xxx", operands, lambda a, b, c: (a + b + c) / 3, {}, note(*shapes))
        yield Case("Max", "xxx", operands, lambda a, b, c: torch.maximum(torch.maximum(a, b), c), {}, note(*shapes))
        yield Case("Min", "xxx", operands, lambda a, b, c: torch.minimum(torch.minimum(a, b), c), {}, note(*shapes))
    for slope in ((1,), (8,)):
        yield Case("PRelu", "xw", (randn(*IMAGE), values(slope)), F.prelu, {}, note(IMAGE, slope))
        yield Case("PRelu", "xx", (randn(*IMAGE), values(slope)), F.prelu, {}, note(IMAGE, slope, "computed"))


def chosen() -> Iterator[Case]:
    for condition, left, right in product((FULL, (32, 1), (24,)), (FULL, (24,), ()), (FULL, (6, 1, 1), ())):
        if FULL in (condition, left, right):
            yield Case("Where", "xxx", (values(condition) > 0.6, values(left), values(right, 1)), torch.where, {},
                       note(condition, left, right))  # fmt: skip
    for low, high in ((FULL, FULL), ((24,), (32, 1)), ((), ())):
        yield Case("Clip", "xxx", (randn(*FULL), values(low) - 1, values(high)), torch.clamp, {}, note(FULL, low, high))


def products() -> Iterator[Case]:
    shapes = [
        ((48, 24), (24,)), ((24,), (24, 48)), (FULL, (24, 10)), (FULL, (24, 100)), (FULL, (6, 24, 10)),
        (FULL, (6, 24, 100)), (FULL, (1, 24, 10)), (FULL, (1, 24, 100)), ((1, 32, 24), (6, 24, 10)),
        ((1, 32, 24), (6, 24, 100)), ((2, 3, 32, 24), (3, 24, 10)), ((2, 3, 32, 24), (3, 24, 100)),
        ((2, 3, 8, 24), (2, 1, 24, 100)), ((2, 1, 8, 24), (1, 3, 24, 100)), ((2, 3, 8, 24), (24, 100)),
        ((32, 24), (6, 24, 10)), ((32, 24), (6, 24, 100)), (FULL, (24,)), ((24,), (6, 24, 100)),
    ]  # fmt: skip
    for (left, right), roles in product(shapes, ("xx", "xw", "wx")):
        yield Case("MatMul", roles, (randn(*left), randn(*right) + 1), torch.matmul, {}, note(left, right, roles))
    for added, width, roles, (alpha, beta) in product(
        ((), (1,), "row", "column", "full"), (10, 100), ("xxx", "xww", "xwx"), ((1.0, 1.0), (0.5, 2.0))
    ):
        shape = {"row": (width,), "column": (48, 1), "full": (48, width)}.get(added, added)  # type: ignore[call-overload]
        yield Case(
            "Gemm", roles, (randn(48, 24), randn(24, width) + 1, values(shape)),
            lambda a, b, c, alpha=alpha, beta=beta: torch.addmm(c, a, b, alpha=alpha, beta=beta),
            {"alpha": alpha, "beta": beta}, note(added, width, roles, alpha),
        )  # fmt: skip
    for equation, *operands in (
        ("ij,jk->ik", (48, 24), (24, 100)), ("ij,jk->ik", (8, 100), (100, 8)), ("bij,jk->bik", FULL, (24, 100)),
        ("bij,bj->bi", FULL, (6, 24)), ("bij,j->bi", FULL, (24,)), ("i,j->ij", (100,), (60,)),
        ("bhqd,bhkd->bhqk", (2, 3, 8, 16), (2, 3, 40, 16)), ("bhqk,bhkd->bhqd", (2, 3, 8, 40), (2, 3, 40, 16)),
        ("bchw,cd->bdhw", (2, 8, 6, 6), (8, 40)), ("bij,ij->bij", FULL, (32, 24)),
    ):  # fmt: skip
        given = tuple(randn(*shape) + i for i, shape in enumerate(operands))
        yield Case("Einsum", "xx", given, lambda a, b, e=equation: torch.einsum(e, a, b), {"equation": equation},
                   note(equation, *operands))  # fmt: skip


def gathered() -> Iterator[Case]:
    table = (40, 24)
    for axis, count, role in product((0, 1), (3, 400), "xw"):

        def select(x: Any, i: Any, axis: int = axis) -> Any:
            return x.index_select(axis, i)

        if role == "w" and axis == 0:

            def select(x: Any, i: Any, axis: int = axis) -> Any:
                return F.embedding(i, x)

        yield Case("Gather", role + "x", (randn(*table), indices((count,), table[axis])), select, {"axis": axis},
                   note(table, axis, count, role))  # fmt: skip
    for axis, shape in ((0, (3, 2)), (0, (20, 20)), (1, (3, 2)), (1, (20, 20))):

        def pick(x: Any, i: Any, axis: int = axis) -> Any:
            return x[i] if axis == 0 else x[:, i]

        yield Case("Gather", "xx", (randn(*table), indices(shape, 24)), pick, {"axis": axis}, note(axis, shape))
    for axis, count in product((0, 1), (2, 300)):
        shape = (count, 24) if axis == 0 else (40, count)
        index = indices(shape, table[axis])
        yield Case("GatherElements", "xx", (randn(*table), index), lambda x, i, a=axis: x.gather(a, i), {"axis": axis},
                   note(axis, count))  # fmt: skip
        for role in ("x", "c"):
            for reduction, name in (("none", ""), ("add", "sum"), ("mul", "prod"), ("min", "amin"), ("max", "amax")):

                def scatter(x: Any, i: Any, u: Any, axis: int = axis, name: str = name) -> Any:
                    if name in ("", "sum"):
                        return x.scatter(axis, i, u) if not name else x.scatter_add(axis, i, u)
                    return x.scatter_reduce(axis, i, u, name)

                yield Case("ScatterElements", role + "xx", (positive(*table), index, positive(*shape) + 1), scatter,
                           {"axis": axis, "reduction": reduction}, note(axis, count, reduction, role))  # fmt: skip
    for count in (3, 400):
        rows, points = indices((count, 1), 24), indices((count, 2), 24)
        yield Case("GatherND", "xx", (randn(*table), rows), lambda x, i: x[i[:, 0]], {}, note("rows", count))
        yield Case("GatherND", "xx", (randn(*table), points), lambda x, i: x[tuple(i.unbind(-1))], {},
                   note("points", count))  # fmt: skip
        for adds in (False, True):
            reduction = {"reduction": "add"} if adds else {}
            yield Case("ScatterND", "xxx", (randn(*table), rows, randn(count, 24)),
                       lambda x, i, u, adds=adds: x.index_put((i[:, 0],), u, accumulate=adds), reduction,
                       note("rows", count, adds))  # fmt: skip
            yield Case("ScatterND", "xxx", (randn(*table), points, randn(count)),
                       lambda x, i, u, adds=adds: x.index_put(tuple(i.unbind(-1)), u, accumulate=adds), reduction,
                       note("points", count, adds))  # fmt: skip
        for reduction, name in (("mul", "prod"), ("min", "amin"), ("max", "amax")):
            yield Case("ScatterND", "xxx", (positive(*table), rows, positive(count, 24) + 1),
                       quiet(lambda x, i, u, name=name: x.index_reduce(0, i[:, 0], u, name)),
                       {"reduction": reduction}, note("rows", count, reduction))  # fmt: skip
    for size, kept in ((400, 3), (400, 390)):
        mask = torch.arange(size) < kept
        yield Case("Compress", "xx", (randn(size, 24), mask), lambda x, c: x[c], {"axis": 0}, note(size, kept))


def reductions() -> Iterator[Case]:
    calls: dict[str, Any] = {
        "ReduceSum": lambda x, a, k: x.sum(a, keepdim=k), "ReduceMean": lambda x, a, k: x.mean(a, keepdim=k),
        "ReduceMax": lambda x, a, k: x.amax(a, keepdim=k), "ReduceMin": lambda x, a, k: x.amin(a, keepdim=k),
        "ReduceL1": lambda x, a, k: torch.linalg.vector_norm(x, 1, a, keepdim=k),
        "ReduceL2": lambda x, a, k: torch.linalg.vector_norm(x, 2, a, keepdim=k),
        "ReduceLogSumExp": lambda x, a, k: x.logsumexp(a, keepdim=k),
        "ReduceLogSum": lambda x, a, k: x.sum(a, keepdim=k).log(),
        "ReduceSumSquare": lambda x, a, k: x.square().sum(a, keepdim=k),
        "ReduceProd": lambda x, a, k: x.prod(a[0], keepdim=k),
    }  # fmt: skip
    for (op_type, call), shape, axes, keepdim in product(
        calls.items(), (FULL, (3, 400), (400, 3)), ((0,), (1,), (2,), (0, 1), (1, 2)), (False, True)
    ):
        if max(axes) < len(shape) and (len(axes) == 1 or op_type != "ReduceProd") and len(axes) < len(shape):
            yield Case(op_type, "xc", (positive(*shape), constants(*axes)),
                       lambda x, _, c=call, a=axes, k=keepdim: c(x, a, k), {"keepdims": int(keepdim)},
                       note(shape, axes, keepdim))  # fmt: skip
    for axis in (0, 1, 2):
        yield Case("Softmax", "x", (randn(*FULL),), lambda x, a=axis: x.softmax(a), {"axis": axis}, note(axis))
        yield Case("LogSoftmax", "x", (randn(*FULL),), lambda x, a=axis: x.log_softmax(a), {"axis": axis}, note(axis))
        yield Case("CumSum", "xc", (randn(*FULL), constants(axis)), lambda x, _, a=axis: x.cumsum(a), {}, note(axis))
        for count in (1, FULL[axis] - 1):
            yield Case("TopK", "xc", (randn(*FULL), constants(count)),
                       lambda x, _, k=count, a=axis: tuple(x.topk(k, a)), {"axis": axis},
                       note(axis, count))  # fmt: skip


def moved() -> Iterator[Case]:
    for sizes in ((1, 23), (20, 4), (100, 24)):
        yield Case("Concat", "xx", tuple(randn(6, 32, size) + i for i, size in enumerate(sizes)),
                   lambda a, b: torch.cat([a, b], 2), {"axis": 2}, note(sizes))  # fmt: skip
        yield Case("Concat", "xxx", tuple(randn(size, 32) + i for i, size in enumerate((*sizes, 5))),
                   lambda a, b, c: torch.cat([a, b, c], 0), {"axis": 0}, note(sizes, 5))  # fmt: skip
    for first, axis in product((1, 20), (1, 2)):
        sizes = (first, FULL[axis] - first)
        yield Case("Split", "xc", (randn(*FULL), constants(*sizes)), lambda x, _, s=sizes, a=axis: x.split(s, a),
                   {"axis": axis}, note(sizes, axis))  # fmt: skip
        yield Case("Slice", "xccc", (randn(*FULL), constants(0), constants(first), constants(axis)),
                   lambda x, *_, n=first, a=axis: x.narrow(a, 0, n), {}, note(first, axis))  # fmt: skip
    for small in ((24,), (32, 1), (6, 1, 1), (1, 1, 1)):
        yield Case("Expand", "xc", (randn(*small), constants(*FULL)), lambda x, _: x.expand(FULL), {}, note(small))
    for repeats in ((1, 2), (5, 1), (3, 3)):
        yield Case(
            "Tile", "xc", (randn(16, 24), constants(*repeats)), lambda x, _, r=repeats: x.repeat(r), {}, note(repeats)
        )
    for mode, torch_mode in (
        ("constant", "constant"),
        ("reflect", "reflect"),
        ("edge", "replicate"),
        ("wrap", "circular"),
    ):
        for around in (1, 9):
            yield Case("Pad", "xc", (randn(*IMAGE), constants(0, 0, around, 1, 0, 0, around, 1)),
                       lambda x, _, p=(1, 1, around, around), m=torch_mode: F.pad(x, p, mode=m), {"mode": mode},
                       note(mode, around))  # fmt: skip
    for (mode, torch_mode), size in product(
        (("nearest", "nearest"), ("linear", "bilinear"), ("cubic", "bicubic")), ((3, 3), (12, 40), (30, 30))
    ):
        yield Case("Resize", "x-c", (randn(*IMAGE), None, torch.ones(4)),
                   lambda x, *_, s=size, m=torch_mode: F.interpolate(x, s, mode=m), {"mode": mode},
                   note(mode, size))  # fmt: skip
    for points in (3, 30):
        yield Case("GridSample", "xx", (randn(*IMAGE), randn(4, points, points, 2)),
                   lambda x, grid: F.grid_sample(x, grid, align_corners=False), {}, note(points))  # fmt: skip


def layers() -> Iterator[Case]:
    for channels, groups, kernel, stride, role in product((8, 64), (1, 8), (1, 3), (1, 2), "wx"):
        yield Case("Conv", "x" + role, (randn(*IMAGE), randn(channels, 8 // groups, kernel, kernel)),
                   lambda x, w, g=groups, s=stride: F.conv2d(x, w, groups=g, stride=s), {"group": groups},
                   note(channels, groups, kernel, stride, role))  # fmt: skip
    for channels, stride, role in product((2, 32), (1, 3), "wx"):
        yield Case("ConvTranspose", "x" + role, (randn(*IMAGE), randn(8, channels, 3, 3)),
                   lambda x, w, s=stride: F.conv_transpose2d(x, w, stride=s), {},
                   note(channels, stride, role))  # fmt: skip
    for kernel, stride in ((2, 2), (3, 1), (6, 6)):
        shared = {"kernel_shape": (kernel, kernel)}
        yield Case("MaxPool", "x", (randn(*IMAGE),), lambda x, k=kernel, s=stride: F.max_pool2d(x, k, s), shared,
                   note(kernel, stride))  # fmt: skip
        yield Case("AveragePool", "x", (randn(*IMAGE),), lambda x, k=kernel, s=stride: F.avg_pool2d(x, k, s), shared,
                   note(kernel, stride))  # fmt: skip
        yield Case("LpPool", "x", (positive(*IMAGE),), lambda x, k=kernel, s=stride: F.lp_pool2d(x, 2, k, s),
                   {"p": 2, **shared}, note(kernel, stride))  # fmt: skip
    for axis, roles in product((1, 2), ("xww", "xcc", "xxx")):
        shape = FULL[axis:]
        yield Case("LayerNormalization", roles, (randn(*FULL), positive(*shape), randn(*shape)),
                   lambda x, w, b, s=shape: F.layer_norm(x, s, w, b), {"axis": axis}, note(axis, roles))  # fmt: skip
        yield Case("RMSNormalization", roles[:2], (randn(*FULL), positive(*shape)),
                   lambda x, w, s=shape: F.rms_norm(x, s, w), {"axis": axis}, note(axis, roles))  # fmt: skip
    for rows, width in ((400, 3), (3, 400)):
        yield Case("LayerNormalization", "xww", (randn(rows, width), positive(width), randn(width)),
                   lambda x, w, b: F.layer_norm(x, w.shape, w, b), {}, note(rows, width))  # fmt: skip
        yield Case("BatchNormalization", "xww", (randn(rows, width), positive(width), randn(width)),
                   lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), {}, note(rows, width))  # fmt: skip
    for groups, roles in product((1, 4, 8), ("xww", "xcc", "xxx")):
        yield Case("GroupNormalization", roles, (randn(*IMAGE), positive(8), randn(8)),
                   lambda x, w, b, g=groups: F.group_norm(x, g, w, b), {"num_groups": groups},
                   note(groups, roles))  # fmt: skip
    for roles in ("xww", "xcc", "xxx"):
        yield Case("InstanceNormalization", roles, (randn(*IMAGE), positive(8), randn(8)),
                   lambda x, w, b: F.instance_norm(x, weight=w, bias=b), {}, roles)  # fmt: skip


def losses() -> Iterator[Case]:
    for (rows, classes), kind, weighted in product(((400, 3), (8, 400)), ("none", "sum", "mean"), (False, True)):
        given = (randn(rows, classes), indices((rows,), classes), *((positive(classes),) if weighted else ()))
        for op_type, call in (("SoftmaxCrossEntropyLoss", F.cross_entropy), ("NegativeLogLikelihoodLoss", F.nll_loss)):
            yield Case(op_type, "xxc"[: len(given)], given,
                       lambda x, i, w=None, c=call, k=kind: c(x, i, w, reduction=k), {"reduction": kind},
                       note(rows, classes, kind, weighted))  # fmt: skip


def attentions() -> Iterator[Case]:
    for (queries, keys), width, masked in product(((8, 40), (40, 8), (1, 64)), (4, 16), (False, True)):
        q, k, v = randn(2, 3, queries, 16), randn(2, 3, keys, 16) + 1, randn(2, 3, keys, width) + 2
        mask = (randn(queries, keys),) if masked else ()
        yield Case("Attention", "xxxc"[: 3 + masked], (q, k, v, *mask), F.scaled_dot_product_attention, {},
                   note(queries, keys, width, masked))  # fmt: skip
    for queries, keys in ((8, 40), (40, 8)):
        yield Case("Attention", "xxx", (randn(2, 6, queries, 16), randn(2, 2, keys, 16), randn(2, 2, keys, 16) + 1),
                   lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), {},
                   note("grouped", queries, keys))  # fmt: skip


def sequences() -> Iterator[Case]:
    for tokens, table in product((3, 40), (4, 200)):
        positions = indices((2, tokens), table)
        cos, sin = randn(table, 8), randn(table, 8) + 1
        yield Case("RotaryEmbedding", "xccx", (randn(2, 3, tokens, 16), cos, sin, positions), rotated, {},
                   note(tokens, table))  # fmt: skip
    for count in (1, 30):
        yield Case("TensorScatter", "xxx", (randn(2, 3, 40, 16), randn(2, 3, count, 16), constants(0, 5)),
                   written_to_cache, {}, note(count))  # fmt: skip
    for shape in ((5, 3, 64), (64, 3, 5)):
        yield Case("ReverseSequence", "xx", (randn(*shape), constants(5, 2, 3)), reversed_sequence, {}, note(shape))
    for length, channels in ((8, 64), (64, 8)):
        weight = randn(channels, 1, 4)
        yield Case("CausalConvWithState", "xww", (randn(2, channels, length), weight, randn(channels)),
                   causal_convolution, {}, note(length, channels))  # fmt: skip
        yield Case("CausalConvWithState", "xwwx", (randn(2, channels, length), weight, randn(channels),
                   randn(2, channels, 3)), causal_convolution, {}, note(length, channels, "state"))  # fmt: skip
    for axis in (0, 1, 2):
        yield Case(
            "CumProd", "xc", (positive(*FULL), constants(axis)), lambda x, _, a=axis: x.cumprod(a), {}, note(axis)
        )
        yield Case("LpNormalization", "x", (randn(*FULL),), lambda x, a=axis: F.normalize(x, 2, a), {"axis": axis},
                   note(axis))  # fmt: skip
    for kernel in (2, 6):
        found = F.max_pool2d(randn(*IMAGE), kernel, return_indices=True)[1]
        yield Case("MaxUnpool", "xx", (randn(*found.shape), found), lambda x, i, k=kernel: F.max_unpool2d(x, i, k), {},
                   note(kernel))  # fmt: skip


CASES = [
    case
    for family in (binary, chosen, products, gathered, reductions, moved, layers, losses, attentions, sequences)
    for case in family()
]
STEPS = [(case, needs) for case in CASES for needs in gradient_choices(case)]
"""Every case with each choice of the operands that need a gradient."""
