"""The ops that return views in PyTorch 2.13, and the strides of their outputs."""

from __future__ import annotations

from ...graph import View
from .values import Call, Value, row_major

_ELEMENTWISE = frozenset(
    "Abs Acos Acosh Add Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Div Dropout Elu Erf Exp Floor"
    " Gelu HardSigmoid HardSwish IsInf IsNaN LeakyRelu Log Max Min Mish Mod Mul Neg Not Pow Reciprocal Relu Round Selu"
    " Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where".split()
)

Strides = tuple[int, ...]


def reshaped(shape: tuple[int, ...], strides: Strides, target: tuple[int, ...]) -> Strides | None:
    """Strides of a reshape that is a view, or None if it must copy (ATen's computeStride).

    A chunk is a run of dimensions that are dense one inside the other. It can be divided anew, but no dimension of the
    target may span two chunks.
    """
    if not shape or 0 in shape:
        return row_major(target)
    result = [0] * len(target)
    position = len(target) - 1
    base, chunk, cut = strides[-1], 1, 1
    for axis in range(len(shape) - 1, -1, -1):
        chunk *= shape[axis]
        if axis and (shape[axis - 1] == 1 or strides[axis - 1] == chunk * base):
            continue
        while position >= 0 and (cut < chunk or target[position] == 1):
            result[position] = cut * base
            cut *= target[position]
            position -= 1
        if cut != chunk:
            return None
        if axis:
            base, chunk, cut = strides[axis - 1], 1, 1
    return tuple(result) if position < 0 else None


def mark_view(call: Call) -> None:
    """Decide whether a call is a view, and set the strides of its outputs."""
    source = call.inputs[0] if call.inputs else None
    if source is None or call.domain or not call.outputs:
        return
    view, strides = _view(call, source)
    if view is View.NONE:
        if call.op_type in _ELEMENTWISE:
            _keep_order(call)
        elif call.op_type == "Attention":
            _follow_query(call, source)
        return
    call.view = view
    for output in call.outputs:
        output.view_of = source.owner
        output.strides = strides


def _view(call: Call, source: Value) -> tuple[View, Strides]:
    """The kind of view and the strides of every output."""
    shape, strides, target = source.shape, source.strides, call.outputs[0].shape
    kind, attributes = call.op_type, call.attributes
    if kind == "Identity" or (kind == "Cast" and source.dtype == call.outputs[0].dtype):
        return View.WHOLE, strides
    if kind == "Transpose":
        order = attributes.get("perm")
        axes = order if isinstance(order, tuple) else tuple(reversed(range(len(shape))))
        return View.WHOLE, tuple(strides[axis] for axis in axes)
    if kind in ("Squeeze", "Unsqueeze"):
        return View.WHOLE, _with_ones(shape, strides, target)
    if kind in ("Reshape", "Flatten"):
        layout = reshaped(shape, strides, target)
        return (View.NONE, ()) if layout is None else (View.WHOLE, layout)
    if kind == "Split":
        return View.PART, strides
    if kind == "Expand" and len(target) >= len(shape):
        padded = (1,) * (len(target) - len(shape)) + shape
        old = (0,) * (len(target) - len(shape)) + strides
        return View.PART, tuple(s if a == b else 0 for a, b, s in zip(padded, target, old, strict=True))
    if kind == "Slice":
        return _slice(call, shape, strides)
    indices = call.inputs[1] if kind == "Gather" else None
    if indices is not None and indices.known is not None and indices.shape == ():
        axis = attributes.get("axis", 0)
        assert isinstance(axis, int)
        axis %= len(shape)
        return View.PART, strides[:axis] + strides[axis + 1 :]
    return View.NONE, ()


def _slice(call: Call, shape: tuple[int, ...], strides: Strides) -> tuple[View, Strides]:
    """A slice is a view unless it steps backwards, which PyTorch copies."""
    starts = call.integers("starts", 1)
    if starts is None:
        return View.NONE, ()
    axes = call.integers("axes", 3) or tuple(range(len(starts)))
    steps = call.integers("steps", 4) or (1,) * len(starts)
    if any(step <= 0 for step in steps):
        return View.NONE, ()
    stepped = list(strides)
    for axis, step in zip(axes, steps, strict=True):
        stepped[axis % len(shape)] *= step
    return View.PART, tuple(stepped)


def _with_ones(shape: tuple[int, ...], strides: Strides, target: tuple[int, ...]) -> Strides:
    """Strides after dimensions of size one were added or removed."""
    if 0 in shape:
        return row_major(target)
    kept = [stride for size, stride in zip(shape, strides, strict=True) if size != 1]
    result: list[int] = []
    inner = 1
    for size in reversed(target):
        stride = kept.pop() if size != 1 else inner
        result.append(stride)
        inner = stride * size
    return tuple(reversed(result))


def _keep_order(call: Call) -> None:
    """An elementwise op writes its output in the memory order of its first operand of full shape (TensorIterator)."""
    for output in call.outputs:
        for value in call.inputs:
            if value is None or value.shape != output.shape:
                continue
            order = sorted(range(len(value.shape)), key=value.strides.__getitem__)
            step, strides = 1, [0] * len(order)
            for axis in order:
                if value.shape[axis] != 1 and value.strides[axis] != step:
                    break  # it overlaps or has holes: the output is dense
                strides[axis] = step
                step *= value.shape[axis]
            else:
                output.strides = tuple(strides)
            break


def _follow_query(call: Call, query: Value) -> None:
    """Fused attention returns its output dense, in the memory order of the query (ATen's empty_like).

    The usual transpose and reshape that join the heads are then views.
    """
    output = call.outputs[0]
    if len(output.shape) != len(query.shape):
        return
    order = sorted(range(len(query.shape)), key=lambda axis: (query.strides[axis], -axis))
    step, strides = 1, [0] * len(order)
    for axis in order:
        strides[axis] = step
        step *= output.shape[axis]
    output.strides = tuple(strides)
