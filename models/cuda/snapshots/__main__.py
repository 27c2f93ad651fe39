"""Replay public snapshots of PyTorch's CUDA allocator on the model of it that plans are made with.

    python -m models.cuda.snapshots -o models/results/cuda_snapshots.json [--from FOLDER] [FILE...]

A snapshot (``torch.cuda.memory._dump_snapshot``) records what a program asked for and what the allocator gave, event by
event. The model is told the requests and the releases, and where the driver put new segments; what it gives is compared
with the record. Without files, those of listing.json are taken from GitHub, or from the clones that lie in a folder as
OWNER/NAME, checked out or bare. No card is needed. The exit code is 1 where a snapshot cannot be had or read, is not
replayed, or differs from the record.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ogc_plan.adapters.pytorch.memory.caching_allocator import AllocatorSettings

from models.cuda.snapshots.listing import FILES
from models.cuda.snapshots.reading import SnapshotError, read
from models.cuda.snapshots.replay import Replay, replays
from models.cuda.snapshots.table import report
from models.reporting.command_line import add_output, command_parser
from models.reporting.result_record import publish


def outcomes(told: dict[str, str], fetch: Callable[[], bytes]) -> list[dict[str, Any]]:
    """The rows of one snapshot, one for each device; ``told`` names it."""
    try:
        snapshot = read(fetch())
    except (SnapshotError, OSError) as error:
        why = str(error) if isinstance(error, SnapshotError) else error.strerror
        return [told | {"settings": "", "exact": False} | asdict(Replay(0, 0, why_not=why))]
    settings = "not recorded" if snapshot.settings is None else "default"
    if snapshot.settings not in (None, AllocatorSettings()):
        settings = "others"
    found = replays(snapshot) or [Replay(0, 0, why_not="it has no events: memory history was not recorded")]
    return [told | {"settings": settings, "exact": each.exact} | asdict(each) for each in found]


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the snapshots, and print the report."""
    parser = command_parser("models.cuda.snapshots", __doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="snapshots of your own")
    parser.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help="clones, as OWNER/NAME")
    add_output(parser)
    options = parser.parse_args(arguments)
    wanted: list[tuple[dict[str, str], Callable[[], bytes]]] = [
        ({"source": "files of your own", "path": path.name}, path.read_bytes) for path in options.files
    ] or [
        (
            {"source": f"{file.repository}, commit {file.commit}", "path": file.path, "sha256": file.sha256},
            partial(file.fetch, options.folder),
        )
        for file in FILES
    ]
    rows = []
    for told, fetch in wanted:
        found = outcomes(told, fetch)
        rows += found
        for row in found:
            how = "equal" if row["exact"] else row["why_not"] or row["first"] or "differs at the end"
            print(f"{told['path']}: {how}", file=sys.stderr, flush=True)
    publish(
        report(rows),
        options.output,
        script="models.cuda.snapshots",
        arguments=arguments,
        device="cpu",
        quantity="blocks and segments that the real allocator gave, and those of the model",
        rows=rows,
    )
    return int(not all(row["exact"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
