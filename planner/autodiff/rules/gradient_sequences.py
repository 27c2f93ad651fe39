"""Backwards that torch composes of kernels, allocation by allocation: by operands whose sizes differ.

A sequence counts from the moment at which the op's saved tensors and the output's gradient are there, and takes both to
stay: others may read them. What the planner counts besides, the gradients that the op gives, is taken off at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, zip_longest
from math import prod

from ...graph import Role
from .op_call import INDEX_NBYTES, RuleCall, item_nbytes


class _Alive:
    """Bytes alive in a backward, and the most of them: with and without gradients of parameters."""

    def __init__(self, call: RuleCall) -> None:
        self._call = call
        self._now = [0, 0]
        self._most = [0, 0]

    def take(self, *sizes: int, gradient_of: int | None = None) -> None:
        """Allocate; a parameter's final gradient is no activation."""
        final = gradient_of is not None and self._call.required(gradient_of).role is Role.PARAMETER
        for scope in (0, 1):
            self._now[scope] += 0 if final and scope else sum(sizes)
            self._most[scope] = max(self._most[scope], self._now[scope])

    def drop(self, *sizes: int) -> None:
        """Release."""
        self._now = [now - sum(sizes) for now in self._now]

    def beyond(self, *shared: int) -> int:
        """The most bytes beyond the gradients that the op gives; those of ``shared`` positions take none."""
        given = [self._call.required(p) for p in self._call.needs if p not in shared]
        whole = sum(tensor.nbytes for tensor in given)
        moving = sum(tensor.nbytes for tensor in given if tensor.role is not Role.PARAMETER)
        return max(0, self._most[0] - whole, self._most[1] - moving)


def broadcast(call: RuleCall, between: Mapping[int, tuple[int, ...]], *, passed: int | None = None) -> int:
    """Gradients of the output's shape one after another, then reduced to operands that were broadcast.

    ``between`` has what each gradient holds while it is made, in the order in which torch makes them. The gradient of
    position ``passed`` is the output's own.
    """
    alive, size = _Alive(call), call.output.nbytes
    for position, sizes in between.items():
        if position in call.needs:
            alive.take(*sizes)
            alive.take(size, gradient_of=position if _is_full(call, position) else None)
            alive.drop(*sizes)
    reduced = [position for position in sorted(call.needs) if not _is_full(call, position)]
    for position in reduced:
        alive.take(call.required(position).nbytes, gradient_of=position)
        alive.drop(size if position in between else 0)
    return alive.beyond(*((passed,) if passed in call.needs and _is_full(call, passed) else ()))


def _is_full(call: RuleCall, position: int | None) -> bool:
    return position is not None and call.required(position).shape == call.output.shape


def quotient(call: RuleCall) -> int:
    """-grad * (a / b) / b, term by term, then grad / b."""
    return broadcast(call, {1: (call.output.nbytes,) * 3, 0: ()})


def power(call: RuleCall) -> int:
    """grad * (result * log(base)) behind a mask, then grad * (exponent * base ** (exponent - 1)) behind another one."""
    base, exponent, size = call.first, call.required(1), call.output.nbytes
    if exponent.numel == 1 and exponent.role is Role.BUFFER:
        return 2 * size
    mask, less = call.output.numel, exponent.nbytes + exponent.numel
    return broadcast(call, {1: (mask, base.nbytes, size, size), 0: (less, size, size, size)})


