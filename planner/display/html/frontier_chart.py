"""The frontier: peak against recomputation time for several plans, each with its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...plan_file.record import Plan
from ...problem import Scope
from ...units import format_nbytes, percent
from .chart import share, ticks
from .markup import shown, table


def peak_nbytes(plan: Plan, scope: str) -> int:
    """The peak of a plan that a budget of ``scope`` bounds."""
    return plan.peak.total_nbytes if scope == Scope.TOTAL.value else plan.peak.activation_nbytes


def bound(plan: Plan) -> float | None:
    """The proven least recomputation as a share of a store-all step, None where nothing is proven."""
    proof = plan.certificate
    return proof.bound_ns / max(1, plan.time.store_all_ns) if proof.bound_class else None


def knee(plans: Sequence[Plan]) -> Plan:
    """The plan farthest below the line from the largest peak to the smallest, both axes scaled to 1.

    With fewer than three different peaks it is the plan of the largest peak.
    """
    scope = plans[0].budget.scope
    points = sorted(((peak_nbytes(plan, scope), plan.time.overhead, i) for i, plan in enumerate(plans)), reverse=True)
    (wide, low, _), (narrow, high, _) = points[0], points[-1]

    def below(point: tuple[int, float, int]) -> float:
        peak, overhead, _ = point
        if wide == narrow or high == low:
            return 0.0
        return (wide - peak) / (wide - narrow) - (overhead - low) / (high - low)

    return plans[max(points, key=below)[2]]


@dataclass(frozen=True, slots=True)
class Axes:
    """The plans by falling peak, and the largest bytes and share of a step on the axes."""

    scope: str
    order: tuple[Plan, ...]
    store_all: int
    wide: float
    high: float

    @classmethod
    def of(cls, plans: Sequence[Plan], scope: str) -> Axes:
        """The axes on which all ``plans`` and store-all have room."""
        peak = plans[0].peak
        store_all = peak.store_all_total_nbytes if scope == Scope.TOTAL.value else peak.store_all_activation_nbytes
        order = tuple(sorted(plans, key=lambda plan: -peak_nbytes(plan, scope)))
        wide = 1.05 * max(store_all, *(peak_nbytes(plan, scope) for plan in order))
        return cls(scope, order, store_all, wide, 1.1 * max(0.01, *(plan.time.overhead for plan in order)))

    def labelled(self, best: Plan) -> list[tuple[int, float, str]]:
        """Peak, added time and budgets of every point; plans on one point share a label, ``best`` is the knee."""
        labels: dict[tuple[int, float], list[str]] = {}
        for plan in self.order:
            labels.setdefault((peak_nbytes(plan, self.scope), plan.time.overhead), []).append(plan.budget.text)
        knee_at = peak_nbytes(best, self.scope), best.time.overhead
        return [(*at, ", ".join(texts) + ", the knee" * (at == knee_at)) for at, texts in labels.items()]


def frontier_section(plans: Sequence[Plan], chosen: Plan) -> str:
    """The chart and its table; ``chosen`` is marked."""
    axes = Axes.of(plans, chosen.budget.scope)
    scope, wide, high, order, store_all = axes.scope, axes.wide, axes.high, axes.order, axes.store_all

    def place(peak: float, overhead: float) -> str:
        return f"left:{share(peak, wide)};bottom:{share(overhead, high)}"

    marks = [f'<i class="dot all" style="{place(store_all, 0)}" title="store-all"></i>']
    lines, rows, points = [], [], []
    for plan in order:
        peak, overhead, least = peak_nbytes(plan, scope), plan.time.overhead, bound(plan)
        mine = plan is chosen
        x, y = 1000 * peak / wide, 1000 - 1000 * overhead / high
        points.append(f"{x:.1f} {y:.1f}")
        if least is not None:
            lines.append(f'<path class="gap" d="M{x:.1f} {1000 - 1000 * least / high:.1f}V{y:.1f}"/>')
            marks.append(f'<i class="dash" style="{place(peak, least)}"></i>')
        title = f"{plan.budget.text}: {format_nbytes(peak)}, +{percent(overhead)}"
        label = f"<b>{shown(plan.budget.text, 30)}</b>"
        style = f'class="dot{" chosen" if mine else ""}" style="{place(peak, overhead)}"'
        marks.append(f'<i {style} title="{shown(title)}">{label}</i>')
        rows.append([
            shown(plan.budget.text, 60) + (" (shown below)" if mine else ""), format_nbytes(peak),
            percent(peak / max(1, store_all)), f"+{percent(overhead)}", "" if least is None else f"+{percent(least)}",
            "" if least is None else percent(plan.gap), shown(plan.certificate.bound_class, 200),
        ])  # fmt: skip
    across = "".join(
        f'<span class="tick" style="left:{share(v, wide)}">{format_nbytes(round(v))}</span>' for v in ticks(wide)
    )
    up = "".join(f'<span class="tick" style="bottom:{share(v, high)}">{percent(v)}</span>' for v in ticks(high))
    svg = (
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">'
        f'{"".join(lines)}<path class="curve" d="M{"L".join(points)}"/></svg>'
    )
    why = ": the knee, farthest below the line from the first point to the last" if chosen is knee(plans) else ""
    headings = ("budget", "peak", "of store-all", "added time", "at least", "gap", "the bound holds for")
    return (
        "<section><h2>Frontier</h2><p>Added time of a step against its peak. A dash below a point is its proven bound."
        f" The square is store-all. The ring is the plan that the rest of this page shows{why}.</p>"
        f'<figure class="chart frontier"><div class="frame">{up}<div class="plot">{svg}{"".join(marks)}</div></div>'
        f'<div class="across">{across}</div></figure>{table(headings, rows, left=(0, 6))}</section>\n'
    )
