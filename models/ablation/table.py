"""The Markdown page of an ablation: what every piece is worth, one section for each state of the code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from models.ablation.measure import LOWEST
from models.plan_benchmark.targets import GAPS
from models.reporting.result_table import table

WIDE = 0.002
"""A cell is worse or better by more than this share of a step, a smallest peak by more than it of store-all's peak."""
WORTH, HALVES = 0.02, 2.0
"""A piece stays that betters this share of the cells, or without which plans take so many times as long."""
KEY = ("seed", "chain", "points", "integers", "reordering", "one_lowering", "lowering", "deepest", "low_orders",
       "ancestors", "order_cycles", "hold_heats", "other_orders", "through_rows", "repair")  # fmt: skip
"""The rows of the short table, as far as a section has them."""
ABOUT = f"""# `optimal` without one piece at a time

A cell is one graph within one budget, planned with everything and without the piece.

- Worse, better: shares of the cells whose overhead, or gap to the proven bound, is more than {100 * WIDE:.1f}% of a
  step higher or lower without the piece. Mean: the change of the overhead in percent of a step.
- Peak: shares of the graphs whose smallest peak is more than that share of store-all's higher or lower.
- Gaps met: the change of the number of cells that meet their target.
- Time: processor time without the piece over that with it, in total, and the median of the cells solved again.
- A piece pays that betters {100 * WORTH:.0f}% of the cells more than it worsens, in cost, gap or smallest peak, or that
  halves the time.
- Rows of different sections were measured with different code, and are not to be compared.
"""

