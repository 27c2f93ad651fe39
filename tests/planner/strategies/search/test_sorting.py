"""The stable order that kernels sort by."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.planner.strategies.kernels.sorting import descending

FEW = st.integers(-3, 3)  # many are equal


@given(st.lists(FEW, max_size=70))
def test_whole_numbers_are_ordered_as_numpy_orders_them(values: list[int]) -> None:
    found = np.array(values, dtype=np.int64)
    assert descending(found).tolist() == np.argsort(-found, kind="stable").tolist()


@given(st.lists(FEW | st.floats(allow_nan=False), max_size=70))
def test_other_numbers_are_ordered_as_numpy_orders_them(values: list[float]) -> None:
    found = np.array(values, dtype=np.float64)
    assert descending(found).tolist() == np.argsort(-found, kind="stable").tolist()
