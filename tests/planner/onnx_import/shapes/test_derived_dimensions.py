"""Dimensions that a file writes as formulas: they follow from their names, and the names from them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.planner.errors import UnboundDimensionError, UsageError
from ogc_plan.planner.onnx_import.shapes.derived_dimensions import formula

from tests.files.onnx_models import model, node, read, tensor


def two(second: str, first: str = "s") -> onnx.ModelProto:
    """A model of inputs of ``first`` and ``second`` rows."""
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "z w", "b"), node("Concat", "a b", "y", axis=0)]
    return model(nodes, {"x": [first, 4], "z": [second, 4]}, weights={"w": (4, 4)})


def rows(proto: onnx.ModelProto, folder: Path, **options: object) -> tuple[int, int]:
    graph = read(proto, folder, **options)
    return tensor(graph, "x").shape[0], tensor(graph, "z").shape[0]


FORMULAS = {
    "2*s + 1": 7, "s-1": 2, "s*s": 9, "(s + 3)//2": 3, "floor(s/2)": 1, "ceil(s/2)": 2, "Max(2, s)": 3, "Mod(s, 2)": 1,
    "-s + 5": 2,
}  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_follows_from_its_name(text: str, tmp_path: Path) -> None:
    assert rows(two(text), tmp_path, dims={"s": 3}) == (3, FORMULAS[text])


def test_a_name_follows_from_the_shape_of_a_formula(tmp_path: Path) -> None:
    assert rows(two("2*s + 1"), tmp_path, inputs={"z": (9, 4)}) == (4, 9)


def test_a_name_that_only_a_formula_has_can_be_bound(tmp_path: Path) -> None:
    assert rows(two("t", first="2*s"), tmp_path, dims={"s": 3, "t": 5}) == (6, 5)


def test_a_name_with_a_dash_is_no_formula(tmp_path: Path) -> None:
    assert rows(two("batch-size", first="length-1"), tmp_path, dims={"batch-size": 3, "length-1": 5}) == (5, 3)


def test_an_unbound_formula_asks_for_its_name(tmp_path: Path) -> None:
    with pytest.raises(UnboundDimensionError) as caught:
        read(two("2*s + 1"), tmp_path)
    assert caught.value.remedy == "pass --dim s=8"


CONTRADICTIONS = {
    "another number": ({"s": 3, "2*s + 1": 9}, r'makes dimension "2\*s \+ 1" 7, but it is bound to 9'),
    "no whole name": ({"2*s + 1": 8}, r'dimension "2\*s \+ 1" cannot be 8: no size of "s" makes it that'),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_contradiction_is_named(what: str, tmp_path: Path) -> None:
    dims, message = CONTRADICTIONS[what]
    with pytest.raises((UsageError, UnboundDimensionError), match=message):
        read(two("2*s + 1"), tmp_path, dims=dims)


@pytest.mark.parametrize("text", ["(s + 1)/2", "s//0"])
def test_a_formula_that_is_no_whole_number_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no whole number with s=4"):
        read(two(text), tmp_path, dims={"s": 4})


@pytest.mark.parametrize("text", ["floor(s, 2)", "CeilDiv(s)", "f(s)"])
def test_a_call_of_another_form_is_a_name(text: str, tmp_path: Path) -> None:
    assert rows(two(text), tmp_path, dims={"s": 4, text: 3}) == (4, 3)


def test_an_unbound_name_with_a_dash_is_asked_for_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(UnboundDimensionError) as caught:
        read(two("batch-size", first="batch"), tmp_path, dims={"batch": 4})
    assert caught.value.remedy == "pass --dim batch-size=512"


@pytest.mark.parametrize("order", [1, -1])
def test_the_batch_is_the_name_and_not_what_follows_from_it(order: int, tmp_path: Path) -> None:
    first, second = ("b", "2*b")[::order]
    assert sorted(rows(two(second, first=first), tmp_path, batch=8)) == [8, 16]


def test_a_formula_below_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='dimension "s - 3", with s=3, is 0'):
        read(two("s - 3"), tmp_path, dims={"s": 3})


@given(text=st.text(alphabet="st019*+-/()., _Mxa'\"[]{}:=\\\n", max_size=30))
def test_any_text_is_a_formula_or_a_name(text: str) -> None:
    found = formula(text, {"s", "t"})
    assert found is None or isinstance(found.value({"s": 3, "t": 2}), (int, type(None)))
