"""The events of a snapshot on the product's model of the allocator: what it gives, and what the real one gave.

The model starts from the state before the first event and is told requests, releases, and where the driver put each
new segment. From then on it runs freely: an answer that is not the real one is not put right, so that it shows in all
that follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

from ogc_plan.adapters.pytorch.memory.caching_allocator import (
    DEFAULT_POOL,
    AllocatorSettings,
    Block,
    from_snapshot,
)

from models.cuda.snapshots.reading import Event, Snapshot
from models.cuda.snapshots.start import start_of

_ELSEWHERE = 1 << 56
"""An address above those of every card, for segments that the real allocator did not take."""
_Blocks: TypeAlias = Counter[tuple[int, int, bool]]
"""Blocks by address, bytes, and whether they are in use."""
_QUIET = ("free_requested", "snapshot", "oom", "user_defined")
"""Actions that leave blocks and segments as they are."""


@dataclass(slots=True)
class Agreement:
    """How often something was compared, and how often the model and the record agree."""

    compared: int = 0
    equal: int = 0

    def add(self, compared: int, equal: int) -> None:
        """Count more comparisons."""
        self.compared += compared
        self.equal += equal

    @property
    def whole(self) -> bool:
        """Whether they agree throughout."""
        return self.compared == self.equal


@dataclass(slots=True)
class Replay:
    """The events of one device, replayed. Sizes are in bytes; pairs are the record's and the model's.

    Attributes:
        device: its number.
        events: how many were recorded.
        streams: how many streams they are on.
        held: the blocks in use before the first event.
        inferred: those of them whose end a later event told (`start.start_of`).
        addresses: the address of each block that was given.
        taken: each new segment: whether and when one was taken, and its size.
        freed: each segment that was given back.
        reserved: the bytes of all segments, after each event.
        most_apart_nbytes: by how much they differ at most.
        peak_reserved_nbytes: the peaks of it.
        allocated_nbytes: the bytes of blocks in use at the end, the one time that the record has them.
        blocks: each block in use or free at the end, with its address and size.
        first: the first difference, in words.
        why_not: why nothing was replayed.
    """

    device: int
    events: int
    streams: int = 1
    held: int = 0
    inferred: int = 0
    addresses: Agreement = field(default_factory=Agreement)
    taken: Agreement = field(default_factory=Agreement)
    freed: Agreement = field(default_factory=Agreement)
    reserved: Agreement = field(default_factory=Agreement)
    most_apart_nbytes: int = 0
    peak_reserved_nbytes: tuple[int, int] = (0, 0)
    allocated_nbytes: tuple[int, int] = (0, 0)
    blocks: Agreement = field(default_factory=Agreement)
    first: str | None = None
    why_not: str | None = None

    @property
    def exact(self) -> bool:
        """Whether model and record agree in everything."""
        parts = (self.addresses, self.taken, self.freed, self.reserved, self.blocks)
        return self.why_not is None and all(part.whole for part in parts) and not self._differ()

    def _differ(self) -> bool:
        return any(one != other for one, other in (self.allocated_nbytes, self.peak_reserved_nbytes))


def replays(snapshot: Snapshot) -> list[Replay]:
    """The replay of each device that has events."""
    return [
        _replayed(snapshot, device, snapshot.segments.get(device, []), events)
        for device, events in snapshot.events.items()
    ]


def _replayed(snapshot: Snapshot, device: int, segments: Sequence[dict[str, Any]], events: Sequence[Event]) -> Replay:
    made = Replay(device, len(events), len({event.stream for event in events}))
    settings = snapshot.settings or AllocatorSettings()
    made.why_not = _obstacle(snapshot, segments, events)
    if made.why_not is not None:
        return made
    start = start_of(segments, events)
    made.held = sum(block["state"] != "inactive" for segment in start.segments for block in segment["blocks"])
    made.inferred = start.inferred
    if start.unfit:
        made.why_not = f"{start.unfit} of its events do not lead to its segments: the record has gaps"
        return made
    run = _Run(made, start.segments, settings, events)
    run.go(events)
    run.end(segments)
    return made


def _obstacle(snapshot: Snapshot, segments: Sequence[dict[str, Any]], events: Sequence[Event]) -> str | None:
    """What the model, or this replay of it, cannot follow."""
    if snapshot.unknown_setting is not None:
        return f"the model does not know the setting {snapshot.unknown_setting}"
    if not any(event.action == "alloc" for event in events):
        return "it records no request"
    mapped = any(event.action in ("segment_map", "segment_unmap") for event in events)
    if mapped or any(segment["is_expandable"] for segment in segments):
        return "it has expandable segments, whose pages are not undone here"
    if any(segment["segment_pool_id"] != DEFAULT_POOL for segment in segments):
        return "it has memory pools of their own, such as those of CUDA graphs, and events do not name their pool"
    known = ("alloc", "free_completed", "segment_alloc", "segment_free", *_QUIET)
    unknown = {event.action for event in events}.difference(known)
    return f"it has events of other kinds: {min(unknown):.40}" if unknown else None


class _Run:
    """One model for each stream: streams share no blocks."""

    def __init__(
        self, made: Replay, segments: list[dict[str, Any]], settings: AllocatorSettings, events: Sequence[Event]
    ) -> None:
        self.made = made
        streams = {each["stream"] for each in segments} | {event.stream for event in events}
        self.models = {
            stream: from_snapshot([each for each in segments if each["stream"] == stream], settings)
            for stream in streams
        }
        self.pending: dict[int, list[Event]] = {stream: [] for stream in streams}
        self.given: dict[int, Block] = {}  # by the real address
        self.recorded = self.most_recorded = self.most = self.reserved()
        self.elsewhere = _ELSEWHERE
        for stream, model in self.models.items():
            model.place = partial(self.placed, stream)

    def reserved(self) -> int:
        """The bytes of all segments of the models."""
        return sum(model.now.reserved_nbytes for model in self.models.values())

    def placed(self, stream: int, nbytes: int) -> int:
        """The address of a segment that a model takes: where the driver put it, if the real allocator took one."""
        pending = self.pending[stream]
        if pending and pending[0].nbytes == nbytes:
            self.made.taken.equal += 1
            return pending.pop(0).address
        if not pending:
            self.made.taken.compared += 1
        self.elsewhere += nbytes
        return self.elsewhere - nbytes

    def go(self, events: Sequence[Event]) -> None:
        """Follow the events."""
        number = 0
        for action, run in groupby(events, key=lambda event: event.action):
            together = list(run)
            if action == "segment_free":
                self.freed(together)
                number += len(together)
                self.compare(together[-1], number)
                continue
            for event in together:
                number += 1
                if action == "segment_alloc":
                    self.pending[event.stream].append(event)
                    self.made.taken.compared += 1
                    self.recorded += event.nbytes
                    continue  # the model takes it with the request that it is for
                if action == "alloc":
                    self.allocate(event, number)
                elif action == "free_completed":
                    model = self.models[event.stream]
                    model.release(self.given.pop(event.address, None) or model.held_at(event.address))
                self.compare(event, number)
        self.made.peak_reserved_nbytes = (self.most_recorded, self.most)

    def end(self, segments: Sequence[dict[str, Any]]) -> None:
        """Compare the blocks at the end with those of the snapshot."""
        recorded: _Blocks = Counter(_blocks_of(segments))
        found: _Blocks = Counter(
            (block.address, block.nbytes, block.in_use) for model in self.models.values() for block in model.blocks()
        )
        self.made.blocks.add(sum((recorded | found).values()), sum((recorded & found).values()))
        self.made.allocated_nbytes = (_in_use(recorded), _in_use(found))

    def allocate(self, event: Event, number: int) -> None:
        """Serve a request."""
        block = self.models[event.stream].allocate(event.nbytes)
        if block is not None:
            self.given[event.address] = block
        found = block.address if block is not None else 0
        self.made.addresses.add(1, found == event.address)
        self.pending[event.stream].clear()
        if found != event.address:
            self.differs(number, f"{event.nbytes:,} B at {event.address:#x}, the model's at {found:#x}")

    def freed(self, events: Sequence[Event]) -> None:
        """Give free segments back."""
        gone = set()
        for model in self.models.values():
            before = {block.address for block in model.blocks()}
            model.empty_cache()
            gone |= before - {block.address for block in model.blocks()}
        recorded = {event.address for event in events}
        self.made.freed.add(len(recorded | gone), len(recorded & gone))
        self.recorded -= sum(event.nbytes for event in events)

    def compare(self, event: Event, number: int) -> None:
        """Compare what is reserved."""
        reserved = self.reserved()
        self.most_recorded, self.most = max(self.most_recorded, self.recorded), max(self.most, reserved)
        self.made.reserved.add(1, reserved == self.recorded)
        self.made.most_apart_nbytes = max(self.made.most_apart_nbytes, abs(reserved - self.recorded))
        if reserved != self.recorded:
            self.differs(number, f"{event.action}: {self.recorded:,} B are reserved, by the model {reserved:,} B")

    def differs(self, number: int, what: str) -> None:
        """Keep the first difference."""
        self.made.first = self.made.first or f"event {number:,}, {what}"


def _in_use(blocks: _Blocks) -> int:
    return sum(nbytes * count for (_, nbytes, in_use), count in blocks.items() if in_use)


def _blocks_of(segments: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int, bool]]:
    """Address, bytes, and whether it is in use, of each block of a snapshot."""
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            yield address, block["size"], block["state"] != "inactive"
            address += block["size"]
