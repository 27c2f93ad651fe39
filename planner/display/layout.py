"""How a report is laid out: labelled paragraphs, tables without frames, and names from files as safe text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from .terminal import one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

SHOWN = 3
"""How many assumptions or names a report lists unless it is asked for all."""

_NAME = 12
"""As much of a name that may be cut stays in a narrow table."""

LABEL = 13
"""Width of the label column."""


def name_of(text: str, limit: int = 60) -> Text:
    """A name from a file, safe to print; a long one is cut in its middle, as its end is the most specific part."""
    if len(text) > limit:
        text = f"{text[: limit // 3]}...{text[len(text) - (limit - limit // 3 - 3) :]}"
    return Text(one_line(text, limit), no_wrap=True, overflow="ellipsis")


def path_of(text: str, out: Console) -> str:
    """The name of a file, cut in its middle to fit on the line after a label."""
    return name_of(text, max(20, out.width - LABEL - 1)).plain


def listed(items: list[str], everything: bool) -> str:
    """Items joined into one phrase, at most SHOWN unless everything is asked for."""
    shown = [one_line(item, 200) for item in (items if everything else items[:SHOWN])]
    rest = len(items) - len(shown)
    return "; ".join(shown) + (f"; and {rest} more (-v)" if rest else "")


def some(names: Sequence[str], shown: int = SHOWN, limit: int = 60) -> str:
    """The first names, each cut at ``limit``, and the number of others."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(one_line(name, limit) for name in names[:shown]) + more


def field(out: Console, label: str, text: str, style: str = "cyan") -> None:
    """A label, in a colour, and a paragraph; a name too long for a line is broken, never cut."""
    lines = textwrap.wrap(text, max(20, out.width - LABEL), break_on_hyphens=False) or [""]
    out.print(Text.assemble((f"{label:<{LABEL}}", style), lines[0]), soft_wrap=True)
    for line in lines[1:]:
        out.print(Text(" " * LABEL + line), soft_wrap=True)


def command(out: Console, label: str, text: str) -> None:
    """A label and a command in one line, to be copied."""
    out.print(Text.assemble((f"{label:<{LABEL}}", "cyan"), text), soft_wrap=True)


class _PlainTable(Table):
    """A table that gets narrower with its console: first its gaps, then its words are broken apart, then it has less.

    Columns that have no room are left out from the right and named below.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide, left_out = options.update(max_width=1000), []
        if Measurement.get(console, wide, self).maximum > options.max_width:
            self.padding = 0
            sizes = [_widths(column, console, wide) for column in self.columns]
            while sum(least for least, _ in sizes) + len(sizes) - 1 > options.max_width and len(sizes) > 1:
                left_out.append(str(self.columns.pop().header))
                sizes.pop()
            widths = [most for _, most in sizes]
            while sum(widths) + len(widths) - 1 > options.max_width and any(
                width > least for width, (least, _) in zip(widths, sizes, strict=True)
            ):
                broadest = max(range(len(widths)), key=lambda at: (widths[at] > sizes[at][0], widths[at]))
                widths[broadest] -= 1
            for column, width in zip(self.columns, widths, strict=True):
                column.width, column.no_wrap, column.overflow = width, False, "fold"
                column.header = Text(str(column.header))
        yield from super().__rich_console__(console, options)
        if any(left_out):
            yield Text(f"too narrow for: {', '.join(filter(None, reversed(left_out)))}")


def _widths(column: Column, console: Console, options: ConsoleOptions) -> tuple[int, int]:
    """The least and the most that a column needs: its longest word, of names that may be cut their beginning."""
    least, most = 0, 0
    for cell in (Text(str(column.header)), *column.cells):
        needed, cut = Measurement.get(console, options, cell), isinstance(cell, Text) and cell.no_wrap
        indent = len(str(cell)) - len(str(cell).lstrip())
        least = max(least, indent + (min(needed.minimum, _NAME) if cut else needed.minimum))
        most = max(most, needed.maximum)
    return least, most


def plain_table(*headings: str, left: tuple[int, ...] = (0,), gap: int = 3) -> Table:
    """A table without a frame; columns are ``gap`` spaces apart, and right-aligned unless they are in ``left``."""
    table = _PlainTable(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False)
    for position, heading in enumerate(headings):
        text, flexible = Text(heading, no_wrap=True, overflow="ellipsis"), position in left
        table.add_column(text, justify="left" if flexible else "right", no_wrap=not flexible)
    return table
