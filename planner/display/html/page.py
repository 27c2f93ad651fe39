"""The report on a plan as one page: figures, charts and tables with their style and script inside."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files

from ...pipeline import checked
from ...plan_file.record import Plan
from ...problem import Scope
from ...units import format_both, format_nbytes, format_ns, percent
from ..plan_report import (
    FOLDED,
    SCOPES,
    budget_line,
    not_covered,
    part_label,
    parts_at_peak,
    proof_lines,
    search_line,
    source_line,
    timed_by,
    trained_by,
)
from .chart import MemoryChart
from .frontier_chart import frontier_section, peak_nbytes
from .markup import as_json, short, shown, table, terms
from .memory_stack import KINDS, StepMemory
from .page_data import keyed, page_data
from .tables import alive_at_peak, grouped, module_table, peak_table


def report(plan: Plan, frontier: Sequence[Plan] = ()) -> str:
    """The report on a plan as one HTML page, which needs no network and no other file.

    All figures come from the plan and from replays of it and of the step that stores everything.

    Args:
        plan: the plan to show.
        frontier: plans of the same step for other budgets, which are charted beside it.

    Returns:
        The page, under 3 MB for a plan of 10,000 ops.

    Raises:
        PlanMismatchError: the plan does not keep what it promises.

    Example:
        >>> page = report(plan(load_model("model.onnx"), "80%"))
        >>> page.startswith("<!doctype html>"), "https://" in page
        (True, False)
    """
    found = checked(plan.graph, plan.costs, plan)
    points = frontier if any(point is plan for point in frontier) else (*frontier, plan)
    memories = [StepMemory(plan.graph, plan.costs, schedule) for schedule in (plan.schedule, found.store_all[0])]
    charts = {scope: [MemoryChart(memory, scope) for memory in memories] for scope in Scope}
    floor = found.floors[Scope(plan.budget.scope)].describe()
    parts = [parts_at_peak(plan, timeline) for timeline in (plan.timeline, found.store_all[1])]
    script, style = (files(__package__).joinpath(f"page.{kind}").read_text("utf-8") for kind in ("js", "css"))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    name = shown(short(plan.model.file))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{name}</title>\n<style>{style}</style></head>\n<body>'
        f"<header><h1>{name}</h1><p>{shown(plan.choices)}</p></header>\n<main>"
        f"{frontier_section(points, plan) if frontier else ''}{_headline(plan)}{_memory(plan, charts)}"
        f"{_search()}{_tables(plan, memories[0])}{_details(plan, parts, floor)}</main>\n"
        f'<script type="application/json" id="data">{as_json(page_data(plan, keyed(charts)))}</script>\n'
        f"<script>{script}</script></body></html>\n"
    )


def frame_of(plan: Plan) -> str:
    """The report for a notebook, in a frame of its own: its style and script touch nothing outside of it."""
    return (
        f'<iframe srcdoc="{escape(report(plan))}" sandbox="allow-scripts" title="plan" '
        'style="width:100%;height:44rem;border:0"></iframe>'
    )


def _headline(plan: Plan) -> str:
    scope = plan.budget.scope
    total, peak = scope == Scope.TOTAL.value, peak_nbytes(plan, scope)
    whole = plan.peak.store_all_total_nbytes if total else plan.peak.store_all_activation_nbytes
    proven = plan.certificate.bound_class or not plan.time.recompute_ns
    gap = "no bound" if not proven else percent(plan.gap) if plan.gap > 0 else "none: optimal"
    cards = (
        ("budget", format_nbytes(plan.budget.nbytes), f"{plan.budget.text}, for the {SCOPES[scope]}"),
        (f"{SCOPES[scope]}, planned", format_nbytes(peak), f"{percent(peak / max(1, whole))} of store-all's"),
        ("storing everything", format_nbytes(whole), f"a step of {format_ns(plan.time.store_all_ns)}"),
        ("added time", f"+{percent(plan.time.overhead)}", f"{format_ns(plan.time.recompute_ns)} of recomputation"),
        ("proven gap", gap, "of a step, to the best plan of the class below"),
    )
    boxes = "".join(
        f"<div><h3>{shown(a)}</h3><strong>{shown(b)}</strong><p>{shown(c)}</p></div>\n" for a, b, c in cards
    )
    proof = shown(" ".join(proof_lines(plan)))
    return f'<section class="cards">{boxes}</section>\n<p class="proof"><b>Proof.</b> {proof}</p>\n'


def _memory(plan: Plan, charts: dict[Scope, list[MemoryChart]]) -> str:
    """The plan's memory beside that of the step that stores everything, for both scopes."""
    budgeted, switches, views = Scope(plan.budget.scope), "", ""
    for scope, pair in charts.items():
        kinds = [
            kind for i, kind in enumerate(pair[0].stack.kinds) if any(row[i] for c in pair for row in c.stack.nbytes)
        ]
        legend = "".join(f'<li><i class="k{KINDS.index(kind)}"></i>{kind.value}</li>' for kind in kinds)
        budget = plan.budget.nbytes if scope is budgeted else None
        top = round(1.05 * max(budget or 0, *(chart.stack.peak_nbytes for chart in pair), 1))
        drawn = "".join(
            chart.html(f"{key}-{scope.value}", label, top, budget)
            for chart, key, label in zip(pair, ("plan", "all"), ("plan", "store-all"), strict=True)
        )
        on, name = " checked" if scope is budgeted else "", "everything" if scope is Scope.TOTAL else "activations"
        switches += (
            f'<input type="radio" name="scope" id="see-{scope.value}"{on}><label for="see-{scope.value}">{name}</label>'
        )
        views += f'<div class="view see-{scope.value}"><ul class="legend">{legend}</ul>\n'
        views += f'<div class="pair">{drawn}</div></div>\n'
    return (
        "<section><h2>Memory over the step</h2><p>A step is one run of an op: forward, recomputation or backward. "
        "Point at a column, or focus a chart and use the arrow keys, Home, End, Page Up, Page Down, and p for the "
        f"peak. A column shows the highest of its steps.</p>\n{switches}{views}</section>\n"
    )