Section = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One cell with everything (``full``) and without a piece (``less``); ``again``: it was solved for the latter."""

    label: str
    new: bool
    full: Mapping[str, Any]
    less: Mapping[str, Any]
    again: bool

    def change(self, of: str) -> float:
        """How much ``of`` (overhead, gap or peak) rises without the piece; infinite where one of the two has none."""
        full, less = _value(self.full, of), _value(self.less, of)
        if full is None or less is None:
            return 0.0 if full is less else float("inf") if less is None else float("-inf")
        return less - full


def _value(cell: Mapping[str, Any], of: str) -> float | None:
    if cell["overhead"] is None:
        return None
    return float(cell["overhead"] - (cell["bound"] or 0.0) if of == "gap" else cell[of])


def _met(cell: Mapping[str, Any], label: str) -> bool:
    gap = _value(cell, "gap")
    return gap is not None and gap <= GAPS.get(int(label), 1.0) + 1e-9


def pairs(section: Section, piece: str, *, lowest: bool = False) -> list[Pair]:
    """The feasible cells of a piece: those of the smallest peak, or those of budgets.

    A cell that was not solved without the piece counts as the same as with it.
    """
    full = section["cells"].get(section["pieces"][piece]["base"], {})
    return [
        Pair(label, section["graphs"][name]["new"], cell, less.get(label, cell), label in less)
        for name, less in section["cells"][piece].items()
        for label, cell in full.get(name, {}).items()
        if (label == LOWEST) == lowest and cell["status"] != "infeasible"
    ]


def _share(found: list[Pair], of: str, sign: int) -> str:
    hits = sum(sign * pair.change(of) > WIDE for pair in found)
    return f"{100 * hits / len(found):.1f}%" if found else "-"


def _mean(found: list[Pair]) -> str:
    changes = [change for pair in found if abs(change := pair.change("overhead")) != float("inf")]
    return f"{100 * sum(changes) / len(changes):+.3f}" if changes else "-"


def _times(found: list[Pair]) -> tuple[float, float]:
    """Processor time without over with: the ratio of the sums, and the median of the cells solved again."""
    full, less = (sum(getattr(pair, side)["cpu_s"] for pair in found) for side in ("full", "less"))
    ratios = [pair.less["cpu_s"] / pair.full["cpu_s"] for pair in found if pair.again and pair.full["cpu_s"] > 0.02]
    return less / full if full else 1.0, median(ratios) if ratios else 1.0


def stays(found: list[Pair], lowest: list[Pair]) -> bool:
    """Whether a piece betters cells enough, in cost, gap or smallest peak, or halves the time."""

    def betters(some: list[Pair], of: str) -> bool:
        worse, better = (sum(sign * pair.change(of) > WIDE for pair in some) for sign in (1, -1))
        return bool(some) and worse - better >= WORTH * len(some)

    better = betters(found, "overhead") or betters(found, "gap") or betters(lowest, "peak")
    return better or max(_times(found)) >= HALVES


def _measured(section: Section) -> Iterator[tuple[str, list[Pair], list[Pair], str]]:
    """Every piece with its cells, its smallest peaks, and whether it pays."""
    for name, piece in section["pieces"].items():
        every = pairs(section, name) if name in section["cells"] and name != piece["base"] else []
        lowest = pairs(section, name, lowest=True) if every and piece["lowest"] else []
        if every:
            yield name, every, lowest, "yes" if stays(every, lowest) else "no"


def _peaks(lowest: list[Pair]) -> str:
    return f"{_share(lowest, 'peak', 1)}/{_share(lowest, 'peak', -1)}" if lowest else "-"


def _rows(section: Section) -> Iterator[list[str]]:
    for name, every, lowest, verdict in _measured(section):
        row = [name, str(len(every)), str(sum(pair.again for pair in every))]
        for new in (False, True):
            found = [pair for pair in every if pair.new == new]
            row += [str(len(found)), _share(found, "overhead", 1), _share(found, "overhead", -1), _mean(found)]
            row += [_share(found, "gap", 1), _share(found, "gap", -1)]
        met = [sum(_met(getattr(pair, side), pair.label) for pair in every) for side in ("less", "full")]
        ratio, middle = _times(every)
        yield [*row, _peaks(lowest), f"{met[0] - met[1]:+d}", f"{ratio:.2f}", f"{middle:.2f}", verdict]


def _part(title: str, section: Section) -> str:
    per = ["cells", "worse", "better", "mean", "gap worse", "gap better"]
    header = ["without", "cells", "solved again", f"benchmark: {per[0]}", *per[1:], f"new: {per[0]}", *per[1:],
              "peak worse/better", "gaps met", "time", "median", "pays"]  # fmt: skip
    counts = [sum(graph["new"] == new for graph in section["graphs"].values()) for new in (False, True)]
    about = [f"- `{name}`: {piece['about']}" for name, piece in section["pieces"].items()]
    return (
        f"## Measured with {title}\n\n`{section['command']}` on {section['machine']}; {counts[0]} graphs of the plan "
        f"benchmark and {counts[1]} new ones. {section.get('note', '')}\n\n"
        f"{table(header, list(_rows(section)))}\n\n" + "\n".join(about) + "\n"
    )


def page(record: Mapping[str, Section]) -> str:
    """The rule and the columns in words, and a table for each state of the code."""
    return ABOUT + "".join(f"\n{_part(title, section)}" for title, section in record.items())


def key_rows(record: Mapping[str, Section]) -> str:
    """The short tables of the README, one for each state of the code."""
    header = ["without", "cells", "worse", "better", "gap worse", "gap better", "peak worse/better", "time", "pays"]
    parts = []
    for title, section in record.items():
        rows = [
            [section["pieces"][name]["about"], str(len(every)), *(_share(every, of, sign) for of in ("overhead", "gap")
             for sign in (1, -1)), _peaks(lowest), f"{_times(every)[0]:.2f}", verdict]
            for name, every, lowest, verdict in sorted(_measured(section), key=lambda row: [*KEY, row[0]].index(row[0]))
            if name in KEY
        ]  # fmt: skip
        parts.append(f"Measured with {title}:\n\n{table(header, rows)}")
    return "\n\n".join(parts)
