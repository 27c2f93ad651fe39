"""Memory snapshots of PyTorch as plain data: read without running anything that a file asks for.

A snapshot is a pickle of ``torch.cuda.memory._snapshot()``. A pickle can name any function to be called. This reader
knows no class and no function, and refuses a file that names one.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

from ogc_plan.adapters.pytorch.memory.caching_allocator import DEFAULT_POOL, AllocatorSettings, unknown_setting

LARGEST_FILE_NBYTES = 1 << 29
"""Bytes of the largest file that is read."""
_LARGEST_NUMBER = 1 << 63
_PLAIN = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK,
    pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1,
    pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINUNICODE,
    pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3,
    pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS,
    pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET,
    pickle.GLOBAL, pickle.STACK_GLOBAL,  # to name the class that is refused
)  # fmt: skip


class SnapshotError(Exception):
    """A file is no snapshot that can be read; the text says why."""


class Event(NamedTuple):
    """What the allocator recorded: an action, the address and bytes that it is about, and the stream."""

    action: str
    address: int
    nbytes: int
    stream: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the replay needs of a snapshot.

    Attributes:
        segments: those of each device, with their blocks, at the time of the snapshot.
        events: those of each device that has any, oldest first.
        settings: the allocator's; None where none were recorded, by versions that had few.
        unknown_setting: the name of one that the model does not know, if there is one.
    """

    segments: Mapping[int, list[dict[str, Any]]]
    events: Mapping[int, list[Event]]
    settings: AllocatorSettings | None
    unknown_setting: str | None


class _Reader(pickle._Unpickler):
    """Reads numbers, texts, lists, tuples and dicts.

    The one written in C would make room for whatever index or length a file names: a few bytes could take all memory.
    """

    dispatch: ClassVar = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _PLAIN}

    def find_class(self, module: str, name: str) -> NoReturn:
        raise SnapshotError(f"it names {module}.{name}; a snapshot holds plain data only")


def read(data: bytes) -> Snapshot:
    """The snapshot in the bytes of a file. Raises SnapshotError."""
    if len(data) > LARGEST_FILE_NBYTES:
        raise SnapshotError(f"it has more than {LARGEST_FILE_NBYTES:,} bytes")
    try:
        found = _Reader(io.BytesIO(data)).load()
    except SnapshotError:
        raise
    except EOFError:
        raise SnapshotError("it ends too early") from None
    except Exception as error:  # damaged pickles raise anything
        raise SnapshotError(f"it is no pickle of plain data ({type(error).__name__})") from None
    try:
        return _checked(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"it is no memory snapshot of PyTorch ({type(error).__name__}: {error})") from None


def _checked(found: Any) -> Snapshot:
    segments: dict[int, list[dict[str, Any]]] = {}
    for segment in _list(found["segments"]):
        segments.setdefault(_number(segment.get("device", 0)), []).append(_segment(segment))
    events = {device: list(map(_event, _list(trace))) for device, trace in enumerate(_list(found["device_traces"]))}
    settings = found.get("allocator_settings")
    return Snapshot(
        segments,
        {device: trace for device, trace in events.items() if trace},
        None if settings is None else AllocatorSettings.of(settings),
        unknown_setting(settings or {}),
    )


def _segment(found: Any) -> dict[str, Any]:
    kind, pool = found["segment_type"], found.get("segment_pool_id", DEFAULT_POOL)
    if kind not in ("small", "large"):
        raise TypeError("a segment that is neither small nor large")
    blocks = [
        {"size": _number(block["size"]), "requested_size": _number(block["requested_size"]), "state": block["state"]}
        for block in _list(found["blocks"])
    ]
    total = _number(found["total_size"])
    if sum(block["size"] for block in blocks) != total or not all(block["size"] for block in blocks):
        raise TypeError("blocks that do not fill their segment")
    return {
        "address": _number(found["address"]), "total_size": total, "stream": _number(found["stream"]),
        "segment_type": kind, "segment_pool_id": tuple(map(_number, pool)),
        "is_expandable": bool(found.get("is_expandable", False)), "blocks": blocks,
    }  # fmt: skip


def _event(found: Any) -> Event:
    # An event of an allocation that failed has its address under another name.
    address = found.get("addr", found.get("device_free", 0))
    if not isinstance(found["action"], str):
        raise TypeError("an action without a name")
    return Event(found["action"], _number(address), _number(found["size"]), _number(found["stream"]))


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError(f"a {type(found).__name__} where a list belongs")
    return found


def _number(found: Any) -> int:
    if not isinstance(found, int) or not 0 <= found < _LARGEST_NUMBER:
        raise TypeError(f"a {type(found).__name__} where a count of bytes or an address belongs")
    return int(found)
