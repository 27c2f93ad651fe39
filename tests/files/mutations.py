"""Damaged JSON for tests of readers: entries replaced, removed, doubled and swapped anywhere in a document."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, 2**31, 2**63 - 1]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.lists(st.none() | st.integers(-2, 3) | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(-2, 3), max_size=2),
)


@st.composite
def mutations(draw: st.DrawFn, document: Any) -> Any:
    """``document`` with one to three entries replaced, removed, doubled or swapped somewhere in it."""
    result = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        place = result
        for _ in range(draw(st.integers(0, 5))):
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            inner = [k for k in keys if isinstance(place[k], (dict, list)) and place[k]]
            if not inner:
                break
            place = place[draw(st.sampled_from(inner))]
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            continue
        key = draw(st.sampled_from(keys))
        how = draw(st.sampled_from(["replace", "remove", "swap", "double"]))
        if how == "replace":
            place[key] = draw(VALUES)
        elif how == "remove":
            del place[key]
        elif how == "swap":
            other = draw(st.sampled_from(keys))
            place[key], place[other] = place[other], place[key]
        elif isinstance(place, list):
            place.insert(key, copy.deepcopy(place[key]))
    return result
