"""Where the batch is in the result of an op whose constants were exported at one batch: placements, likeliest first.

A file exported at a fixed batch has it in the constants of Reshape, Expand, Tile, Slice, Split, Resize, ConstantOfShape
and Range. Which dimensions of the data have the batch is known: they differ between a reading at the old batch and one
at the new. A placement is the shape or list of numbers that the op gets instead of its constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt, prod

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """The batch of the file, and the one that replaces it."""

    old: int
    new: int

    def scaled(self, size: int) -> int:
        """A size that has the batch as a factor, at the new batch."""
        return size // self.old * self.new

    def at(self, sizes: Sequence[int], axis: int) -> Sizes:
        """The sizes with the batch in one of them."""
        return (*sizes[:axis], self.scaled(sizes[axis]), *sizes[axis + 1 :])


def batch_axes(before: Sequence[int], now: Sequence[int]) -> tuple[int, ...]:
    """The dimensions that have the batch: those whose size follows it."""
    return tuple(axis for axis, (old, new) in enumerate(zip(before, now, strict=True)) if old != new)


def is_sure(change: Change, before: Sizes, likeliest: Sizes) -> bool:
    """Whether a placement is taken though others fit: it puts the batch alone into the first dimension."""
    return bool(before) and (before[0], likeliest[0]) == (change.old, change.new)


def reshaped(change: Change, data: Sizes, axes: Sequence[int], target: Sequence[int], result: Sizes) -> list[Sizes]:
    """Shapes that a Reshape may give, with the batch where its memory order allows it.

    ``data`` and ``result`` are the shapes at the old batch, ``axes`` the dimensions of the data that have the batch.
    """
    sizes = list(result)
    for axis in axes[1:]:  # of several only the first may be placed in several ways
        found = _places(change, data, axis, result)
        if found:
            sizes[found[0]] = change.scaled(result[found[0]])

    def likelihood(k: int) -> tuple[int, ...]:
        """Sort key: a dimension that is copied, is the batch alone, takes the rest, or was divided for the batch."""
        copied = k < len(target) and target[k] == 0
        rest = k < len(target) and target[k] == -1
        begins = prod(result[:k]) == prod(data[: axes[0]])  # the batch is outermost in it
        alone = result[k] == change.old
        follows = data[axes[0] + 1] if axes[0] + 1 < len(data) else 0
        kept = begins and not alone and result[k] == follows  # a feature dimension that the Reshape leaves as it is
        return (not copied, not (alone or rest), k if alone or rest else 0, kept, not begins, abs(k - axes[0]))

    order = sorted(_places(change, data, axes[0], result), key=likelihood)
    placed = [change.at(sizes, k) for k in order if sizes[k] == result[k]]
    alone = bool(placed) and result[order[0]] == change.old and -1 not in target[: order[0]]
    if alone and order[0] == axes[0] and (order[0] == 0 or data[axes[0]] == change.old):
        return placed[:1]  # where it was, in the first place or alone: others would fit by chance
    return [*placed, *_with_the_rest(change, data, axes, target)]


def _with_the_rest(change: Change, data: Sizes, axes: Sequence[int], target: Sequence[int]) -> Iterator[Sizes]:
    """The shape that a target as it is gives, if it has a size for the rest: the batch may be divided there."""
    now = [change.scaled(size) if axis in axes else size for axis, size in enumerate(data)]
    sizes = [now[k] if size == 0 and k < len(now) else size for k, size in enumerate(target)]
    known = prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and known > 0 and prod(now) % known == 0:
        yield tuple(prod(now) // known if size == -1 else size for size in sizes)


def _places(change: Change, data: Sizes, axis: int, result: Sizes) -> list[int]:
    """The dimensions of the result that the batch of a dimension of the data can be in.

    A dimension that has the batch may have other factors outside and inside of it. In memory the batch lies behind
    ``outer`` elements; a dimension of the result can have it if it begins before and ends after it.
    """
    begin = prod(data[:axis])
    outers = [begin * factor for factor in _divisors(data[axis] // change.old)]
    found, start = [], 1
    for k, size in enumerate(result):
        end = start * size
        if any(outer % start == 0 and end % (outer * change.old) == 0 for outer in outers):
            found.append(k)
        start = end
    return found


def _divisors(number: int) -> list[int]:
    small = [factor for factor in range(1, isqrt(number) + 1) if number % factor == 0]
    return sorted({*small, *(number // factor for factor in small)})


def expanded(change: Change, data: Sizes, axes: Sequence[int], result: Sizes) -> list[Sizes]:
    """Shapes that an Expand may give.

    Data with the batch keep it. Other data may get it in a dimension that they do not have themselves: one of the old
    batch's size, a leading one most likely, as at batch 1 little else explains a leading 1 in a target; or, least
    likely, one that the batch is a factor of.
    """
    shift = len(result) - len(data)
    if axes:
        sizes = list(result)
        for axis in axes:
            if result[shift + axis] == data[axis]:
                sizes[shift + axis] = change.scaled(data[axis])
        pairs = [k for k, size in enumerate(result) if size == change.old > 1 and (k < shift or data[k - shift] == 1)]
        return [tuple(sizes), *(change.at(sizes, k) for k in pairs)]  # all pairs of samples, least likely
    free = [k for k, size in enumerate(result) if k < shift or data[k - shift] == 1]
    placed = [change.at(result, k) for k in free if result[k] == change.old]
    folded = [change.at(result, k) for k in free if result[k] % change.old == 0]
    likely = len(result) > 1 and (change.old > 1 or (0 in free and result[0] == 1))  # one dimension: a list of sizes
    return [*placed, result, *folded] if likely else [result, *placed, *folded]


def tiled(change: Change, has_batch: bool, repeats: Sizes) -> list[Sizes]:
    """Repeats that a Tile may have; one that repeats nothing stands for the batch, as an Expand.

    Data that have the batch may be repeated once more for each sample, to make all pairs of them.
    """
    placed = [change.at(repeats, k) for k, count in enumerate(repeats) if count == change.old]
    likely = not has_batch and (change.old > 1 or all(count == 1 for count in repeats))
    return [*placed, repeats] if likely else [repeats, *placed]


def filled(change: Change, shape: Sizes, *, folded: bool = True) -> list[Sizes]:
    """Shapes of a constant tensor: as it is, or with the batch in a dimension of its size, or of a multiple of it.

    Multiples count if they are asked for (``folded``).

    One of several dimensions of size 1 leads to one number for each sample, such as those that drop a sample's path.
    """
    placed = [change.at(shape, k) for k, size in enumerate(shape) if size == change.old]
    factors = [change.at(shape, k) for k, size in enumerate(shape) if folded and size % change.old == 0]
    return [*placed, shape] if len(shape) > 1 and set(shape) == {1} else [shape, *placed, *factors]


def resized(change: Change, axes: Sequence[int], sizes: Sizes) -> list[Sizes]:
    """Sizes that a Resize may give: those with the batch of its data."""
    for axis in axes:
        sizes = change.at(sizes, axis)
    return [sizes]


def split(change: Change, sizes: Sizes) -> list[Sizes]:
    """The parts of a dimension that has the batch."""
    divides = all(size % change.old == 0 for size in sizes)
    return [tuple(change.scaled(size) for size in sizes)] if divides else []


def sliced(change: Change, size: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Bounds of a Slice with step 1 of a dimension that has the batch: all of it, the same share, or the same rows."""
    first, last = (bound + size if bound < 0 else min(bound, size) for bound in (start, end))
    if (first, last) == (0, size):
        yield 0, change.scaled(size)
        return
    if first % change.old == 0 and last % change.old == 0:
        yield change.scaled(first), change.scaled(last)
    yield start, end
