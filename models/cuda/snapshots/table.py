"""The tables of replayed snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.reporting.result_table import megabytes, table

_AGREEMENTS = ("addresses", "taken", "freed", "reserved", "blocks")


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many snapshots were replayed, and what agrees, in sentences."""
    replayed = [row for row in rows if row["why_not"] is None]
    sums = {name: [sum(row[name][part] for row in replayed) for part in ("compared", "equal")] for name in _AGREEMENTS}

    def share(name: str) -> str:
        compared, equal = sums[name]
        return f"{equal:,} of {compared:,}"

    repositories = len({row["source"] for row in replayed})
    allocated = sum(row["allocated_nbytes"][0] == row["allocated_nbytes"][1] for row in replayed)
    peaks = sum(row["peak_reserved_nbytes"][0] == row["peak_reserved_nbytes"][1] for row in replayed)
    told = (
        f"{len(replayed)} of {len(rows)} snapshots of {repositories} repositories are replayed, "
        f"{sum(row['events'] for row in replayed):,} events. The model gives {share('addresses')} blocks the real "
        f"address. It takes {share('taken')} new segments, and gives back {share('freed')}, as the real allocator did. "
        f"The reserved bytes are equal after {share('reserved')} events, their peaks in {peaks} of {len(replayed)} "
        f"snapshots. At the end {share('blocks')} blocks are equal, and the allocated bytes in {allocated} of "
        f"{len(replayed)} snapshots."
    )
    apart = max((row["most_apart_nbytes"] for row in replayed), default=0)
    return f"{told} Reserved bytes differ by {apart:,} at most." if apart else told


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown."""
    header = [
        "snapshot", "settings", "events", "streams", "in use at the start", "addresses", "segments taken", "given back",
        "reserved", "peak reserved, MB", "blocks at the end", "allocated then, MB",
    ]  # fmt: skip
    lines, told, sources = [], [], dict.fromkeys(row["source"] for row in rows)
    marks = {source: str(number) for number, source in enumerate(sources, 1)}
    for row in rows:
        name = f"{marks[row['source']]}: {row['path']}" + (f", device {row['device']}" if row["device"] else "")
        if row["why_not"] is not None:
            told.append(f"- {name} was not replayed: {row['why_not']}.")
            continue
        if row["first"] is not None:
            told.append(f"- {name}, first difference: {row['first']}.")
        if row["inferred"]:
            told.append(f"- {name}: a later event told the end of {row['inferred']} of the blocks in use at the start.")
        lines.append([
            name,
            row["settings"],
            f"{row['events']:,}",
            str(row["streams"]),
            f"{row['held']:,}",
            *(_share(row[part]) for part in _AGREEMENTS[:4]),
            _pair(row["peak_reserved_nbytes"]),
            _share(row["blocks"]),
            _pair(row["allocated_nbytes"]),
        ])  # fmt: skip
    listed = "\n".join(f"- {mark}: {source}" for source, mark in marks.items())
    parts = (summary(rows), table(header, lines) if lines else "", "\n".join(told), listed)
    return "\n\n".join(filter(None, parts))


def _share(agreement: Mapping[str, int]) -> str:
    return f"{agreement['equal']:,}/{agreement['compared']:,}"


def _pair(nbytes: Sequence[int]) -> str:
    """The record's figure, and the model's where it is another one."""
    recorded, found = nbytes
    return megabytes(recorded) if recorded == found else f"{megabytes(recorded)}, by the model {megabytes(found)}"
