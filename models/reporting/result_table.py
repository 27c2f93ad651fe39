"""Markdown tables that also read well in a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table padded to even columns; every column but the first is aligned to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        sized = zip(cells, widths, strict=True)
        return f"| {' | '.join(c.rjust(w) if at else c.ljust(w) for at, (c, w) in enumerate(sized))} |"

    rule = "|".join("-" * (width + 1) + (":" if at else "-") for at, width in enumerate(widths))
    return "\n".join([line(header), f"|{rule}|", *(line(row) for row in rows)])


def compact(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same without padding."""
    first, *lines = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join([first, "|" + "---|" * len(header), *lines])


def megabytes(nbytes: int) -> str:
    """Bytes in MB (10^6) with one digit."""
    return f"{nbytes / 1e6:.1f}"
