"""Snapshots are replayed event by event; a file that is none is named, and what it asks for does not run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.cuda.snapshots import __main__ as command
from models.cuda.snapshots.listing import FILES, Published
from models.cuda.snapshots.reading import SnapshotError, read
from models.cuda.snapshots.replay import Replay, replays
from models.cuda.snapshots.table import summary

RESULTS = Path(__file__).resolve().parents[3] / "models" / "results" / "cuda_snapshots.json"
MIB = 1 << 20
SMALL, LARGE, OWN = 100 * MIB, 200 * MIB, 300 * MIB
"""Addresses of three segments."""


def event(action: str, address: int, nbytes: int, stream: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": nbytes, "stream": stream, "frames": []}


def segment(address: int, kind: str, *blocks: tuple[int, int], stream: int = 0, **more: Any) -> dict[str, Any]:
    """A segment of blocks of so many bytes; the second number is what was asked for, 0 for a free block."""
    return {
        "device": 0, "address": address, "total_size": sum(nbytes for nbytes, _ in blocks), "segment_type": kind,
        "stream": stream, "segment_pool_id": (0, 0), "is_expandable": False,
        "blocks": [
            {"size": nbytes, "requested_size": asked, "state": "active_allocated" if asked else "inactive"}
            for nbytes, asked in blocks
        ],
    } | more  # fmt: skip


SETTINGS: dict[str, Any] = {
    "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
    "expandable_segments": False, "roundup_power2_divisions": {"1": 0, "2": 0},
}  # fmt: skip
SEGMENTS = [
    segment(SMALL, "small", (512, 100), (1024, 1000), (2 * MIB - 1536, 0)),
    segment(LARGE, "large", (5 * MIB, 0), (15 * MIB, 14 * MIB)),
]
EVENTS = [
    event("alloc", SMALL + 512, 1000),  # a block of 512 B is in use before it
    event("segment_alloc", LARGE, 20 * MIB),
    event("alloc", LARGE, 5 * MIB),
    event("alloc", LARGE + 5 * MIB, 14 * MIB),  # what is left is not worth a block
    event("free_requested", SMALL, 200),
    event("free_completed", SMALL, 200),
    event("alloc", SMALL, 100),  # the smallest free block that is large enough
    event("free_requested", LARGE, 5 * MIB),
    event("free_completed", LARGE, 5 * MIB),
    event("segment_alloc", OWN, 32 * MIB),
    event("alloc", OWN, 31 * MIB),
    event("free_requested", OWN, 31 * MIB),
    event("free_completed", OWN, 31 * MIB),
    event("segment_free", OWN, 32 * MIB),
]


def pickled(
    segments: list[dict[str, Any]] = SEGMENTS,
    events: list[dict[str, Any]] = EVENTS,
    settings: dict[str, Any] | None = SETTINGS,
) -> bytes:
    found = {"segments": segments, "device_traces": [[], events] if events is not EVENTS else [events]}
    return pickle.dumps(found if settings is None else found | {"allocator_settings": settings})


def replayed(*arguments: Any, **more: Any) -> Replay:
    """The replay of a snapshot whose device is not the first, unless it is the whole example."""
    found = pickle.loads(pickled(*arguments, **more))
    device = len(found["device_traces"]) - 1
    for each in found["segments"]:
        each["device"] = device
    (made,) = replays(read(pickle.dumps(found)))
    assert made.device == device
    return made


def changed(number: int, **to: Any) -> list[dict[str, Any]]:
    return [each | to if at == number else each for at, each in enumerate(EVENTS)]


# Replaying


def test_a_run_that_the_model_knows_is_equal_in_everything() -> None:
    made = replayed()
    assert made.exact
    assert [(part.compared, part.equal) for part in (made.addresses, made.taken, made.freed, made.blocks)] == [
        (5, 5), (2, 2), (1, 1), (5, 5),
    ]  # fmt: skip
    assert (made.held, made.first, made.most_apart_nbytes) == (1, None, 0)
    assert made.peak_reserved_nbytes == (54 * MIB, 54 * MIB)
    assert made.allocated_nbytes == (1536 + 15 * MIB, 1536 + 15 * MIB)


def test_an_address_that_the_rules_do_not_give_is_told_with_its_event() -> None:
    """The freed block stays free, and the request is served behind the others."""
    events = changed(6, addr=SMALL + 1536)
    segments = [segment(SMALL, "small", (512, 0), (1024, 1000), (512, 100), (2 * MIB - 2048, 0)), SEGMENTS[1]]
    made = replayed(segments, events)
    assert (made.exact, made.addresses.equal, made.blocks.whole) == (False, 4, False)
    assert made.first == f"event 7, 100 B at {SMALL + 1536:#x}, the model's at {SMALL:#x}"


def test_a_segment_of_another_size_is_told_by_the_reserved_bytes() -> None:
    events = [*EVENTS[:9], event("segment_alloc", OWN, 34 * MIB), event("alloc", OWN, 31 * MIB), *EVENTS[11:13]]
    made = replayed([*SEGMENTS, segment(OWN, "large", (34 * MIB, 0))], events)
    assert (made.taken.equal, made.reserved.whole, made.most_apart_nbytes) == (1, False, 2 * MIB)
    assert made.peak_reserved_nbytes == (56 * MIB, 54 * MIB)


def test_a_segment_that_the_rules_do_not_take_is_told() -> None:
    """The request fits a free block."""
    events = [*EVENTS[:9], event("segment_alloc", OWN, 20 * MIB), event("alloc", OWN, 5 * MIB)]
    made = replayed([*SEGMENTS, segment(OWN, "large", (5 * MIB, 5 * MIB), (15 * MIB, 0))], events)
    assert (made.exact, made.taken.compared, made.taken.equal) == (False, 2, 1)


def test_a_segment_that_only_the_model_takes_is_told() -> None:
    """The record serves a small request of a large segment."""
    made = replayed([segment(LARGE, "large", (512, 100), (20 * MIB - 512, 0))], [event("alloc", LARGE, 100)])
    assert (made.exact, made.taken.compared, made.taken.equal) == (False, 1, 0)
    assert (made.addresses.equal, made.most_apart_nbytes) == (0, 2 * MIB)


def test_a_segment_that_stays_where_the_rules_give_it_back_is_told() -> None:
    made = replayed([*SEGMENTS, segment(400 * MIB, "small", (2 * MIB, 0))], list(EVENTS))
    assert (made.exact, made.freed.compared, made.freed.equal) == (False, 2, 1)


def test_streams_share_no_blocks() -> None:
    """Each request fits the free block of the other stream better."""
    segments = [
        segment(SMALL, "small", (512, 512), (2 * MIB - 512, 0)),
        segment(OWN, "small", (2 * MIB - 4096, 8), (512, 500), (4096 - 512, 0), stream=7),
    ]
    made = replayed(segments, [event("alloc", SMALL, 512), event("alloc", OWN + 2 * MIB - 4096, 500, stream=7)])
    assert (made.exact, made.streams, made.addresses.compared) == (True, 2, 2)


def test_a_later_event_tells_the_end_of_a_block_with_more_than_its_request() -> None:
    """A block of 2.5 MiB for 2 MiB is in use before the first event; 4 MiB are free behind it."""
    half = MIB // 2
    segments = [segment(LARGE, "large", (5 * half, 0), (4 * MIB, 4 * MIB), (10 * MIB, 10 * MIB), (7 * half, 7 * half))]
    events = [
        event("alloc", LARGE + 33 * half, 7 * half),
        event("alloc", LARGE + 5 * half, 4 * MIB),
        event("free_completed", LARGE, 2 * MIB),
    ]
    made = replayed(segments, events)
    assert (made.exact, made.inferred) == (True, 1)


def test_older_versions_recorded_no_settings() -> None:
    snapshot = read(pickled(settings=None))
    assert snapshot.settings is None
    assert replays(snapshot)[0].exact


# What is not replayed


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"max_split_size": 1 << 28}, "max_split_size_mb"),
        ({"garbage_collection_threshold": 0.6}, "garbage_collection_threshold"),
        ({"roundup_power2_divisions": {"1": 4}}, "roundup_power2_divisions"),
    ],
)
def test_a_setting_that_the_model_does_not_know_is_named(setting: dict[str, Any], name: str) -> None:
    assert replayed(settings=SETTINGS | setting).why_not == f"the model does not know the setting {name}"


@pytest.mark.parametrize(
    ("segments", "events", "named"),
    [
        ([SEGMENTS[0] | {"segment_pool_id": (0, 1)}, SEGMENTS[1]], EVENTS, "memory pools of their own"),
        (SEGMENTS, [event("snapshot", 0, 0)], "records no request"),
        ([SEGMENTS[0] | {"is_expandable": True}, SEGMENTS[1]], EVENTS, "expandable segments"),
        (SEGMENTS, [*EVENTS, event("segment_map", OWN, 2 * MIB)], "expandable segments"),
        (SEGMENTS, [*EVENTS, event("moved", 0, 0)], "events of other kinds: moved"),
        (SEGMENTS[:1], EVENTS, "2 of its events do not lead to its segments"),
        (SEGMENTS, [*EVENTS, EVENTS[0]], "1 of its events do not lead to its segments"),
    ],
    ids=["pool", "no request", "expandable", "mapped", "action", "segment missing", "event twice"],
)
def test_what_keeps_a_snapshot_from_being_replayed_is_named(
    segments: list[dict[str, Any]], events: list[dict[str, Any]], named: str
) -> None:
    made = replayed(segments, events)
    assert named in str(made.why_not)
    assert not made.exact


# Reading


class Hostile:
    """Unpickled as any pickle is, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_file_that_names_a_function_is_refused_and_the_function_does_not_run(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    with pytest.raises(SnapshotError, match=r"it names posix\.mkdir|no pickle of plain data"):
        read(pickle.dumps({"segments": [], "device_traces": [Hostile(made)]}, protocol))
    assert not made.exists()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pickled()[:-200], "no pickle of plain data|ends too early"),
        (pickled()[:10], "ends too early|no pickle"),
        (b"", "ends too early"),
        (pickle.dumps({"segments": [], "device_traces": bytearray(3)}, 5), "no pickle of plain data"),
        (b"version https://git-lfs.github.com/spec/v1\n", "no pickle of plain data"),
        (pickle.dumps([1, 2]), "no memory snapshot"),
        (pickle.dumps({"segments": [], "device_traces": {}}), "a dict where a list belongs"),
        (pickled(events=[event("alloc", -1, 8)]), "where a count of bytes or an address belongs"),
        (pickled(events=[event("alloc", 0, 8) | {"size": "8"}]), "a str where a count of bytes"),
        (pickled([SEGMENTS[0] | {"total_size": 5}]), "blocks that do not fill their segment"),
        (pickled(settings=SETTINGS | {"max_split_size": "much"}), "no memory snapshot"),
    ],
    ids=["truncated", "start", "empty", "bytes", "pointer", "list", "traces", "address", "size", "blocks", "setting"],
)  # fmt: skip
def test_a_file_that_is_no_snapshot_is_an_error_that_says_why(data: bytes, why: str) -> None:
    with pytest.raises(SnapshotError, match=why):
        read(data)


