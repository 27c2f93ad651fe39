"""Draw which saved tensors a step holds, step by step, as an SVG: storing everything beside a plan.

The network is a chain of convolutions, small enough that every cell can be seen.
"""

from __future__ import annotations

from pathlib import Path

from ogc_plan.planner import load_model, plan
from ogc_plan.planner.model import store_all_timeline
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.schedule import Schedule, StepKind

from models.graphs.net import Net

BUDGET = "70%"
CELL, LEFT, TOP, GAP = 11, 40, 66, 90
ALIVE, COLOURS = "#bfdbfe", {StepKind.FORWARD: "#1d4ed8", StepKind.RECOMPUTE: "#ea580c", StepKind.BACKWARD: "#64748b"}
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui,sans-serif"'
    ' font-size="12" fill="#334155"><rect width="{width}" height="{height}" fill="#ffffff"/>'
)


def plan_of_chain(folder: Path) -> Plan:
    """The plan of the drawn network, whose file is written into ``folder``."""
    net = Net("chain")
    x = net.input("images", (8, 16, 64, 64))
    for _ in range(8):
        x = net.relu(net.conv(x, 16, 3))
    path = folder / "chain.onnx"
    path.write_bytes(net.model(net.classify(x, 10)).SerializeToString())
    return plan(load_model(path), BUDGET)


def draw(made: Plan) -> str:
    """The SVG of one plan: a row is a step in time, a column a storage in forward order."""
    reference, timeline = store_all_timeline(made.graph, made.costs)
    panels = (
        ("store-all", reference, max(timeline.activation_nbytes)),
        (f"budget {BUDGET}", made.schedule, made.peak.activation_nbytes),
    )
    rows = max(sum(step.kind is not StepKind.FREE for step in schedule) for _, schedule, _ in panels)
    columns = len(made.graph.storages)
    width, height = LEFT + 2 * columns * CELL + GAP + 20, TOP + rows * CELL + 20
    body = [_HEAD.format(width=width, height=height)]
    legend = [(ALIVE, "alive"), (COLOURS[StepKind.FORWARD], "computed"), (COLOURS[StepKind.RECOMPUTE], "recomputed"),
              (COLOURS[StepKind.BACKWARD], "backward")]  # fmt: skip
    for number, (colour, text) in enumerate(legend):
        x = LEFT + 105 * number
        body.append(f'<rect x="{x}" y="12" width="{CELL}" height="{CELL}" fill="{colour}"/>')
        body.append(f'<text x="{x + 17}" y="22">{text}</text>')
    for number, (title, schedule, peak) in enumerate(panels):
        left = LEFT + number * (columns * CELL + GAP)
        body.append(
            f'<text x="{left}" y="{TOP - 22}" font-weight="600">{title}: peak {(peak or 0) / 1e6:.1f} MB</text>'
        )
        body.append(f'<text x="{left}" y="{TOP - 7}">storages in forward order →</text>')
        body.append(f'<text transform="translate({left - 26},{TOP + 4}) rotate(90)">steps of the schedule →</text>')
        body += _cells(made, schedule, left)
    return "\n".join([*body, "</svg>", ""])


def _cells(made: Plan, schedule: Schedule, left: int) -> list[str]:
    """One rectangle per alive or written storage and step, and the kind of each step at the left."""
    alive: set[int] = set()
    cells, row = [], -1

    def cell(column: float, colour: str) -> str:
        x, y = left + column * CELL, TOP + row * CELL
        return f'<rect x="{x:g}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}"/>'

    for step in schedule:
        if step.kind is StepKind.FREE:
            alive.discard(step.index)
            continue
        row += 1
        written = () if step.kind is StepKind.BACKWARD else made.graph.ops[step.index].writes
        alive.update(written)
        cells.append(cell(-1.5, COLOURS[step.kind]))
        cells += [cell(storage, COLOURS[step.kind] if storage in written else ALIVE) for storage in sorted(alive)]
    return cells
