"""Objects of the standard library and of NumPy on a module are planned, and refused if they change."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import functools
import io
import itertools
import pathlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from ogc_plan.adapters.pytorch import InputMismatchError, UnsupportedModuleError
from torch import Tensor, nn

from tests.modules.generators import seeded
from tests.modules.torch_training import planned

X = (torch.randn(4, 6, generator=seeded(0)),)
GAIN: contextvars.ContextVar[float] = contextvars.ContextVar("GAIN", default=2.0)


class Owning(nn.Module):
    """A linear layer whose result is multiplied by what ``use`` makes of an object."""

    def __init__(self, owned: Any, use: Callable[[Any], float]) -> None:
        super().__init__()
        self.linear, self.owned, self.use = nn.Linear(6, 6), owned, use

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.use(self.owned)).sum()


@dataclasses.dataclass(slots=True)
class Slotted:
    """An object without a dictionary."""

    count: int = 1

    def counted(self) -> int:
        self.count += 1
        return self.count


class Writer:
    """Counts what it writes."""

    def __init__(self) -> None:
        self.lock, self.written = threading.Lock(), 1

    def write(self) -> int:
        with self.lock:
            self.written += 1
        return self.written


class Lazily:
    """Makes a value once."""

    @functools.cached_property
    def value(self) -> float:
        return 3.0


def locked(lock: Any) -> float:
    with lock:
        return 2.0


HARMLESS: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "a lock": (threading.Lock, locked),
    "an event": (threading.Event, lambda event: 2.0 + event.is_set()),
    "a cache of calls": (lambda: functools.lru_cache(lambda n: n * 2), lambda double: double(2)),
    "a cached property": (Lazily, lambda lazily: lazily.value),
    "a path": (lambda: Path("/a/b"), lambda path: len(path.parts) + (path == Path("/a/b")) + (hash(path) == 1)),
    "a context variable": (lambda: GAIN, lambda gain: gain.get()),
    "an ordered dictionary": (lambda: collections.OrderedDict(a=2), lambda ordered: ordered["a"]),
    "a dictionary with defaults": (lambda: collections.defaultdict(int, a=2), lambda some: some["a"]),
    "an object with slots": (Slotted, lambda slotted: slotted.count),
    "a writer that is read": (Writer, lambda writer: writer.written),
    "a large array": (lambda: numpy.ones(2**15), lambda values: float(values[0])),
    "an output file": (lambda: open(pathlib.os.devnull, "w"), lambda file: 2.0 + 0 * file.write("a")),  # noqa: SIM115
}


@pytest.mark.values
@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_object_is_planned(name: str) -> None:
    make, use = HARMLESS[name]
    module = Owning(make(), use)
    trained = planned(module, X)
    plain = module(*X)
    assert torch.equal(trained(*X), plain)


def put(values: Any) -> float:
    values[0] += 1
    return float(values[0])


def appended(values: Any) -> float:
    values.append(1)
    return float(len(values))


CHANGING: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "a counter": (collections.Counter, lambda counter: counter.update("a") or counter["a"]),
    "an order": (lambda: collections.OrderedDict(a=2, b=3), lambda some: some.move_to_end("a") or 2.0),
    "a slot": (Slotted, Slotted.counted),
    "a writer": (Writer, Writer.write),
    "bytes": (lambda: bytearray(b"a"), appended),
    "an array of numpy": (lambda: numpy.ones(3), put),
    "a context variable": (lambda: contextvars.ContextVar("own"), lambda own: bool(own.set(own.get(1) + 1)) * 2.0),
}


@pytest.mark.parametrize("name", CHANGING)
def test_an_object_that_the_forward_changes_is_refused(name: str) -> None:
    make, use = CHANGING[name]
    with pytest.raises(UnsupportedModuleError, match="sets attribute 'owned'"):
        planned(Owning(make(), use), X)


@pytest.mark.parametrize("name", ["an order", "a slot", "bytes", "an array of numpy"])
def test_a_refusal_leaves_the_object_as_it_was(name: str) -> None:
    make, use = CHANGING[name]
    module = Owning(make(), use)
    with pytest.raises(UnsupportedModuleError):
        planned(module, X)
    assert repr(module.owned) == repr(make())


DRAWN: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "a count": (lambda: itertools.count(1), next),
    "a generator": (lambda: (n for n in range(9)), next),
    "an iterator in a list": (lambda: [itertools.count(1)], lambda some: next(some[0])),
    "a file that is read": (lambda: io.StringIO("12345"), lambda file: float(file.read(1))),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_a_forward_draws_from_is_refused(name: str) -> None:
    make, use = DRAWN[name]
    with pytest.raises(
        UnsupportedModuleError, match=r"reads 'owned', a .*; a plan would repeat for ever what is drawn"
    ):
        planned(Owning(make(), use), X)


class Unread(Owning):
    """Does not use its object."""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sum()


@pytest.mark.values
def test_an_iterator_that_no_forward_reads_may_be_there() -> None:
    module = Unread(itertools.count(), next)
    assert torch.equal(planned(module, X)(*X), module(*X))


LATER: dict[str, tuple[Callable[[], Any], Callable[[Any], float], Callable[[Any], Any]]] = {
    "a large array": (lambda: numpy.ones(2**15), lambda some: float(some[-1]), lambda some: some.fill(5)),
    "a slot": (Slotted, lambda some: some.count, Slotted.counted),
    "an event": (threading.Event, lambda some: 2.0 + some.is_set(), threading.Event.set),
    "a context variable": (lambda: GAIN, lambda gain: gain.get(), lambda gain: gain.set(5.0)),
}


@pytest.mark.parametrize("name", LATER)
def test_an_object_that_changes_between_steps_is_refused(name: str) -> None:
    make, use, change = LATER[name]
    trained = planned(Owning(make(), use), X)
    with pytest.raises(InputMismatchError, match=r"attribute 'owned.*' changed"):
        contextvars.copy_context().run(lambda: (change(trained.owned), trained(*X)))


def test_a_refusal_leaves_a_context_variable_as_it_was() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=1)
    with pytest.raises(UnsupportedModuleError):
        planned(Owning(variable, lambda own: bool(own.set(own.get() + 1)) * 2.0), X)
    assert variable.get() == 1