# The command


def written(folder: Path, name: str, data: bytes) -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def test_the_command_replays_files_and_writes_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "out.json"
    assert command.main([written(tmp_path, "mine.pickle", pickled()), "-o", str(made)]) == 0
    (row,) = json.loads(made.read_text())["rows"]
    assert (row["path"], row["exact"], row["addresses"]) == ("mine.pickle", True, {"compared": 5, "equal": 5})
    assert "gives 5 of 5 blocks the real address" in made.with_suffix(".md").read_text()
    assert "mine.pickle: equal" in capsys.readouterr().err


def test_the_command_names_the_files_that_are_none_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "hostile.pickle": pickle.dumps(Hostile(tmp_path / "made")),
        "cut.pickle": pickled()[:100],
        "split.pickle": pickled(settings=SETTINGS | {"max_split_size": 1 << 28}),
        "empty.pickle": pickle.dumps({"segments": [], "device_traces": [[]]}),
        "good.pickle": pickled(),
    }
    paths = [written(tmp_path, name, data) for name, data in files.items()]
    assert command.main([*paths, str(tmp_path / "absent.pickle")]) == 1
    printed = capsys.readouterr()
    told = dict(line.split(": ", 1) for line in printed.err.splitlines())
    assert list(told) == [*files, "absent.pickle"]
    assert told["hostile.pickle"].startswith("it names posix.mkdir")
    assert "max_split_size_mb" in told["split.pickle"]
    assert "no events" in told["empty.pickle"]
    assert told["absent.pickle"] == "No such file or directory"
    assert told["good.pickle"] == "equal"
    assert "1 of 6 snapshots" in printed.out
    assert not (tmp_path / "made").exists()


