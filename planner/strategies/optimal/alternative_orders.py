"""Searches under other orders that promise lower peaks.

An eager effort begins them beside that under the default orders where that may fail.
They see nothing of that search but, once it is done, which of them are of no use to it; so when they are begun decides
nothing but how long the answer takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from ..orders.proposals import held_order
from ..orders.reordered_problem import ordered
from .beside import wait_for
from .fixed_order import OneOrder
from .incumbents import Search
from .parallel import LANES
from .problem_cache import Prepared
from .solve_context import Task

ORDER_WORTH = 0.003
"""Other orders are planned for where the bounds leave room for saving this share of the step."""
_FOLLOWED = 3
"""Orders made for what the relaxation under the best of the others holds, each from the best so far."""
_BEGUN_OPS = 1000
"""On larger graphs one order takes long to be found, and so to be given up."""


class OtherOrders:
    """The most promising of them: those whose first bound is the lowest, as many as the effort allows."""

    def __init__(self, task: Task, budget_nbytes: int) -> None:
        self._task = replace(task, stop=self._stopped)
        self._asked_to_stop, self._budget_nbytes = task.stop, budget_nbytes
        self._pool: Executor | None = None
        self._begun: Future[None] | None = None
        self._given_up = False
        self._runs: list[OneOrder] = []
        self._ranked: list[tuple[int, OneOrder]] = []
        self._at = 0
        """How many of the ranked ones are started."""
        self._most_ns: float | None = None
        """What their bounds must lie below to be of use."""

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Let `begin` use a thread of its own; what nobody has asked the outcome of is given up at the end."""
        with ThreadPoolExecutor(1) as self._pool:
            try:
                yield
            except BaseException:
                self._give_up()
                raise
            if self._begun is not None:
                self._give_up()
                self._begun.result()  # an error there is one, whoever asked

    def begin(self) -> None:
        """Start the searches in a thread, for an eager effort and where they are small enough to be given up soon."""
        small = self._task.prepared.problem.op_count <= _BEGUN_OPS
        if small and self._pool is not None and self._task.effort.orders and self._task.effort.eager:
            self._task = replace(self._task, progress=None)
            self._begun = self._pool.submit(self._start)

    def promising(self, default: Search) -> list[OneOrder]:
        """Those whose bound leaves room for a better plan than the best one under the default orders, started."""
        if default.out_of_time() or not self._task.effort.orders:
            return []
        room, best = ORDER_WORTH * default.problem.store_all_ns, default.best
        if self._task.effort.enough and best is not None and best.found.recompute_ns <= default.bound_ns + room:
            return []  # orders lower peaks a little: where little is lost to the bound, little is to be had
        self._most_ns = None if best is None else best.found.recompute_ns - room
        if self._begun is None:
            self._start()
        else:
            for bound_ns, run in self._ranked[self._at :]:
                if not self._of_use(bound_ns):
                    run.search.interrupter.interrupt()
            wait_for(default, [self._begun])
            self._begun = None
        default.out_of_time()
        found = [run for bound_ns, run in self._ranked[: self._at] if self._of_use(bound_ns)]
        for run in found:
            run.search.progress, run.search.stop = default.progress, self._asked_to_stop
        return found

    def _of_use(self, bound_ns: int) -> bool:
        return self._most_ns is None or bound_ns < self._most_ns

    def _stopped(self) -> bool:
        """Whether the search that is being started in the thread is wanted no more."""
        useless = self._at < len(self._ranked) and not self._of_use(self._ranked[self._at][0])
        return self._given_up or useless or (self._asked_to_stop is not None and self._asked_to_stop())

    def _give_up(self) -> None:
        self._given_up = True
        for run in self._runs:
            run.search.interrupter.interrupt()

    def _start(self) -> None:
        """Rank them, and start those that are of use."""
        task = self._task
        self._runs, compared = task.alternatives(self._budget_nbytes)
        if compared:
            self._compare()
        for run in self._runs:
            if run.search.out_of_time():
                return
            run.bound_quickly()
        ranked = sorted(((run.search.bound_ns, run) for run in self._runs), key=lambda pair: pair[0])
        self._ranked = ranked[: task.effort.orders]
        for bound_ns, run in self._ranked:
            if not self._of_use(bound_ns) or run.search.out_of_time():
                return
            run.start()
            run.reach()
            self._at += 1

    def _relax(self, runs: Sequence[OneOrder]) -> None:
        """Solve their relaxations, two at a time, without a word: progress is told by one thread alone."""

        def relax(run: OneOrder) -> None:
            if not run.search.out_of_time():
                run.search.progress = None
                run.relax()
                run.search.progress = self._task.progress

        with ThreadPoolExecutor(LANES) as pool:
            try:
                asked = [pool.submit(relax, run) for run in runs]
                wait_for(runs[0].search, asked)
            except BaseException:  # an interrupt, where this is the main thread
                self._give_up()
                raise

    def _compare(self) -> None:
        """Solve their relaxations, and those of some orders made for what the lowest of these holds.

        What plans cost under an order is what its relaxation tells, by and large.
        """
        task, runs = self._task, self._runs
        if not runs:
            return
        runs[0].search.say("comparing orders")
        self._relax(runs)
        known = {run.orders for run in runs}
        for number in range(_FOLLOWED):
            best = min(runs, key=lambda run: run.search.bound_ns, default=None)
            if best is None or best.point is None or best.orders is None or best.search.out_of_time():
                return
            problem, orders = task.prepared.problem, best.orders
            backward = held_order(problem, orders.backward, best.point.alive.tolist(), task.seed + number)
            orders = replace(orders, backward=backward)
            if orders in known:
                return
            known.add(orders)
            run = task.run(best.search.budget_nbytes, Prepared(ordered(problem, orders)), orders)
            if run.prepared.problem.floor_of_order.nbytes <= run.search.budget_nbytes:
                runs.append(run)
                run.relax()
