"""Grids of checkpoints are laid at narrow cuts near evenly spaced ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.strategies.labelling.checkpoint_grids import Cuts


def narrowest(cuts: Cuts, begin: int, end: int, count: int) -> list[int]:
    """What `Cuts.spread` answers, by looking at every position for each target."""
    low, high = int(cuts.weight[begin]), int(cuts.weight[end])
    reach = max(1.0, (high - low) / (2 * (count + 1)))
    chosen = set()
    for k in range(1, count + 1):
        target = low + (high - low) * k / (count + 1)
        away = [(int(cuts.nbytes[p]), abs(int(cuts.weight[p]) - target), p) for p in range(begin + 1, end)]
        near = [(nbytes, far, p) for nbytes, far, p in away if far <= reach]
        chosen |= {min(near)[2]} if near else set()
    return sorted(chosen)


@settings(deadline=None)  # the first one compiles
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=40), st.integers(0, 12), st.data()
)
def test_each_is_the_narrowest_near_its_target_and_of_equal_ones_the_nearest(
    steps: list[tuple[int, int]], count: int, data: st.DataObject
) -> None:
    nbytes, made = np.array(steps, dtype=np.int64).T
    cuts = Cuts(nbytes.copy(), np.cumsum(made), [])
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(steps) - 1)] * 2)))
    assert cuts.spread(begin, end, count) == narrowest(cuts, begin, end, count)