def clamp(call: RuleCall) -> int:
    """Masks of bytes: below, above, and both; bounds that are tensors get gradients of the output's shape first."""
    bounds = [call.inputs[p] for p in call.present((1, 2))]
    if all(bound is None or (bound.numel == 1 and bound.role is Role.BUFFER) for bound in bounds):
        return 3 * call.output.numel + INDEX_NBYTES
    masks = call.output.numel
    between = broadcast_shape(*(bound.shape for bound in bounds if bound is not None))
    pair = (masks, masks, prod(between), INDEX_NBYTES)
    return broadcast(call, {1: pair, 2: pair, 0: (masks, masks, masks, INDEX_NBYTES)})


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that operands of these shapes are broadcast to."""
    sizes = zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
    return tuple(next((n for n in size if n != 1), 1) for size in sizes)[::-1]


def _partial_nbytes(call: RuleCall) -> list[int]:
    """Bytes of the results of a chain of pairs from the left."""
    shapes = [call.required(position).shape for position in range(len(call.inputs))]
    partial = list(accumulate(shapes, broadcast_shape))
    return [prod(shape) * item_nbytes(call.output) for shape in partial]


def partial_sum_nbytes(call: RuleCall) -> int:
    """The result before the last addition of a chain."""
    return _partial_nbytes(call)[-2] if len(call.inputs) > 2 else 0


def extremum(call: RuleCall) -> int:
    """For each pair from the right half of the gradient, two masks of bytes, and what they leave of it.

    With a constant scalar it is a clamp, which needs masks alone.
    """
    last = call.inputs[-1]
    if len(call.inputs) == 2 and last is not None and last.numel == 1 and last.role is Role.BUFFER:
        return 2 * call.output.numel + INDEX_NBYTES
    alive, partial, item = _Alive(call), _partial_nbytes(call), item_nbytes(call.output)
    for stage in range(len(call.inputs) - 1, 0, -1):
        size, mine = partial[stage], call.required(stage).nbytes
        sides = [(stage, mine)] if stage in call.needs else []
        sides += [(0, partial[stage - 1])] if call.needed(*range(stage)) else []
        for position, own in sides:
            alive.take(size, size // item, size // item)
            final = (position or stage == 1) and own == size
            alive.take(size, gradient_of=position if final else None)
            alive.drop(size, size // item, size // item)
        for position, own in sides:
            if own != size:
                alive.take(own, gradient_of=position if position or stage == 1 else None)
                alive.drop(size)
        if stage < len(call.inputs) - 1:
            alive.drop(size)  # the gradient of an intermediate result
    return alive.beyond()


def scatter(call: RuleCall) -> int:
    """none and add move elements; min, max and mul make several tensors of the size of data and of the updates."""
    data, updates = call.first.nbytes, call.required(2).nbytes
    count = call.required(2).numel
    kind, alive = call.text("reduction", "none"), _Alive(call)
    if kind in ("none", "add"):
        return 0 if call.needed(2) else updates
    if kind == "mul":
        alive.take(6 * data, 7 * updates, 2 * count)
    else:
        alive.take(4 * data, 2 * updates, call.first.numel)
        alive.drop(call.first.numel)
        alive.take(2 * updates, count)
    return alive.beyond()


def gemm(call: RuleCall) -> int:
    """alpha scales each gradient into another one, beta the output's into one that is summed."""
    alive, size = _Alive(call), call.output.nbytes
    for position in (0, 1):
        if position in call.needs:
            mine = call.required(position).nbytes
            alive.take(mine if call.number("alpha", 1.0) != 1 else 0)
            alive.take(mine, gradient_of=position)
            alive.drop(mine if call.number("alpha", 1.0) != 1 else 0)
    full, scaled = _is_full(call, 2) if call.has(2) else False, call.number("beta", 1.0) != 1
    if call.needed(2) and not (full and not scaled):
        alive.take(size if scaled and not full else 0)
        alive.take(call.required(2).nbytes, gradient_of=2)
    return alive.beyond(*((2,) if full and not scaled else ()))


def matrix_product(call: RuleCall) -> int:
    """Gradients repeated over the batch before they are summed.

    A matrix times a batch that has to give a gradient is one product with the transposed batch, laid out anew.
    A scaled product, as torch.baddbmm with alpha, scales each gradient into another one.
    """
    alive, first, second = _Alive(call), call.first, call.required(1)
    size = call.output.nbytes
    if folds_batch(call):
        copied = size if len(first.shape) > 1 else 0
        alive.take(copied)
        alive.take(first.nbytes, gradient_of=0)
        if call.needed(1):
            alive.take(second.nbytes)
            alive.drop(copied)
            alive.take(second.nbytes, gradient_of=1)
        return alive.beyond()
    batch, joined = call.output.shape[:-2], squeezes(call, 1) or len(second.shape) < 3
    reduced = []
    for position in (1, 0):
        tensor = call.required(position)
        full = prod(batch) * prod(tensor.shape[-2:]) * item_nbytes(tensor)
        if position not in call.needs:
            continue
        if full > tensor.nbytes and not joined and len(tensor.shape) > 1:
            alive.take(full)
            reduced.append((position, full))
        else:
            alive.take(tensor.nbytes, gradient_of=position)
    for position, full in reduced:
        alive.take(call.required(position).nbytes, gradient_of=position)
        alive.drop(full)
    scaled = call.number("alpha", 1.0) != 1
    return alive.beyond() + scaled * max((call.required(p).nbytes for p in call.needs), default=0)


def squeezes(call: RuleCall, position: int) -> bool:
    """Whether torch drops the batch dimension of one operand of three dimensions, which is 1."""
    both = len(call.first.shape) == len(call.required(1).shape) == 3
    return both and call.required(position).shape[0] == 1


def folds_batch(call: RuleCall) -> bool:
    """Whether a matrix times a batch is computed as one product, for which the batch is copied."""
    single = len(call.first.shape) < 3 or (squeezes(call, 0) and not squeezes(call, 1))
    return call.needed(0) and single and len(call.required(1).shape) >= 3


def reduced_extremum(call: RuleCall) -> int:
    """A mask of bytes, its sum as int64, and the quotient of gradient and sum."""
    return call.first.numel + call.output.numel * INDEX_NBYTES + call.output.nbytes
