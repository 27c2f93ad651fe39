"""Matrix products, Einsum and attention."""

from __future__ import annotations

from collections import Counter
from math import prod
from string import ascii_letters
from typing import Any

from ..forward.composed import Attention
from ..nodes.writer import Tensor
from .backward_call import Backward, GradientTable


def _matrix_product(call: Backward) -> None:
    """Operands of one dimension are rows or columns; an operand of two is multiplied by all rows at once."""
    shapes = [call.shape_of(0), call.shape_of(1)]
    scale = _scale(call)
    lead = call.out[: len(call.out) - (len(shapes[0]) > 1) - (len(shapes[1]) > 1)]
    rows = shapes[0][-2] if len(shapes[0]) > 1 else 1
    columns = shapes[1][-1] if len(shapes[1]) > 1 else 1
    g = call.g if scale == 1 else call.g * scale
    g = g.reshape((*lead, rows, columns))
    full = [shapes[0] if len(shapes[0]) > 1 else (1, *shapes[0]), shapes[1] if len(shapes[1]) > 1 else (*shapes[1], 1)]
    if len(full[1]) == 2 and len(full[0]) >= 2:
        inner = full[1][0]
        flat = g.reshape((prod(lead) * rows, columns))
        if call.needs(1):
            a = call.x(0).reshape((prod(lead) * rows, inner))
            call.give(1, _gemm(a, flat, transA=1).reshape(shapes[1]))
        if call.needs(0):
            b = call.x(1).reshape(full[1])
            call.give(0, _gemm(flat, b, transB=1).reshape((*lead, rows, inner)).sum_to(full[0]).reshape(shapes[0]))
        return
    if call.needs(1):
        a = call.x(0).reshape(full[0])
        call.give(1, a.turned().matmul(g).sum_to(full[1]).reshape(shapes[1]))
    if call.needs(0):
        b = call.x(1).reshape(full[1])
        call.give(0, g.matmul(b.turned()).sum_to(full[0]).reshape(shapes[0]))


def _scale(call: Backward) -> float:
    """The number that a product of several nodes is multiplied by."""
    if not call.call.parts:
        return 1.0
    numbers = [
        float(v.known.ravel()[0])
        for v in call.call.parts[1].inputs
        if v is not None and v.known is not None and v.numel == 1
    ]
    if len(numbers) != 1:
        raise call.refused("the factor of its formula is not found")
    return numbers[0]


def _gemm(a: Tensor, b: Tensor, **turned: Any) -> Tensor:
    rows = a.shape[1] if turned.get("transA") else a.shape[0]
    columns = b.shape[0] if turned.get("transB") else b.shape[1]
    return a.writer.op("Gemm", a, b, shape=(rows, columns), **turned)


def _affine_product(call: Backward) -> None:
    alpha, beta = float(call.attr("alpha", 1.0)), float(call.attr("beta", 1.0))
    first, second = bool(call.attr("transA", 0)), bool(call.attr("transB", 0))
    g = call.g
    if call.needs(2):
        call.give(2, g if beta == 1 else g * beta)
    g = g if alpha == 1 or not (call.needs(0) or call.needs(1)) else g * alpha
    if call.needs(1):
        a = call.x(0)
        call.give(1, _gemm(g, a, transA=1, transB=int(first)) if second else _gemm(a, g, transA=int(not first)))
    if call.needs(0):
        b = call.x(1)
        call.give(0, _gemm(b, g, transA=int(second), transB=1) if first else _gemm(g, b, transB=int(not second)))


def _einsum(call: Backward) -> None:
    """Each operand's gradient is an Einsum of the output's gradient and the other operands."""
    ranks = [len(call.shape_of(at)) for at in range(len(call.call.inputs))]
    terms, right = _spelled(str(call.attr("equation")), ranks)
    if any(len(set(term)) < len(term) for term in (*terms, right)):
        raise call.refused("a diagonal has no gradient here")
    sizes: dict[str, int] = {}
    for at, term in enumerate(terms):
        for label, size in zip(term, call.shape_of(at), strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    for position in sorted(call.needed):
        others = [at for at in range(len(terms)) if at != position]
        found = {*right, *(label for at in others for label in terms[at])}
        kept = "".join(label for label in terms[position] if label in found)
        equation = ",".join([right, *(terms[at] for at in others)]) + "->" + kept
        operands = [call.g, *(call.x(at) for at in others)]
        made = call.w.op("Einsum", *operands, shape=tuple(sizes[label] for label in kept), equation=equation)
        spread = [sizes[label] if label in kept else 1 for label in terms[position]]
        call.give(position, made.reshape(spread).expand([sizes[label] for label in terms[position]]))


def _spelled(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The terms of an equation and its result, with letters for an ellipsis and for a result that is left out."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    free = [letter for letter in ascii_letters if letter not in equation]
    letters = "".join(free[: max([0, *(count for term, count in zip(terms, hidden, strict=True) if "..." in term)])])
    terms = [term.replace("...", letters[len(letters) - count :]) for term, count in zip(terms, hidden, strict=True)]
    if arrow:
        return terms, right.replace("...", letters)
    once = sorted(label for label, count in Counter("".join(terms)).items() if count == 1 and label not in letters)
    return terms, letters + "".join(once)


def _rotary_embedding(call: Backward) -> None:
    """The rotation by the same angles backwards."""
    if call.needs(1) or call.needs(2):
        raise call.refused("tables that are trained have no gradient here")
    settings: dict[str, Any] = dict(call.call.attributes)
    places = call.x(3) if call.has(3) else None
    call.give(0, call.w.op(
        "RotaryEmbedding", call.g, call.x(1), -call.x(2), places, shape=call.shape, dtype=call.dtype, **settings
    ))  # fmt: skip


def _attention(call: Backward) -> None:
    """The probabilities are computed again of queries and keys, part by part.

    The sum of a row of probabilities times their gradients is that of the output times its gradient, where the rule
    says that the output is read.
    """
    how = Attention(call)
    if call.needs(3):
        raise call.refused("a mask that is trained has no gradient here")
    query, key, value = (how.apart(call.x(place), place) for place in range(3))
    g = how.apart(call.g, 0)
    along = (g * how.apart(call.y(), 0)).sum((-1,)) if call.has_y() else None
    made: list[list[Tensor]] = [[], [], []]
    for q, k, v, mask, part, row in how.chunks(query, key, value, call.x(3) if call.has(3) else None, g, along):
        assert q is not None
        assert k is not None
        assert v is not None
        assert part is not None
        weights = how.weights(q, k, mask)
        if call.needs(2):
            made[2].append(weights.turned().matmul(part))
        if call.needs(0) or call.needs(1):
            scores = part.matmul(v.turned())
            scores = (scores - ((scores * weights).sum((-1,)) if row is None else row)) * weights
            if call.needs(0):
                made[0].append(scores.matmul(k) * how.scale)
            if call.needs(1):
                made[1].append(scores.turned().matmul(q) * how.scale)
    for position, parts in enumerate(made):
        if parts:
            call.give(position, how.together(how.joined(parts), position))


PRODUCTS: GradientTable = {
    "MatMul": _matrix_product,
    "Gemm": _affine_product,
    "Einsum": _einsum,
    "Attention": _attention,
    "RotaryEmbedding": _rotary_embedding,
}
