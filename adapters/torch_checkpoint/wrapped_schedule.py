"""A training step with checkpointed regions as a schedule that the planner's simulator replays.

The model of torch.utils.checkpoint (not reentrant, early stop, as of torch 2.13):
- The arguments of a wrapped call are held until the last of its backwards that saved anything has run.
- Everything recomputed of a region exists at once when its backward starts; each tensor is freed with the last backward
  that reads it.
- A recomputed tensor that the caller also holds (an output of the model) exists twice.
- A call keeps the generator's state from its start, and a second one while it is recomputed.
- A selective policy keeps every output of a saved op from the forward on; all other ops are recomputed, needed or not.
  A saved output after the point of early stop stays as long as the arguments do.
- A checkpoint inside a checkpoint is recomputed twice: with the outer one, which gets its arguments back, and alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...planner.graph import Storage
from ...planner.pipeline import peak_of
from ...planner.schedule import Schedule, Step, StepKind
from ...planner.simulate import Timeline, simulate
from ...planner.training_graph import OpCost, TrainingGraph, TrainingOp
from .eager_step import EagerStep
from .region_recompute import Entry, Wrapped, lowered, region_entries


@dataclass(frozen=True, slots=True)
class WrappedStep:
    """A replayed step with some regions checkpointed."""

    wrapped: tuple[Wrapped, ...]
    timeline: Timeline
    peak_nbytes: int

    @property
    def recompute_ns(self) -> int:
        """Time of recomputation."""
        return self.timeline.recompute_ns


def replayed(step: EagerStep, wrapped: Sequence[Wrapped]) -> WrappedStep:
    """The step with these regions checkpointed, which must not overlap, replayed by the planner's simulator."""
    writer = _Writer(step, wrapped)
    graph, costs, schedule = writer.written()
    timeline = simulate(graph, costs, schedule)
    return WrappedStep(tuple(wrapped), timeline, peak_of(timeline, step.scope))


