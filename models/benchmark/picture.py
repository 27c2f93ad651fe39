"""Pictures of the benchmark as SVG: memory against time, and memory over a step, a small panel for each network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from models.benchmark.measure import STRATEGY, STRATEGY_TIME
from models.benchmark.published import published_at

Results = dict[str, dict[str, Any]]

COLUMNS, WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 3, 290, 190, 46, 30, 26, 12
GREY, BLUE, RED, GREEN = "#94a3b8", "#2563eb", "#dc2626", "#16a34a"


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


def _panels(results: Results, draw: Callable[[int, str, dict[str, Any]], Panel]) -> Iterator[Panel]:
    return (draw(place, name, entry) for place, (name, entry) in enumerate(results.items()))


def tradeoffs(results: Results) -> str:
    """Activation peak, in percent of plain, against time added, in percent of a step."""

    def draw(place: int, name: str, entry: dict[str, Any]) -> Panel:
        rows = {row["method"]: row for row in entry["rows"] if not row.get("error")}
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
        return panel

    legend = (("ours", BLUE), ("ogc strategy, run here", RED), ("OGC, as published", GREY))
    return picture(list(_panels(results, draw)), legend)


def timelines(results: Results) -> str:
    """Activation memory over one step: plain, the ogc strategy, and ours in no more time than that."""
    colors = {"plain": GREY, STRATEGY: RED, STRATEGY_TIME: BLUE}

    def draw(place: int, name: str, entry: dict[str, Any]) -> Panel:
        lines = entry["timelines"]
        end = max(line[-1][0] for line in lines.values())
        top = max(nbytes for line in lines.values() for _, nbytes in line) / 1e3
        panel = Panel(place, name, end, top, ("ms", "GB"))
        for method, line in lines.items():
            panel.line([(ms, nbytes / 1e3) for ms, nbytes in line], colors[method])
        return panel

    return picture(list(_panels(results, draw)), list(colors.items()))
