"""Sizes, percentages, times and counts as text: parsing and printing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from .errors import BudgetSyntaxError

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[f"{_letter}IB"] = 1024**_power
_NUMBER = re.compile(r"\+?(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})\s*([A-Za-z%]*)", re.ASCII)
_REMEDY = "write a size such as 3GB or 3GiB, a percentage such as 60%, or min"
_MEMORY_REMEDY = "write a size such as 24GB or 24GiB"


@dataclass(frozen=True, slots=True)
class BudgetText:
    """A budget as written: exactly one of ``nbytes``, ``fraction`` or ``minimum`` is set."""

    nbytes: int | None = None
    fraction: Fraction | None = None
    minimum: bool = False


def parse_budget(text: str) -> BudgetText:
    """Parse ``3GB``, ``3 GiB``, ``60%`` or ``min``.

    Raises BudgetSyntaxError for anything else, for zero, for percentages above 100, and for a bare number up to 100,
    which is meant as a percentage.
    """
    if text.strip().lower() == "min":
        return BudgetText(minimum=True)
    nbytes, fraction = _amount("budget", text, _REMEDY)
    if not nbytes and not fraction:
        raise BudgetSyntaxError(f"budget {_shown(text)} is zero", remedy=_REMEDY)
    return BudgetText(fraction=fraction) if fraction else BudgetText(nbytes=nbytes)


def parse_headroom(text: str) -> tuple[int, Fraction]:
    """Parse a size, a percentage or zero: bytes and a share of the budget, of which one is 0.

    Raises BudgetSyntaxError where `parse_budget` does, but for zero, and for ``min``.
    """
    return _amount("--headroom", text, "write --headroom 5% or --headroom 500MB")


def parse_memory(text: str) -> int:
    """The bytes of a size such as ``24GB``.

    Raises BudgetSyntaxError where `parse_budget` does, and for a percentage and ``min``.
    """
    nbytes, _ = _amount("memory", text, _MEMORY_REMEDY, share=False)
    if not nbytes:
        raise BudgetSyntaxError(f"memory {_shown(text)} is zero", remedy=_MEMORY_REMEDY)
    return nbytes


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _amount(what: str, text: str, remedy: str, *, share: bool = True) -> tuple[int, Fraction]:
    """Bytes, or with ``share`` also a share of 1; the other one is 0. Errors call the text a ``what``."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match[2] == "%" and not share):
        raise BudgetSyntaxError(f"{what} {_shown(text)} is not a size", remedy=remedy)
    number, unit = Fraction(match[1].rstrip(".")), match[2].upper()
    if unit == "%":
        if number > 100:
            raise BudgetSyntaxError(f"{what} {_shown(text)} is above 100%", remedy=remedy)
        return 0, number / 100
    if unit not in _UNITS:
        near = f"write {match[1]}{unit[0]}B or {match[1]}{unit[0]}iB" if f"{unit}B" in _UNITS else remedy
        raise BudgetSyntaxError(f"{what} {_shown(text)} has the unknown unit {match[2]!r}", remedy=near)
    if not unit and 0 < number <= 100:
        percents = match[1] if number >= 1 else f"{float(100 * number):g}"
        meant = f"write {percents}% for a share, or a size such as 3GB" if share else f"write {match[1]}GB"
        raise BudgetSyntaxError(f"{what} {_shown(text)} has no unit", remedy=meant)
    nbytes = int(number * _UNITS[unit])
    if number and not 1 <= nbytes < 2**62:
        raise BudgetSyntaxError(f"{what} {_shown(text)} is outside 1 B to 4 EiB", remedy=remedy)
    return nbytes, Fraction(0)


def format_rate(per_s: float) -> str:
    """Something a second in four digits, or whole from a thousand on."""
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.4g}"


def percent(share: float) -> str:
    """A share as a percentage with two digits; a small one is never rounded to zero."""
    return f"{share:.2%}" if share == 0 or share >= 0.00005 else "<0.01%"


def counted(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one: ``1 op``, ``1,234 ops``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def is_or_are(count: int) -> str:
    """The verb of that many things."""
    return "is" if count == 1 else "are"


def format_nbytes(nbytes: int) -> str:
    """Decimal units with two decimals: ``1.23 GB``; plain bytes below 1 KB."""
    value, sign = float(abs(nbytes)), "-" if nbytes < 0 else ""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 999.95 or unit == "TB":
            return f"{sign}{value:.0f} {unit}" if unit == "B" else f"{sign}{value:.2f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def format_both(nbytes: int) -> str:
    """Decimal and binary side by side: ``3.00 GB (2.79 GiB)``."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1023.95 or unit == "TiB":
            break
        value /= 1024
    return f"{format_nbytes(nbytes)} ({value:.2f} {unit})"


def format_ns(ns: int) -> str:
    """Nanoseconds for people: ``12.3 ms``."""
    value = float(ns)
    for unit in ("ns", "us", "ms"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} s"
