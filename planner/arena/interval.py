"""What is placed and where it lies: items that are alive for an interval of time, and their offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT_NBYTES = 512
"""PyTorch's CUDA allocator rounds sizes to it; every kernel that wants aligned memory is satisfied."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An item of ``nbytes`` that is alive from event ``begin`` to just before event ``end``.

    Two items conflict if their intervals overlap. An item with an ``offset`` is fixed there: the others go round it.
    """

    nbytes: int
    begin: int
    end: int
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """One offset for each item, and the size of the arena that holds them all.

    ``bound_nbytes`` is a proven lower limit of the arena's size. Offsets and sizes are multiples of ``alignment``.
    """

    offsets: tuple[int, ...]
    nbytes: int
    bound_nbytes: int
    alignment: int = ALIGNMENT_NBYTES

    @property
    def above_bound(self) -> float:
        """The part of the arena that the bound does not explain, as a share of the bound."""
        return (self.nbytes - self.bound_nbytes) / self.bound_nbytes if self.bound_nbytes else 0.0


def most_alive(items: Sequence[Interval]) -> int:
    """The largest sum of bytes that are alive together."""
    changes: defaultdict[int, int] = defaultdict(int)
    for item in items:
        changes[item.begin] += item.nbytes
        changes[item.end] -= item.nbytes
    alive = most = 0
    for event in sorted(changes):
        alive += changes[event]
        most = max(most, alive)
    return most
