"""Damaged JSON for tests of readers: entries replaced, removed, doubled and swapped anywhere in a document."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from hypothesis import strategies as st

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**70), 2**70, 0.5, 1e300, -1.5, "", "a", "0", "1e9", "\ud800",
    [], [None], [0, 1], ["a"], [[]], {}, {"a": 1}, {"": -1},
)  # fmt: skip


def damaged(document: Any, generator: Random) -> Any:
    """``document`` with one to three entries replaced, removed, doubled, added or swapped somewhere in it."""
    result = copy.deepcopy(document)
    for _ in range(generator.randint(1, 3)):
        place = result
        for _ in range(generator.randint(0, 5)):
            inner = [k for k in _keys(place) if isinstance(place[k], (dict, list)) and place[k]]
            if not inner:
                break
            place = place[generator.choice(inner)]
        keys = _keys(place)
        if not keys:
            continue
        key, how = generator.choice(keys), generator.randrange(5)
        if how == 0:
            place[key] = copy.deepcopy(generator.choice(_VALUES))
        elif how == 1:
            del place[key]
        elif how == 2:
            other = generator.choice(keys)
            place[key], place[other] = place[other], place[key]
        elif isinstance(place, list):
            place.insert(key, copy.deepcopy(place[key]))
        elif how == 3:
            place[f"{key}_"] = copy.deepcopy(place[key])
    return result


def _keys(place: Any) -> list[Any]:
    return list(place) if isinstance(place, dict) else list(range(len(place)))


def mutations(document: Any) -> st.SearchStrategy[Any]:
    """`damaged` documents."""
    return st.randoms(use_true_random=False).map(lambda generator: damaged(document, generator))
