"""Compiled kernels: what counts no references hands out no arrays, and the parts that kernels share."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.strategies.evaluation.evaluator import sort_part
from ogc_plan.planner.strategies.kernels.jit import copy_part

STRATEGIES = Path(__file__).resolve().parents[4] / "planner" / "strategies"
BARE = {"compiled", "inlined"}
PLAIN = {"None", "int", "float", "bool", "tuple"}


def returned() -> dict[str, set[str]]:
    """The names in the return annotation of every function of the strategies that counts no references."""
    found = {}
    for path in STRATEGIES.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and BARE & {ast.unparse(name) for name in node.decorator_list}:
                assert node.returns is not None
                parts = ast.walk(node.returns)
                found[node.name] = {ast.unparse(part) for part in parts if isinstance(part, (ast.Name, ast.Constant))}
    return found


def test_kernels_that_count_no_references_return_no_arrays() -> None:
    assert {name: names for name, names in returned().items() if not names <= PLAIN} == {}


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.integers(0, 500), max_size=300), st.data())
def test_a_part_is_sorted_and_the_rest_stays(values: list[int], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(begin, len(values)))
    array = np.array(values, dtype=np.int64)
    sort_part(array, begin, end)
    assert array.tolist() == [*values[:begin], *sorted(values[begin:end]), *values[end:]]


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.integers(0, 9), max_size=30), st.data())
def test_a_part_is_copied_to_where_it_is_wanted(values: list[int], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(begin, len(values)))
    at = data.draw(st.integers(0, 5))
    target = np.full(40, -1, dtype=np.int64)
    copy_part(target, at, np.array(values, dtype=np.int64), begin, end)
    assert target.tolist() == [-1] * at + values[begin:end] + [-1] * (40 - at - (end - begin))
