"""Work on an untrusted file in a process of its own, under limits: what ends that process does not end this one."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from io import BytesIO
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from operator import attrgetter
from pickle import HIGHEST_PROTOCOL, Pickler, loads
from traceback import format_exc
from types import FrameType
from typing import Any, TypeVar

from ..errors import InvalidModelError, NoPlanInTimeError
from ..limits import gc_paused
from .document.unsupported_ops import EXPORT_AGAIN

MOST_CPU_S = 600
"""Most seconds of processor time; a file of 40,000 ops takes a few."""
BASE_NBYTES, TIMES_FILE = 2**32, 8
"""Most further memory: so much, and so many times the size of the file."""
Result = TypeVar("Result")


def in_child(work: Callable[[], Result], what: str, nbytes: int, time_limit_s: float | None = None) -> Result:
    """Do ``work`` on ``what``, a file of ``nbytes``, in a copy of this process, and return or raise what it does.

    The result is copied back. Where the system cannot copy a process the work is done in this one, without limits.

    Raises:
        NoPlanInTimeError: The work took longer than ``time_limit_s`` or `MOST_CPU_S`.
        MemoryError: It took more memory than it may, or than there is.
        InvalidModelError: Something ended the process, such as an access beyond its memory.
    """
    if "fork" not in get_all_start_methods():
        return work()
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(work, nbytes, sender, os.getpid()), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the work needs none of their locks
        child.start()
    sender.close()
    try:
        if not receiver.poll(time_limit_s):
            raise NoPlanInTimeError(
                f"reading {what} took longer than the time limit of {time_limit_s:g} s", remedy="raise --time-limit"
            )
        with gc_paused():
            result, error, told = loads(receiver.recv_bytes())
    except EOFError:
        child.join()
        raise _ended(what, -(child.exitcode or 0)) from None
    finally:
        child.kill()
        child.join()
        receiver.close()
    if error is not None:
        raise error from RuntimeError(told)
    return result  # type: ignore[no-any-return]


def _answer(work: Callable[[], object], nbytes: int, sender: Connection, parent: int) -> None:
    """Send the result or the error of ``work``, and end this process without a word on the standard streams."""

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:  # killed
            os._exit(0)

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits is asked, and ends this one
        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, 1, 1)
        _limit(nbytes)
        gc.disable()  # the system takes all of it back
        answer: tuple[object, BaseException | None, str]
        try:
            answer = work(), None, ""
        except BaseException as error:
            answer = None, error, format_exc()
        packed = BytesIO()
        _Packer(packed).dump(answer)
        sender.send_bytes(packed.getbuffer())
    finally:
        os._exit(0)


class _Packer(Pickler):
    """Packs a dataclass with slots by its fields, in half the time that its own ``__getstate__`` takes."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, HIGHEST_PROTOCOL)
        self._fields: dict[type, attrgetter[tuple[object, ...]] | None] = {}

    def reducer_override(self, value: object) -> Any:
        kind = type(value)
        if kind not in self._fields:
            names = [field.name for field in fields(kind) if field.init] if is_dataclass(kind) else []
            whole = len(names) > 1 and len(names) == len(getattr(kind, "__slots__", ()))
            self._fields[kind] = attrgetter(*names) if whole and not hasattr(kind, "__post_init__") else None
        found = self._fields[kind]
        return NotImplemented if found is None else (kind, found(value))


def _limit(nbytes: int) -> None:
    """Limit the processor time and the memory of this process."""
    import resource

    _lower(resource.RLIMIT_CPU, MOST_CPU_S)
    with suppress(OSError):  # only Linux says how much is in use
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        _lower(resource.RLIMIT_AS, used + BASE_NBYTES + TIMES_FILE * nbytes)


def _lower(which: int, most: int) -> None:
    import resource

    soft, hard = resource.getrlimit(which)
    set_already = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(which, (min([most, *set_already]), hard))


def _ended(what: str, number: int) -> Exception:
    """The error for a process that signal ``number`` ended, 0 for none."""
    if number == signal.SIGXCPU:
        return NoPlanInTimeError(
            f"reading {what} took more than {MOST_CPU_S} s of processor time", remedy="export a smaller model"
        )
    if number == signal.SIGKILL:  # the system's answer when its memory has run out
        return MemoryError()
    name = signal.Signals(number).name if number else "no answer"
    return InvalidModelError(f"reading {what} ended the process that read it ({name})", remedy=EXPORT_AGAIN)
