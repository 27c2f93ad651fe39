"""Draw the memory of a step with and without a plan, as an SVG.

python -m models.reporting.timeline_picture plan.json -o models/results/timeline.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ogc_plan.planner.model import store_all_timeline
from ogc_plan.planner.plan_file.reader import read_plan
from ogc_plan.planner.schedule import StepKind

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 330, 66, 20, 44, 42


def _outline(times: Sequence[float], values: Sequence[float], end: float, top: float) -> str:
    """A step line as an SVG path: time to the right, bytes upwards."""
    points = []
    for time, value in zip(times, values, strict=True):
        x = LEFT + (WIDTH - LEFT - RIGHT) * time / end
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top
        points.append(f"H{x:.1f}V{y:.1f}" if points else f"M{x:.1f},{y:.1f}")
    return "".join(points) + f"H{LEFT + (WIDTH - LEFT - RIGHT) * times[-1] / end:.1f}"


def main() -> None:
    """Read a plan, replay its own graph with and without it, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    plan = read_plan(options.plan)
    schedule, reference = store_all_timeline(plan.graph, plan.costs)
    series = []
    for steps, timeline in ((schedule, reference), (plan.schedule, plan.timeline)):
        now, times = 0.0, []
        for step in steps:
            times.append(now / 1e6)  # the line is drawn at a step's start; the last point is the end
            if step.kind is StepKind.BACKWARD:
                now += plan.costs[step.index].backward_ns
            elif step.kind is not StepKind.FREE:
                now += plan.costs[step.index].forward_ns
        values = [value / 1e9 for value in timeline.activation_nbytes]
        series.append(([*times, now / 1e6], [*values, values[-1]]))
    end = max(times[-1] for times, _ in series)
    top = max(max(values) for _, values in series) * 1.08
    budget = plan.budget.nbytes / 1e9 if plan.budget.scope == "activations" else None
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui,sans-serif"'
        ' font-size="12" fill="#334155">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="600">{plan.model.file}: activation memory of one training'
        f" step, {plan.certificate.strategy} at {plan.budget.text}</text>",
    ]
    for tick in range(5):
        value = top * tick / 4
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * tick / 4
        body.append(f'<path d="M{LEFT},{y:.1f}H{WIDTH - RIGHT}" stroke="#e2e8f0"/>')
        body.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.1f} GB</text>')
    for (times, values), color, fill, name, x in (
        (series[0], "#94a3b8", "none", f"store all: {max(series[0][1]):.2f} GB, {series[0][0][-1]:.1f} ms", LEFT),
        (series[1], "#2563eb", "#2563eb", f"plan: {max(series[1][1]):.2f} GB, {series[1][0][-1]:.1f} ms", LEFT + 250),
    ):
        line = _outline(times, values, end, top)
        base = HEIGHT - BOTTOM
        body.append(f'<path d="{line}V{base}H{LEFT}Z" fill="{fill}" fill-opacity="0.15" stroke="none"/>')
        body.append(f'<path d="{line}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        body.append(f'<path d="M{x},{TOP - 12}h18" stroke="{color}" stroke-width="3"/>')
        body.append(f'<text x="{x + 24}" y="{TOP - 8}">{name}</text>')
    if budget is not None:
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * budget / top
        body.append(f'<path d="M{LEFT},{y:.1f}H{WIDTH - RIGHT}" stroke="#dc2626" stroke-dasharray="5 4"/>')
        body.append(f'<text x="{WIDTH - RIGHT}" y="{y - 5:.1f}" text-anchor="end" fill="#dc2626">budget</text>')
    body.append(
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 14}" text-anchor="end">time, 0 to {end:.1f} ms'
        f" ({plan.time.source})</text>"
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join([*body, "</svg>", ""]))


if __name__ == "__main__":
    main()
