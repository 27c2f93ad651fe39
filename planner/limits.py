"""When a search must end, whom it tells what it is doing, and that no cyclic garbage is looked for meanwhile."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event
from typing import TypeVar

Progress = Callable[[str, "int | None", int], None]
"""Receives what is being done, the best recomputation time so far (ns, None without a plan) and the bound (ns)."""
Stop = Callable[[], bool]

POLL_S = 0.1
"""How often a thread that waits for others asks whether to stop, in seconds."""
BEING_COMPILED: list[object] = []
"""The kernels that are compiled at this moment, for whoever shows what takes so long."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one search, safe to share between threads.

    Attributes:
        deadline: A time.perf_counter() value in seconds, or None for no deadline.
        stop: Asked again and again; ends the search once it returns True.
        progress: Receives a line of progress.
    """

    deadline: float | None = None
    stop: Stop | None = None
    progress: Progress | None = None

    def out_of_time(self) -> bool:
        """Whether the deadline has passed or the search was asked to stop."""
        late = self.deadline is not None and time.perf_counter() > self.deadline
        return late or (self.stop is not None and self.stop())

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, at least .01; None without a deadline."""
        return None if self.deadline is None else max(0.01, self.deadline - time.perf_counter())

    def say(self, doing: str, best_ns: int | None = None, bound_ns: int = 0) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(doing, best_ns, bound_ns)

    def named(self, what: str) -> Limits:
        """These limits, whose progress says what the search is for."""
        tell = self.progress
        if tell is None:
            return self
        return replace(self, progress=lambda doing, *figures: tell(f"{what}: {doing}", *figures))

    def with_deadline(self, time_limit_s: float | None) -> Limits:
        """These limits with a deadline ``time_limit_s`` from now, or as they are for None."""
        return self if time_limit_s is None else replace(self, deadline=time.perf_counter() + time_limit_s)

    def without_progress(self) -> Limits:
        """These limits without progress, for threads other than the caller's."""
        return replace(self, progress=None)

    def stopping_with(self, stop: Stop) -> Limits:
        """These limits, which also end once ``stop`` returns True."""
        own = self.stop
        return replace(self, stop=stop if own is None else lambda: own() or stop())

    def latched(self) -> Limits:
        """These limits, with a stop that stays True once it was: what it cut short can be told afterwards."""
        own, stopped = self.stop, Event()
        if own is None:
            return self

        def stop() -> bool:
            if not stopped.is_set() and own():
                stopped.set()
            return stopped.is_set()

        return replace(self, stop=stop)

    def watch(self, work: Callable[[], Result], interrupt: Callable[[], object]) -> Result:
        """Run ``work`` in a thread and return its result; call ``interrupt`` while it outlasts these limits.

        An exception in the calling thread interrupts the work, too.
        """
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(work)
            try:
                while wait([result], timeout=POLL_S).not_done:
                    if self.out_of_time():
                        interrupt()
            except BaseException:
                while wait([result], timeout=POLL_S).not_done:  # work that has not begun cannot be interrupted yet
                    interrupt()
                raise
            return result.result()


NO_LIMITS = Limits()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector, if it is enabled.

    A solve and the reading of a file leave a few thousand objects for it, and every collection walks all that the
    process holds: with a framework loaded a tenth of a second each time, for which all threads wait.
    """
    collects = gc.isenabled()
    try:
        gc.disable()  # inside the try, so that an interrupt here still enables it again
        yield
    finally:
        if collects:
            gc.enable()