class _Writer:
    """The graph with what checkpoints add to it, and the schedule."""

    def __init__(self, step: EagerStep, wrapped: Sequence[Wrapped]) -> None:
        self.step = step
        self.wrapped = sorted(wrapped, key=lambda entry: entry.region.first)
        self.calls = [call for entry in self.wrapped for call in entry.all()]
        inside = {index for call in self.calls for index in call.region.recomputed}
        self.ops = [replace(op, random_state_nbytes=0) if i in inside else op for i, op in enumerate(step.graph.ops)]
        self.costs = list(step.costs)
        self.storages = list(step.graph.storages)
        self.pinned = frozenset(step.graph.outputs)
        self.copies: dict[int, int] = {}  # op -> the op that is recomputed in its place

    def _add(self, name: str, nbytes: Sequence[int], like: int | None = None) -> int:
        """Add an op with the cost of the op ``like``; returns its index."""
        first = len(self.storages)
        self.storages += [Storage(f"{name} {number}", size) for number, size in enumerate(nbytes)]
        reads = () if like is None else self.ops[like].reads
        self.ops.append(TrainingOp(name, "checkpoint", reads, tuple(range(first, len(self.storages)))))
        self.costs.append(OpCost(0) if like is None else self.step.costs[like])
        return len(self.ops) - 1

    def _copy(self, index: int) -> None:
        """Add a copy of an op whose output the caller holds; it is recomputed in place of that op."""
        writes = self.ops[index].writes
        self.copies[index] = self._add(
            f"copy of {self.ops[index].name}", [self.storages[s].nbytes for s in writes], index
        )

    def written(self) -> tuple[TrainingGraph, tuple[OpCost, ...], Schedule]:
        """Graph, costs and schedule."""
        forward: list[Entry] = []
        for call in self.calls:
            for again in call.region.recomputed:
                outputs = self.step.graph.ops[again].writes
                if again not in call.saved and again not in self.copies and not self.pinned.isdisjoint(outputs):
                    self._copy(again)
        states = [self._states(call) for call in self.calls]
        starting: dict[int, list[int]] = {}
        ending: dict[int, list[int]] = {}
        for call, pair in zip(self.calls, states, strict=True):
            starting.setdefault(call.region.first, []).extend(pair)
            ending.setdefault(call.region.last, []).extend(call.region.inputs)
        for index, op in enumerate(self.step.graph.ops):
            forward += [self._run(state) for state in starting.get(index, ())]
            if index in self.copies:
                forward.append(self._run(self.copies[index]))
            uses = [*op.reads, *ending.get(index, ())]
            forward.append(Entry(Step(StepKind.FORWARD, index), op.writes, uses))
        entries = forward + list(self._with_states(list(self._backwards()), states))
        graph = replace(self.step.graph, ops=tuple(self.ops), storages=tuple(self.storages), aliases=())
        return graph, tuple(self.costs), lowered(entries, self.pinned)

    def _states(self, call: Wrapped) -> tuple[int, int]:
        """The generator states of a call: one from its start, and those while it is recomputed."""
        path, inside = call.region.path, sum(1 for _ in call.all())
        state = self._add(f"state of {path}", [self.step.state_nbytes])
        return state, self._add(f"states of {path} again", [inside * self.step.state_nbytes])

    def _run(self, index: int) -> Entry:
        return Entry(Step(StepKind.FORWARD, index), self.ops[index].writes, list(self.ops[index].reads))

    def _with_states(self, entries: list[Entry], states: list[tuple[int, int]]) -> Iterator[Entry]:
        """The entries with the generator states held where a call ends and while it is recomputed."""
        second = {id(call): pair[1] for call, pair in zip(self.calls, states, strict=True)}
        last = {id(entry.call): entry for entry in entries if entry.call is not None}
        backward = {entry.step.index: entry for entry in entries if entry.step.kind is StepKind.BACKWARD}
        for call, (state, _) in zip(self.calls, states, strict=True):
            if call.region.end >= 0:
                backward[call.region.end].uses += self.ops[state].writes
        running: set[int] = set()
        for entry in entries:
            key = id(entry.call)
            if entry.call is not None and key not in running:
                running.add(key)
                held = self.ops[second[key]].writes
                last[key].uses += held
                yield Entry(Step(StepKind.RECOMPUTE, second[key]), held)
            yield entry

    def _backwards(self) -> Iterable[Entry]:
        at = len(self.step.graph.ops) - 1
        for wrapped in (*reversed(self.wrapped), None):
            last = -1 if wrapped is None else wrapped.region.last
            for index in range(at, last, -1):
                backward = self.step.graph.ops[index].backward
                if backward is not None:
                    yield Entry(Step(StepKind.BACKWARD, index), (), list(backward.reads))
            if wrapped is None:
                return
            at = wrapped.region.first - 1
            yield from self._region(wrapped)

    def _region(self, wrapped: Wrapped) -> Iterable[Entry]:
        entries = region_entries(self.step, wrapped, self.copies)
        copied: dict[int, int] = {}
        for index in wrapped.region.ops:
            if index in self.copies:
                pairs = zip(self.step.graph.ops[index].writes, self.ops[self.copies[index]].writes, strict=True)
                copied.update(pairs)
        for entry in entries:
            self._redirect(entry, copied)
        return entries

    def _redirect(self, entry: Entry, copied: dict[int, int]) -> None:
        """Let entries of a region read the copies of outputs that the caller holds."""
        kind, index = entry.step.kind, entry.step.index
        if kind is StepKind.RECOMPUTE:
            entry.writes = self.ops[index].writes
        if kind is StepKind.BACKWARD and not copied.keys().isdisjoint(entry.uses):
            backward = self.ops[index].backward
            assert backward is not None
            reads = tuple(copied.get(s, s) for s in backward.reads)
            self.ops[index] = replace(self.ops[index], backward=replace(backward, reads=reads))
            entry.uses = [copied.get(s, s) for s in entry.uses]