LISTED = Published("owner/name", "c" * 40, "folder/a.pickle", hashlib.sha256(pickled()).hexdigest())


def test_a_checkout_and_a_bare_clone_of_another_commit_are_read(tmp_path: Path) -> None:
    work, bare = tmp_path / "one" / "owner" / "name", tmp_path / "two" / "owner" / "name"
    (work / "folder").mkdir(parents=True)
    (work / "folder" / "a.pickle").write_bytes(pickled())
    assert LISTED.fetch(tmp_path / "one") == pickled()
    git = ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], ["clone", "-q", "--bare", ".", str(bare)]):
        subprocess.run([*git, *arguments], check=True)
    assert LISTED.fetch(tmp_path / "two") == pickled()


def test_another_file_than_the_listed_one_and_a_missing_one_are_errors(tmp_path: Path) -> None:
    (tmp_path / "owner" / "name" / "folder").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "folder" / "a.pickle").write_bytes(b"other")
    with pytest.raises(SnapshotError, match="sha256"):
        LISTED.fetch(tmp_path)
    with pytest.raises(SnapshotError, match=r"no owner/name with folder/b\.pickle"):
        replace(LISTED, path="folder/b.pickle").fetch(tmp_path)


def test_without_a_folder_the_file_is_asked_of_github(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(address: str, **_: Any) -> Any:
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr("models.cuda.snapshots.listing.urllib.request.urlopen", refuse)
    with pytest.raises(SnapshotError, match="no network"):
        LISTED.fetch(None)
    assert asked == [f"https://github.com/owner/name/raw/{'c' * 40}/folder/a.pickle"]


# What is committed


def test_the_results_are_of_every_listed_snapshot() -> None:
    rows = json.loads(RESULTS.read_text())["rows"]
    assert [row["sha256"] for row in rows] == [file.sha256 for file in FILES]


def test_the_summary_counts_what_differs() -> None:
    (row,) = command.outcomes({"source": "a", "path": "b"}, pickled)
    other = row | {"addresses": {"compared": 5, "equal": 3}, "most_apart_nbytes": 2 * MIB}
    told = summary([row, other])
    assert "gives 8 of 10 blocks the real address" in told
    assert "differ by 2,097,152 at most" in told