def _search() -> str:
    return (
        '<section class="search"><h2><label for="search">Find an op or a tensor</label></h2>'
        '<input id="search" type="search" placeholder="part of a name, an op type or a module" autocomplete="off">'
        '<p id="count" role="status"></p><ul id="hits"></ul></section>\n'
    )


def _tables(plan: Plan, memory: StepMemory) -> str:
    what, groups = grouped(plan)
    named = SCOPES[plan.budget.scope]
    return (
        f"<section><h2>Alive at the {named}</h2>{peak_table(alive_at_peak(plan, memory, Scope(plan.budget.scope)))}"
        f"</section>\n<section><h2>Kept and recomputed</h2><p>By {shown(what)}. Kept: alive from the forward into the "
        f"backward. Recomputed: made again instead, counted once.</p>{module_table(plan, groups)}</section>\n"
    )


def _details(plan: Plan, parts: list[dict[str, int]], floor: str) -> str:
    peak, model = plan.peak, plan.model
    activations = (peak.activation_nbytes, peak.store_all_activation_nbytes, peak.floor_activation_nbytes)
    total = (peak.total_nbytes, peak.store_all_total_nbytes, peak.floor_total_nbytes)
    rows = [["activation peak", *map(format_both, activations)], ["total peak, of which", *map(format_both, total)]]
    rows += [
        [part_label(part), format_both(nbytes), format_both(parts[1][part]), ""] for part, nbytes in parts[0].items()
    ]
    lines = [("budget", budget_line(plan)), ("covers", plan.covers), ("floor set by", floor)]
    lines += [("timed by", timed_by(plan.time.source)), ("search", search_line(plan.certificate))]
    lines += [("trained by", trained_by(plan))] if trained_by(plan) else []
    lines += [("annotations", source_line(model.annotations))] if model.annotations is not None else []
    lines.append(("not covered", "; ".join(not_covered(plan.graph, plan.budget.optimizer))))
    lines += [("warning" if FOLDED in text else "assumed", text) for text in model.assumed]
    lines += [("note", text) for text in plan.certificate.other_notes]
    return (
        f"<section><h2>Peaks</h2>{table(('', 'plan', 'store-all', 'floor'), rows)}</section>\n"
        f"<section><h2>What this holds for</h2>{terms(lines)}</section>\n"
    )
