"""HTML from text that may be hostile: everything that comes from a file passes `shown` or `as_json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ..layout import name_of
from ..terminal import one_line

NAME = 100
"""Names are cut in their middle beyond so many characters."""


def shown(text: str, limit: int = 2000) -> str:
    """Text as one escaped line, safe as content and between quotes."""
    return escape(one_line(text, limit))


def short(text: str) -> str:
    """A name as one line of at most NAME characters, not escaped."""
    return name_of(text, NAME).plain


class Texts:
    """Names by number, each one once, and the bytes that they take in a page."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.nbytes = 0
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text, which is cut as names are."""
        if text not in self._numbers:
            self._numbers[text] = len(self.lines)
            self.lines.append(short(text))
            self.nbytes += len(as_json(self.lines[-1]).encode()) + 1
        return self._numbers[text]


def as_json(value: Any) -> str:
    """Data for a script element: nothing in it ends the element or begins another one."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[int] = (0,), summed: bool = False
) -> str:
    """A table of cells that are HTML already; columns are right-aligned unless they are in ``left``.

    ``summed`` says that the last row adds up the others.
    """
    side = [' class="left"' if position in left else "" for position in range(len(headings))]
    head = "".join(f'<th scope="col"{a}>{escape(text)}</th>' for a, text in zip(side, headings, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{a}>{cell}</td>" for a, cell in zip(side, row, strict=True)) + "</tr>\n" for row in rows
    )
    style = ' class="summed"' if summed else ""
    rows_and_head = f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>"
    return f'<div class="wide" tabindex="0"><table{style}>{rows_and_head}</table></div>\n'


def terms(pairs: Iterable[tuple[str, str]]) -> str:
    """Labels with their paragraphs, which are text."""
    return "<dl>" + "".join(f"<dt>{escape(label)}</dt><dd>{shown(text)}</dd>\n" for label, text in pairs) + "</dl>\n"
