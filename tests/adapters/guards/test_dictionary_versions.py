"""A check of dictionaries is made again only when one of them was written or exchanged, and always then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ogc_plan.adapters.pytorch import torch_private
from ogc_plan.adapters.pytorch.guards.dictionary_versions import Unwritten


class Thing:
    """An object with one attribute."""

    def __init__(self) -> None:
        self.value: Any = 0


class Counted:
    """A check of things that counts how often it was made."""

    def __init__(self, *things: Thing) -> None:
        self.things, self.made, self.verdict = things, 0, True
        self.unwritten = Unwritten(lambda: map(vars, self.things), self._check)
        assert self.unwritten

    def _check(self) -> bool:
        self.made += 1
        return self.verdict


VERSIONS = pytest.mark.skipif(torch_private.dictionary_version() is None, reason="dictionaries have no versions here")


@VERSIONS
def test_it_is_not_made_again_while_nothing_is_written() -> None:
    counted = Counted(Thing(), Thing())
    assert [*(bool(counted.unwritten) for _ in range(5)), counted.made] == [True] * 5 + [1]


WRITES: dict[str, Callable[[Thing], Any]] = {
    "another value": lambda thing: setattr(thing, "value", 1),
    "another attribute": lambda thing: setattr(thing, "other", 1),
    "an attribute less": lambda thing: delattr(thing, "value"),
    "a write around the object": lambda thing: vars(thing).update(value=1),
    "a write and a return to what was there": lambda thing: vars(thing).update(other=vars(thing).pop("value")),
    "all gone": lambda thing: vars(thing).clear(),
    "another dictionary, with the same": lambda thing: setattr(thing, "__dict__", dict(vars(thing))),
}


@pytest.mark.parametrize("write", WRITES)
def test_it_is_made_again_after(write: str) -> None:
    counted = Counted(Thing(), Thing())
    WRITES[write](counted.things[1])
    assert (bool(counted.unwritten), counted.made) == (True, 2)


def test_each_write_of_code_that_python_has_specialised_is_seen() -> None:
    counted = Counted(thing := Thing())

    def write(value: object) -> None:
        thing.value = value

    seen = []
    for _ in range(1000):
        write(object())
        made = counted.made
        seen.append(bool(counted.unwritten) and counted.made == made + 1)
    assert all(seen)


def test_a_check_that_failed_is_made_again_though_nothing_was_written() -> None:
    counted = Counted(Thing())
    counted.things[0].value, counted.verdict = 1, False
    verdicts = [bool(counted.unwritten), bool(counted.unwritten)]
    assert (verdicts, counted.made) == ([False, False], 3)


@VERSIONS
def test_a_write_during_the_check_is_seen_by_the_next_one() -> None:
    thing = Thing()
    made = []

    def check() -> bool:
        made.append(None)
        thing.value += len(made) == 1
        return True

    unwritten = Unwritten(lambda: [vars(thing)], check)
    assert [*map(bool, [unwritten] * 3), len(made)] == [True, True, True, 2]


def test_without_versions_it_is_made_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "dictionary_version", lambda: None)
    counted = Counted(Thing())
    assert (bool(counted.unwritten), counted.made) == (True, 2)
