"""Work in threads, with an outcome that does not depend on how fast any thread is.

Threads start from the same plans and see nothing of each other before all are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event
from typing import Any, ParamSpec, TypeVar

from ...limits import POLL_S, Limits
from ..retention.annealer import RetentionAnnealer
from .incumbents import Incumbents

THREADS = 2
"""Threads that anneal, or make orders, at once."""
_SEED_STRIDE = 1 << 32
"""The distance between the seeds of two threads."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class ThreadTeam:
    """Threads that work beside the caller; ``limits`` are theirs."""

    def __init__(self, pool: Executor, limits: Limits) -> None:
        self._pool, self._cancelled = pool, Event()
        self._started: list[Future[Any]] = []
        self.limits = limits.without_progress().stopping_with(self.cancelled)

    def start(
        self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Begin ``work`` in a thread."""
        self._started.append(self._pool.submit(work, *args, **kwargs))
        return self._started[-1]

    def cancel(self) -> None:
        """End all work soon."""
        self._cancelled.set()

    def cancelled(self) -> bool:
        """Whether the outcome of the work is no longer wanted."""
        return self._cancelled.is_set()

    def join(self) -> None:
        """Wait until all work is done. Raises what any of it raised."""
        wait_for(self._started)


@contextmanager
def threads(limits: Limits, count: int = THREADS) -> Iterator[ThreadTeam]:
    """A team of ``count`` threads.

    Work that is not done at the end of the block is cancelled. An exception in the block cancels all of it; an
    exception in any work is raised.
    """
    with ThreadPoolExecutor(count) as pool:
        team = ThreadTeam(pool, limits)
        try:
            yield team
            team.cancel()
            team.join()
        except BaseException:
            team.cancel()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def wait_for(work: Iterable[Future[Any]]) -> None:
    """Wait until ``work`` is done, open to interrupts. Raises what any of it raises, at once."""
    left = set(work)
    while left:
        done, left = wait(left, timeout=POLL_S, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()


def annealers(incumbents: Incumbents) -> tuple[RetentionAnnealer, ...]:
    """One annealer for each thread, with random numbers and working memory of its own."""
    made = [RetentionAnnealer(incumbents.evaluator, incumbents.seed)]
    made += [made[0].fork(incumbents.seed + number * _SEED_STRIDE) for number in range(1, THREADS)]
    return tuple(made)


def anneal_in_parallel(
    incumbents: Incumbents,
    annealers: Sequence[RetentionAnnealer],
    work: Callable[[Incumbents, RetentionAnnealer, int], None],
) -> None:
    """Call ``work`` in each thread with a copy of ``incumbents``, and keep the best that any of them finds."""
    with threads(incumbents.limits, len(annealers)) as team:
        forks = [incumbents.fork(annealer.evaluator, team.limits) for annealer in annealers[1:]]
        for number, fork in enumerate(forks, 1):
            team.start(work, fork, annealers[number], number)
        work(incumbents, annealers[0], 0)
        team.join()
    for fork in forks:
        incumbents.merge(fork)
