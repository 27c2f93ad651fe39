"""The recomputation and the backwards of a checkpointed region: what runs, and what must be alive meanwhile.

Regions nest. To an outer checkpoint an inner one is a call that saves its arguments: the outer one recomputes all of it
to get them back, and then the inner one is recomputed alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...planner.schedule import Schedule, Step, StepKind
from .eager_step import EagerStep
from .regions import Region, with_inner


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A checkpointed region.

    ``saved`` are the ops in it whose outputs a selective policy saves, ``inner`` the checkpointed regions inside it, in
    order.
    """

    region: Region
    saved: frozenset[int] = frozenset()
    inner: tuple[Wrapped, ...] = ()

    def all(self) -> Iterator[Wrapped]:
        """This region and all regions inside it, outer ones first."""
        yield self
        for entry in self.inner:
            yield from entry.all()


def nested(step: EagerStep, regions: Iterable[Region]) -> tuple[Wrapped, ...]:
    """Regions with different ops as a forest: each inside the smallest region that contains it."""
    forest: list[tuple[Region, list[Wrapped]]] = []  # the regions that are open, outermost first
    done: list[Wrapped] = []

    def close() -> None:
        region, inner = forest.pop()
        (forest[-1][1] if forest else done).append(wrapped_with(step, region, inner))

    for region in sorted(regions, key=lambda region: (region.first, -region.last)):
        while forest and forest[-1][0].last < region.first:
            close()
        forest.append((region, []))
    while forest:
        close()
    return tuple(done)


def wrapped_with(step: EagerStep, region: Region, inner: Iterable[Wrapped]) -> Wrapped:
    """A region with checkpointed regions inside."""
    inside = tuple(inner)
    return Wrapped(with_inner(step, region, [entry.region for entry in inside]), frozenset(), inside)


@dataclass(slots=True)
class Entry:
    """One computation and the storages that must be alive during it; ``call`` is the region it recomputes, if any."""

    step: Step
    writes: tuple[int, ...]
    uses: list[int] = field(default_factory=list)
    call: Wrapped | None = None


def region_entries(step: EagerStep, wrapped: Wrapped, copies: dict[int, int], *, outermost: bool = True) -> list[Entry]:
    """The recomputation and backwards of a region, in order of execution.

    ``copies`` names the ops that are recomputed in place of ops whose output the caller holds.
    """
    region, ops = wrapped.region, step.graph.ops
    entries: list[Entry] = []
    index, waiting = region.last, list(wrapped.inner)
    while index >= region.first:
        if waiting and index == waiting[-1].region.last:
            inner = waiting.pop()
            entries += region_entries(step, inner, copies, outermost=False)
            index = inner.region.first
        else:
            backward = ops[index].backward
            if backward is not None:
                entries.append(Entry(Step(StepKind.BACKWARD, index), (), list(backward.reads)))
        index -= 1
    again = _recomputation(step, wrapped, copies)
    position = position_of(entries, region.trigger)
    if not outermost:
        if again:
            again[-1].uses += region.inputs
        elif position >= 0:
            entries[position].uses += region.inputs
    if position >= 0:
        while position and entries[position - 1].step.kind is StepKind.RECOMPUTE:  # of a region inside
            position -= 1
        entries[position:position] = again
    if outermost and region.end >= 0:
        stopped = region.recomputed[-1] if region.recomputed else region.first - 1
        late = (s for saved in wrapped.saved if saved > stopped for s in ops[saved].writes)
        entries[position_of(entries, region.end)].uses += [*region.inputs, *late]
    return entries


def position_of(entries: Sequence[Entry], index: int) -> int:
    """The position of an op's backward among entries, -1 if it is not there."""
    wanted = Step(StepKind.BACKWARD, index)
    return next((position for position, entry in enumerate(entries) if entry.step == wanted), -1)


def _recomputation(step: EagerStep, wrapped: Wrapped, copies: dict[int, int]) -> list[Entry]:
    """The recomputation of a region, including the regions inside it; a call holds its arguments while it runs."""
    ops, entries = step.graph.ops, []
    for index in wrapped.region.recomputed:
        if index not in wrapped.saved:
            which = Step(StepKind.RECOMPUTE, copies.get(index, index))
            entries.append(Entry(which, ops[index].writes, list(ops[index].reads), wrapped))
            for inner in wrapped.inner:
                if index == inner.region.last:
                    entries[-1].uses += inner.region.inputs
    return entries


def lowered(entries: Sequence[Entry], pinned: frozenset[int]) -> Schedule:
    """The entries as a schedule: every storage is freed after its last use before its next computation."""
    wanted: set[int] = set()
    groups: list[list[Step]] = []
    for entry in reversed(entries):
        dead = [s for s in entry.writes if s not in wanted]
        wanted.difference_update(entry.writes)
        dead += [s for s in dict.fromkeys(entry.uses) if s not in wanted]
        wanted.update(entry.uses)
        groups.append([entry.step, *(Step(StepKind.FREE, s) for s in dead if s not in pinned)])
    return Schedule(tuple(step for group in reversed(groups) for step in group))
