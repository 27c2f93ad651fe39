"""Regions: the ops of one call of a module, which a checkpoint around that module recomputes.

`torch.utils.checkpoint.checkpoint(use_reentrant=False)` keeps the arguments of the call and replaces everything that
autograd saves inside by placeholders. The first placeholder that the backward asks for recomputes the call, from its
start to the last tensor saved inside ("early stop"): an op that saves only what it reads does not run again itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from .eager_step import EagerStep

_DEEPEST = 64
"""Deeper module paths are ignored."""


@dataclass(frozen=True, slots=True)
class Region:
    """One call of the module at ``path``: ops ``first`` to ``last``.

    ``inputs`` are the storages that it reads and does not make, held until the backward of op ``end``. ``recomputed``
    are the ops that run again, right before the backward of op ``trigger``. If nothing inside is saved, ``trigger`` and
    ``end`` are -1 and nothing runs again.
    """

    path: str
    first: int
    last: int
    inputs: tuple[int, ...]
    recomputed: tuple[int, ...]
    trigger: int
    end: int

    @property
    def ops(self) -> range:
        """Indices of all ops of the call."""
        return range(self.first, self.last + 1)


def region_of(step: EagerStep, path: str, first: int, last: int) -> Region:
    """The region of the ops ``first`` to ``last``, with nothing inside it wrapped."""
    ops = step.graph.ops
    made = {storage for op in ops[first : last + 1] for storage in op.writes}
    inputs = dict.fromkeys(s for op in ops[first : last + 1] for s in op.reads if s not in made)
    return with_inner(step, Region(path, first, last, tuple(inputs), (), -1, -1), ())


def with_inner(step: EagerStep, region: Region, inner: Sequence[Region]) -> Region:
    """The region if the calls ``inner`` inside it, in order, are checkpointed too.

    What an inner call saves belongs to the inner checkpoint; to the outer one the call saves its arguments before it
    begins.
    """
    ops = step.graph.ops
    stop, triggers, ends = region.first, [], []
    position, waiting = region.first, list(inner)
    while position <= region.last:
        if waiting and position == waiting[0].first:
            call = waiting.pop(0)
            stop = position
            if call.trigger >= 0:
                triggers.append(call.trigger)
                ends.append(call.end)
            position = call.last + 1
            continue
        if step.saves[position]:
            backward = ops[position].backward
            runs = backward is not None and not set(backward.reads).isdisjoint(ops[position].writes)
            stop = position + 1 if runs else position  # an op that saves its own results has to run
            triggers.append(position)
            ends.append(position)
        position += 1
    if not triggers:
        return replace(region, recomputed=(), trigger=-1, end=-1)
    recomputed = tuple(index for index in range(region.first, stop) if ops[index].writes)
    return replace(region, recomputed=recomputed, trigger=max(triggers), end=min(ends))


def candidate_regions(step: EagerStep, called: Collection[str]) -> list[Region]:
    """The modules that can be wrapped, in order of their first op, outer ones first.

    ``called`` are the paths that are called (a list of modules never is). Left out are modules with an op that must run
    only once, and modules called several times, which would be several regions of one path: their ops are not
    contiguous, or repeat.
    """
    makers = _parameter_makers(step)
    positions: dict[str, list[int]] = {}
    for index, path in enumerate(step.paths):
        for prefix in accumulate(path.split("."), "{}.{}".format) if path.count(".") < _DEEPEST else ():
            positions.setdefault(prefix, []).append(index)
    found: dict[tuple[int, int], Region] = {}
    for path, indices in positions.items():
        first, last = indices[0], indices[-1]
        whole = last - first + 1 == len(indices)
        if path not in called or not whole or any(step.graph.ops[index].once for index in indices):
            continue
        if _repeats(step, indices) and not _trains_apart(makers, first, last):
            continue
        found.setdefault((first, last), region_of(step, path, first, last))  # of equal ones the outermost
    return sorted(found.values(), key=lambda region: (region.first, -region.last))


def _repeats(step: EagerStep, indices: Iterable[int]) -> bool:
    """Whether ops repeat the same kinds, as two calls of a module in a row do."""
    kinds = [step.graph.ops[index].op_type for index in indices if step.graph.ops[index].writes]
    count = len(kinds)
    return any(count % period == 0 and kinds[period:] == kinds[:-period] for period in range(1, count // 2 + 1))


def _trains_apart(makers: list[list[int]], first: int, last: int) -> bool:
    """Whether the ops ``first`` to ``last`` train parameters, each of which gets its gradient from one of them."""
    inside = [sum(first <= index <= last for index in ops) for ops in makers]
    return max(inside, default=0) == 1


def _parameter_makers(step: EagerStep) -> list[list[int]]:
    """For each parameter the ops whose backwards contribute to its gradient."""
    givers: dict[int, list[int]] = {}
    parts: dict[int, tuple[int, ...]] = {}
    for index, op in enumerate(step.graph.ops):
        if op.backward is not None:
            for edge in op.backward.gives:
                givers.setdefault(edge.gradient, []).append(index)
            parts.update((total.result, total.operands) for total in op.backward.sums)
    found = []
    for gradient, entry in enumerate(step.graph.gradients):
        if entry.parameter:
            makers, waiting, seen = [], [gradient], {gradient}
            while waiting:
                current = waiting.pop()
                makers += givers.get(current, [])
                new = set(parts.get(current, ())) - seen
                seen |= new
                waiting += sorted(new)
            found.append(makers)
    return found
