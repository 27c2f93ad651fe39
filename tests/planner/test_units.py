"""Sizes, percentages and times as people write and read them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.planner.errors import BudgetSyntaxError
from ogc_plan.planner.units import (
    BudgetText,
    counted,
    format_both,
    format_nbytes,
    format_ns,
    format_rate,
    parse_budget,
    parse_headroom,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("512", 512),
        ("500MB", 500_000_000),
        ("3GiB", 3 * 2**30),
        (" 3GB ", 3 * 10**9),
        ("3gb", 3 * 10**9),
        ("3gIb", 3 * 2**30),
        ("1.5GB", 1_500_000_000),
        (".5GB", 500_000_000),
        ("0.1GB", 100_000_000),  # exact, not the nearest float
        ("1.9B", 1),  # part of a byte is dropped: the budget is never rounded up
    ],
)
def test_a_size_is_read_exactly(text: str, nbytes: int) -> None:
    assert parse_budget(text) == BudgetText(nbytes=nbytes)


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        ("60%", Fraction(3, 5)),
        ("12.5%", Fraction(1, 8)),
        ("60 %", Fraction(3, 5)),
    ],
)
def test_a_percentage_is_read_exactly(text: str, fraction: Fraction) -> None:
    assert parse_budget(text) == BudgetText(fraction=fraction)


@pytest.mark.parametrize("text", ["min", "MIN", " min "])
def test_min_asks_for_the_smallest_reachable_peak(text: str) -> None:
    assert parse_budget(text) == BudgetText(minimum=True)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "GB", "%", ".", ".GB", "-3GB", "3,5GB", "1e9", "3 G B", "3GB3", "nan", "inf", "0x10", "3GB\n4GB",
        "\u0663GB", "\uff13GB", "min1", "3Gb/s", "minimum", "3\u00a0GB", "--budget",
    ],
)  # fmt: skip
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(BudgetSyntaxError, match="is not a size"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3G", "unknown unit 'G'"),
        ("0", "is zero"),
        ("0.0%", "is zero"),
        ("100.1%", "above 100%"),
        ("0.4B", "outside 1 B to 4 EiB"),
        ("9" * 30 + "PB", "outside 1 B to 4 EiB"),
    ],
)
def test_a_size_that_cannot_be_a_budget_is_refused_with_the_reason_and_a_remedy(text: str, says: str) -> None:
    with pytest.raises(BudgetSyntaxError, match=says) as caught:
        parse_budget(text)
    assert "3GiB" in caught.value.remedy


def test_a_refusal_shows_the_value_shortened() -> None:
    with pytest.raises(BudgetSyntaxError) as caught:
        parse_budget("x" * 10_000)
    assert "x" * 37 + "..." in str(caught.value)
    assert len(caught.value.message) < 100


@given(st.text(max_size=50))
def test_any_text_is_read_or_refused_with_a_budget_error(text: str) -> None:
    try:
        budget = parse_budget(text)
    except BudgetSyntaxError:
        return
    assert [budget.nbytes is not None, budget.fraction is not None, budget.minimum].count(True) == 1


@given(st.integers(1, 2**62 - 1))
def test_a_number_of_bytes_reads_back(nbytes: int) -> None:
    assert parse_budget(f"{nbytes}B") == BudgetText(nbytes=nbytes)


@given(st.integers(101, 2**62 - 1))
def test_a_number_above_100_needs_no_unit(nbytes: int) -> None:
    assert parse_budget(str(nbytes)) == BudgetText(nbytes=nbytes)


@pytest.mark.parametrize(("text", "share"), [("60", "60%"), ("100", "100%"), ("12.5", "12.5%"), ("0.6", "60%")])
def test_a_bare_number_that_would_be_a_percentage_is_refused_with_it(text: str, share: str) -> None:
    with pytest.raises(BudgetSyntaxError, match=f"budget '{text}' has no unit; write {share} for a share"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("5%", (0, Fraction(1, 20))), ("500MB", (500_000_000, 0)), ("0", (0, 0)), ("0%", (0, 0)), ("0MB", (0, 0))],
)
def test_a_headroom_is_a_size_or_a_share_or_nothing(text: str, amount: tuple[int, Fraction]) -> None:
    assert parse_headroom(text) == amount


@pytest.mark.parametrize(
    ("text", "says"),
    [("min", "is not a size"), ("", "is not a size"), ("5", "has no unit"), ("3XB", "unknown unit"), ("101%", "above")],
)
def test_a_refused_headroom_is_called_a_headroom(text: str, says: str) -> None:
    with pytest.raises(BudgetSyntaxError, match=f"^headroom '{text}' .*{says}"):
        parse_headroom(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1000, "1.00 KB"),
        (1_234_000_000, "1.23 GB"),
        (999_950, "1.00 MB"),
        (5 * 10**15, "5000.00 TB"),
        (-1500, "-1.50 KB"),
    ],
)
def test_bytes_are_shown_in_decimal_units(nbytes: int, text: str) -> None:
    assert format_nbytes(nbytes) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 modules"), (1, "1 module"), (1234, "1,234 modules")])
def test_only_one_thing_has_no_plural(count: int, text: str) -> None:
    assert counted(count, "module") == text


def test_both_readings_of_giga_are_shown_side_by_side() -> None:
    assert format_both(3 * 10**9) == "3.00 GB (2.79 GiB)"


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (1500, "1.5 us"),
        (12_300_000, "12.3 ms"),
        (2_000_000_000, "2 s"),
        (999_600_000, "1 s"),
    ],
)
def test_times_have_three_digits(ns: int, text: str) -> None:
    assert format_ns(ns) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(0.51234, "0.5123"), (704.21, "704.2"), (1234.5, "1,234"), (10634.2, "10,634")]
)
def test_a_rate_has_four_digits_or_is_whole(rate: float, text: str) -> None:
    assert format_rate(rate) == text
