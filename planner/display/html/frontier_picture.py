"""The frontier as an SVG of its own, for papers and pages: every plan with its bound, and the knee."""

from __future__ import annotations

from collections.abc import Sequence

from ...plan_file.record import Plan
from ...units import format_nbytes, percent
from ..plan_report import SCOPES
from .chart import ticks
from .frontier_chart import Axes, bound, knee, peak_nbytes
from .markup import short, shown

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 400, 70, 20, 44, 56


def frontier_svg(plans: Sequence[Plan]) -> str:
    """Added time against peak for plans of one step. A dash is the bound of the point above it."""
    axes, best = Axes.of(plans, plans[0].budget.scope), knee(plans)

    def at(peak: float, overhead: float) -> tuple[float, float]:
        across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * peak / axes.wide
        return across, _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * overhead / axes.high

    def line(points: Sequence[tuple[float, float]], style: str) -> str:
        return f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}" fill="none" {style}/>'

    def text(x: float, y: float, words: str, style: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{shown(words)}</text>'

    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="system-ui,sans-serif" font-size="12" fill="#334155">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        text(_LEFT, 22, f"{short(best.model.file)}: added time of a step against its peak", 'font-weight="600"'),
        text(_WIDTH - _RIGHT, _HEIGHT - 12, f"{SCOPES[axes.scope]}; a dash is the proven bound", 'text-anchor="end"'),
    ]
    for value in ticks(axes.high):
        y = at(0, value)[1]
        body += [line([(_LEFT, y), (_WIDTH - _RIGHT, y)], 'stroke="#dbe1e8"')]
        body += [text(_LEFT - 8, y + 4, percent(value), 'text-anchor="end"')]
    body += [
        text(at(value, 0)[0], _HEIGHT - _BOTTOM + 18, format_nbytes(round(value)), 'text-anchor="middle"')
        for value in ticks(axes.wide)
    ]
    body.append(
        line([at(peak_nbytes(plan, axes.scope), plan.time.overhead) for plan in axes.order], 'stroke="#2f7ebc"')
    )
    for plan in axes.order:
        peak, least = peak_nbytes(plan, axes.scope), bound(plan)
        x, y = at(peak, plan.time.overhead)
        if least is not None:
            low = at(peak, least)[1]
            body += [
                line([(x, y), (x, low)], 'stroke="#64748b"'),
                line([(x - 6, low), (x + 6, low)], 'stroke="#64748b"'),
            ]
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#2f7ebc"/>')
        if plan is best:
            body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="none" stroke="#b3261e" stroke-width="2"/>')
    for peak, overhead, label in axes.labelled(best):
        x, y = at(peak, overhead)
        body.append(text(x + 11, y - 6, label))
    x, y = at(axes.store_all, 0)
    body += [f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="#e08a1e"/>']
    body += [text(x - 4, y - 10, "store-all", 'text-anchor="middle"'), "</svg>"]
    return "\n".join(body) + "\n"
