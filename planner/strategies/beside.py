"""Work in a thread beside a search. What it does must not depend on how far the search is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

from .search import Search


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
