"""Pictures of the benchmark as SVG: memory against time, a small panel for each network."""

from __future__ import annotations

from collections.abc import Sequence

from models.benchmark.measure import STRATEGY
from models.benchmark.published import published_at
from models.benchmark.rows import rows_of
from models.benchmark.table import Results, finished

COLUMNS, WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 3, 290, 190, 46, 30, 26, 12
GREY, BLUE, RED = "#94a3b8", "#2563eb", "#dc2626"


class Panel:
    """A plot with linear axes from zero; ``place`` counts panels row by row."""

    def __init__(self, place: int, title: str, right: float, top: float, units: tuple[str, str]) -> None:
        self.x, self.y = place % COLUMNS * WIDTH, 30 + place // COLUMNS * HEIGHT
        self.right, self.top = right or 1.0, top or 1.0
        self.body = [f'<text x="{self.x + LEFT}" y="{self.y + 14}" font-weight="600">{title}</text>']
        for tick in range(3):
            down, across = self._at(0, self.top * tick / 2)[1], self._at(self.right * tick / 2, 0)[0]
            self.body += [
                f'<path d="M{self.x + LEFT},{down:.1f}H{self.x + WIDTH - RIGHT}" stroke="#e2e8f0"/>',
                f'<text x="{self.x + LEFT - 4}" y="{down + 4:.1f}" text-anchor="end">{self.top * tick / 2:.3g}</text>',
                f'<text x="{across:.1f}" y="{self.y + HEIGHT - BOTTOM + 13}" text-anchor="middle">'
                f"{self.right * tick / 2:.3g}</text>",
            ]
        self.body.append(
            f'<text x="{self.x + WIDTH - RIGHT}" y="{self.y + 14}" text-anchor="end" fill="#64748b">'
            f"{units[1]} against {units[0]}</text>"
        )

    def _at(self, across: float, up: float) -> tuple[float, float]:
        return (
            self.x + LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, across / self.right),
            self.y + HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(1.0, up / self.top),
        )

    def line(self, points: Sequence[tuple[float, float]], color: str) -> None:
        """A line through the points."""
        path = "L".join(f"{x:.1f},{y:.1f}" for x, y in (self._at(*point) for point in points))
        self.body.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.5"/>')

    def dot(self, across: float, up: float, color: str) -> None:
        """A point."""
        x, y = self._at(across, up)
        self.body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{color}"/>')


def picture(panels: Sequence[Panel], legend: Sequence[tuple[str, str]]) -> str:
    """The panels, three in a row, under a legend of names and colors."""
    width, height = COLUMNS * WIDTH, 40 + -(-len(panels) // COLUMNS) * HEIGHT
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui,sans-serif"'
        ' font-size="10" fill="#334155">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (name, color) in enumerate(legend):
        x = LEFT + number * 210
        body.append(
            f'<rect x="{x}" y="10" width="14" height="8" fill="{color}"/><text x="{x + 20}" y="18">{name}</text>'
        )
    return "\n".join([*body, *(line for panel in panels for line in panel.body), "</svg>", ""])


def tradeoffs(results: Results) -> str:
    """Activation peak, in percent of plain, against time added, in percent of a step; not of networks that failed."""
    panels = []
    for place, (name, entry) in enumerate(finished(results).items()):
        rows = rows_of(entry)
        whole = rows["plain"]["plan_nbytes"] or rows["plain"]["activation_nbytes"]
        ours = sorted((100 * p["overhead"], 100 * p["peak_nbytes"] / whole) for p in entry["points"])
        panel = Panel(place, name, 80, 100, ("time %", "memory %"))
        panel.line([(0.0, 100.0), *(point for point in ours if point[0] <= 80)], BLUE)
        for point in ours:
            panel.dot(*point, BLUE)
        theirs = rows[STRATEGY]
        panel.dot(100 * theirs["overhead"], 100 * theirs["plan_nbytes"] / whole, RED)
        published = published_at(name, entry["input"])
        if published is not None:
            panel.dot(100 * published.overhead, 100 * published.remaining, GREY)
        panels.append(panel)
    legend = (("ours", BLUE), ("ogc strategy, run here", RED), ("OGC, as published", GREY))
    return picture(panels, legend)
