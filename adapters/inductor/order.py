"""An order of a graph's kernels that holds few bytes, and the bytes that a fusion of two of them would hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

_PASSES = 4
"""So often every task is moved to where the fewest bytes are held."""


class Kernel(NamedTuple):
    """What Inductor runs as one kernel if it fuses nothing.

    Attributes:
        reads: storages; one is alive from the first kernel that reads or writes it to the last.
        over: those of them that it may write over when it is the last to read them.
        after: kernels that run before it.
        library: it is a call of a library.
    """

    name: str
    reads: frozenset[str]
    writes: frozenset[str]
    over: frozenset[str]
    after: frozenset[str]
    library: bool = False


@dataclass(frozen=True)
class Task:
    """Kernels that are fused to one."""

    kernels: tuple[Kernel, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """The kernels."""
        return frozenset(kernel.name for kernel in self.kernels)

    @cached_property
    def touches(self) -> frozenset[str]:
        """Storages that it reads or writes."""
        return frozenset(storage for kernel in self.kernels for storage in kernel.reads | kernel.writes)

    @cached_property
    def after(self) -> frozenset[str]:
        """Kernels that run before it."""
        return frozenset(name for kernel in self.kernels for name in kernel.after) - self.names

    @property
    def library(self) -> bool:
        """Whether it is a call of a library."""
        return self.kernels[0].library

    def over(self, made: Set[str], ended: Set[str], nbytes: Mapping[str, int]) -> int:
        """Bytes of results that are written over what ends with it.

        Inductor writes only over what a single one of the fused kernels reads.
        """
        readers = Counter(storage for kernel in self.kernels for storage in kernel.reads & ended)
        total = 0
        for kernel in self.kernels:
            alone = Counter(nbytes[storage] for storage in kernel.over & ended if readers[storage] == 1)
            total += sum((alone & Counter(nbytes[storage] for storage in kernel.writes & made)).elements())
        return total


class Held(NamedTuple):
    """The most bytes that some tasks hold, and the sum over the tasks."""

    peak_nbytes: int
    total_nbytes: int


class _Window(NamedTuple):
    """Tasks to take the places ``first`` to ``last`` of an order."""

    first: int
    last: int
    tasks: list[Task]


class Order:
    """Tasks in an order in which each runs after what it has to run after.

    ``given`` storages are alive from the start, ``kept`` ones to the end.
    """

    def __init__(self, kernels: Iterable[Kernel], nbytes: Mapping[str, int], given: Set[str], kept: Set[str]) -> None:
        self._nbytes, self._given, self._kept = nbytes, given, kept
        self._place([Task((kernel,)) for kernel in kernels])
        backwards = self._backwards()
        if self._held(self._whole(backwards)) < self._held(self._whole(self.tasks)):
            self._place(backwards)

    @property
    def peak_nbytes(self) -> int:
        """The most bytes that are alive."""
        return self._held(self._whole(self.tasks)).peak_nbytes

    def fusion(self, one: str, other: str) -> tuple[Held, Held] | None:
        """What is held around two kernels now, and if they are fused; None where another has to run in between."""
        window = self._fused(one, other)
        if window is None:
            return None
        now = window._replace(tasks=self.tasks[window.first : window.last + 1])
        return self._held(now), self._held(window)

    def fuse(self, one: str, other: str) -> None:
        """Fuse two kernels, where that holds the fewest bytes."""
        window = self._fused(one, other)
        if window is None:
            raise ValueError(f"a kernel has to run between {one} and {other}")
        self._place([*self.tasks[: window.first], *window.tasks, *self.tasks[window.last + 1 :]])

    def improve(self) -> None:
        """Move each task to where fewer bytes are held, as long as that helps."""
        for _ in range(_PASSES):
            moved = [self._move(task) for task in list(self.tasks)]
            if not any(moved):
                return

    def late(self) -> frozenset[str]:
        """Loops after which the code frees what has ended, if the peak is to be that of the order.

        Loops between two calls of a library run as one function, and what they read is freed after it.
        """
        found, waiting, most = set[str](), 0, self.peak_nbytes
        before = frozenset[str]()
        for task, (during, live) in zip(self.tasks, self._lives(self._whole(self.tasks)), strict=True):
            if waiting and during + waiting > most:
                found |= before
                waiting = 0
            waiting = 0 if task.library else waiting + during - live
            before = task.names
        return frozenset(found)

    def _place(self, tasks: list[Task]) -> None:
        self.tasks = tasks
        self._at = {name: position for position, task in enumerate(tasks) for name in task.names}
        self._first = dict.fromkeys(self._given, -1)
        self._last: dict[str, int] = {}
        for position, task in enumerate(tasks):
            for storage in task.touches:
                self._first.setdefault(storage, position)
                self._last[storage] = position
        self._last |= dict.fromkeys(self._kept, len(tasks))
        self._live = [sum(self._nbytes[storage] for storage in self._given)]
        self._live += [live for _, live in self._lives(self._whole(tasks))]

    def _whole(self, tasks: list[Task]) -> _Window:
        return _Window(0, len(self.tasks) - 1, tasks)

    def _held(self, window: _Window) -> Held:
        lives = self._lives(window)
        return Held(max((during for during, _ in lives), default=0), sum(live for _, live in lives))

    def _lives(self, window: _Window) -> list[tuple[int, int]]:
        """Bytes while each task runs, and after it."""
        ends = {storage: position for position, task in enumerate(window.tasks) for storage in task.touches}
        begun = set[str]()
        lives: list[tuple[int, int]] = []
        live = self._live[window.first]
        for position, task in enumerate(window.tasks):
            made, ended, passing = set[str](), set[str](), 0  # bytes pass that nobody reads
            for storage in task.touches:
                begins = storage not in begun and window.first <= self._first[storage] <= window.last
                over = ends[storage] == position and window.first <= self._last[storage] <= window.last
                begun.add(storage)
                if begins and over:
                    passing += self._nbytes[storage] if task.library else 0
                elif begins:
                    made.add(storage)
                elif over:
                    ended.add(storage)
            during = live + sum(map(self._nbytes.__getitem__, made))
            live = during - sum(map(self._nbytes.__getitem__, ended))
            lives.append((during + passing - task.over(made, ended, self._nbytes), live))
        return lives

    def _fused(self, one: str, other: str) -> _Window | None:
        first, last = sorted((self._at[one], self._at[other]))
        head, *between, tail = self.tasks[first : last + 1]
        behind, ahead = _following(head, between), _preceding(tail, between)
        if any(task in ahead for task in behind):
            return None
        made = Task(head.kernels + tail.kernels)
        early = [*ahead, made, *(task for task in between if task not in ahead)]
        late = [*(task for task in between if task not in behind), made, *behind]
        return min((_Window(first, last, early), _Window(first, last, late)), key=self._held)

    def _move(self, task: Task) -> bool:
        """Whether fewer bytes are held with a task moved as early or as late as it can run."""
        place = self._at[next(iter(task.names))]
        earliest = max((self._at[name] + 1 for name in task.after), default=0)
        latest = place
        while latest + 1 < len(self.tasks) and not self.tasks[latest + 1].after & task.names:
            latest += 1
        best: tuple[Held, _Window] | None = None
        for first, last in ((earliest, place), (place, latest)):
            if first == last:
                continue
            now = self.tasks[first : last + 1]
            moved = [task, *now[:-1]] if last == place else [*now[1:], task]
            window = _Window(first, last, moved)
            held = self._held(window)
            if held < self._held(window._replace(tasks=now)) and (best is None or held < best[0]):
                best = held, window
        if best is None:
            return False
        window = best[1]
        self._place([*self.tasks[: window.first], *window.tasks, *self.tasks[window.last + 1 :]])
        return True

    def _backwards(self) -> list[Task]:
        """The order that takes, from the last task to the first, the one before which the fewest bytes are alive."""
        users = Counter[int]()
        for task in self.tasks:
            users.update({self._at[name] for name in task.after})
        maker = {storage: position for storage, position in self._first.items() if position >= 0}
        alive = set(self._kept)
        ready = [position for position in range(len(self.tasks)) if not users[position]]
        placed: list[Task] = []

        def change(position: int) -> tuple[int, int]:
            touched = self.tasks[position].touches
            taken = sum(self._nbytes[storage] for storage in touched if storage not in alive)
            made = sum(self._nbytes[storage] for storage in touched if maker.get(storage) == position)
            return taken - made, -position

        while ready:
            position = min(ready, key=change)
            ready.remove(position)
            task = self.tasks[position]
            placed.append(task)
            alive |= task.touches
            alive -= {storage for storage in task.touches if maker.get(storage) == position}
            for own in {self._at[name] for name in task.after}:
                users[own] -= 1
                if not users[own]:
                    ready.append(own)
        return placed[::-1]


def _following(task: Task, tasks: Iterable[Task]) -> list[Task]:
    """Those of some tasks in order that have to run after a task."""
    names, found = set(task.names), list[Task]()
    for other in tasks:
        if other.after & names:
            names |= other.names
            found.append(other)
    return found


def _preceding(task: Task, tasks: Sequence[Task]) -> list[Task]:
    """Those of some tasks in order that have to run before a task."""
    names, found = set(task.after), list[Task]()
    for other in reversed(tasks):
        if other.names & names:
            names |= other.after
            found.append(other)
    return found[::-1]
