"""Work in a thread beside a search. What it does must not depend on how far the search is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from .search import Search

_ASKED_S = 0.1
"""How often the caller is asked, while it waits, whether to stop."""


@contextmanager
def beside(search: Search, threads: int = 1) -> Iterator[Executor]:
    """Threads that are waited for at the end; an exception stops the search first, and so what runs there."""
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield pool
        except BaseException:
            search.stopped_early = search.aborted = True  # else leaving would wait for all of it
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def wait_for(search: Search, work: Sequence[Future[None]]) -> None:
    """Wait until ``work`` is done and see interrupts meanwhile; raises what it raised."""
    while wait(work, timeout=_ASKED_S).not_done:
        search.out_of_time()
    for done in work:
        done.result()
