"""Work in a thread beside a search. What it does must not depend on how far the search is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from .incumbents import Search

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


def wait_for(search: Search, work: Iterable[Future[Any]]) -> None:
    """Wait until ``work`` is done and see interrupts meanwhile; raises what any of it raises, at once."""
    left = set(work)
    while left:
        done, left = wait(left, timeout=_ASKED_S, return_when=FIRST_EXCEPTION)
        for made in done:
            made.result()
        if left:
            search.out_of_time()
