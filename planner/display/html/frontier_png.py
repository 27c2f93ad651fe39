"""The frontier as a PNG, which matplotlib draws: every plan with its bound, and the knee."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from ...errors import needed
from ...plan_file.record import Plan
from ...units import format_nbytes, percent
from ..plan_report import SCOPES
from ..terminal import one_line
from .frontier_chart import Axes, bound, knee, peak_nbytes

with needed("matplotlib"):
    from matplotlib.figure import Figure


def frontier_png(plans: Sequence[Plan]) -> bytes:
    """Added time against peak for plans of one step. A dash is the bound of the point above it."""
    drawn = BytesIO()
    drawing(plans).savefig(drawn, format="png")
    return drawn.getvalue()


def drawing(plans: Sequence[Plan]) -> Figure:
    """The same as a figure of matplotlib."""
    frame, best = Axes.of(plans, plans[0].budget.scope), knee(plans)
    figure = Figure(figsize=(7.2, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot(
        xlim=(0, frame.wide), ylim=(0, frame.high), xlabel=f"{SCOPES[frame.scope]}; a dash is the proven bound"
    )
    name = one_line(best.model.file, 60)
    axes.set_title(f"{name}: added time of a step against its peak", parse_math=False, fontsize=10)
    axes.grid(axis="y", alpha=0.4)
    axes.xaxis.set_major_formatter(lambda value, _: format_nbytes(round(value)))
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    peaks = [peak_nbytes(plan, frame.scope) for plan in frame.order]
    axes.plot(peaks, [plan.time.overhead for plan in frame.order], "o-", color="#2f7ebc", clip_on=False)
    for peak, plan in zip(peaks, frame.order, strict=True):
        least = bound(plan)
        if least is not None:
            axes.plot([peak] * 2, [least, plan.time.overhead], "-", color="#64748b", zorder=1)
            axes.plot(peak, least, "_", color="#64748b", markersize=10, clip_on=False)
        if plan is best:
            ring: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": "#b3261e", "markeredgewidth": 2}
            axes.plot(peak, plan.time.overhead, "o", markersize=13, clip_on=False, **ring)
    for peak, overhead, label in frame.labelled(best):
        place: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "parse_math": False}
        axes.annotate(one_line(label, 60), (peak, overhead), (8, 5), **place)
    axes.plot(frame.store_all, 0, "s", color="#e08a1e", clip_on=False)
    axes.annotate("store-all", (frame.store_all, 0), (0, 8), textcoords="offset points", ha="center", fontsize=9)
    return figure
