"""`ogc-plan compare`: every strategy on one graph, replayed by one simulator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..planner.annotations import Source
from ..planner.display.layout import field, path_of, plain_table
from ..planner.display.plan_report import print_warnings, source_line, timed_by
from ..planner.display.terminal import Activity
from ..planner.model import Model
from ..planner.pipeline import replay, replays_of, resolve_budget
from ..planner.problem import Problem, Scope
from ..planner.solution import Status
from ..planner.solver import CERTIFIED, Solver
from ..planner.strategies import FIXED, STRATEGIES
from ..planner.units import format_nbytes, format_ns, parse_budget, percent

if TYPE_CHECKING:
    from rich.console import Console

    from ..planner.strategies.optimal.problem_cache import ProblemCache

DEFAULT_BUDGETS = ("80%", "60%", "40%")
BUDGETED = tuple(name for name in STRATEGIES if name not in FIXED)
FIXED_PLANS = ("keep-all", "speed", "segments:2", "segments:4", "sqrt", "ogc")


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy at one budget. Peaks and times are None if it has no plan within the budget.

    ``optimal_ns`` is the recomputation time of `optimal` within this row's activation peak. ``bounded`` says that the
    strategy proves a bound, ``infeasible`` that no strategy has a plan: the budget is below the proven floor.
    """

    strategy: str
    budget: str
    activation_nbytes: int | None = None
    total_nbytes: int | None = None
    recompute_ns: int | None = None
    bound_ns: int = 0
    bounded: bool = False
    seconds: float = 0.0
    optimal_ns: int | None = None
    infeasible: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, or those that were finished before Ctrl-C, and the store-all step that they are compared with."""

    model: str
    store_all_activation_nbytes: int
    store_all_ns: int
    source: str
    rows: tuple[Row, ...]
    annotations: Source | None = None
    assumed: tuple[str, ...] = ()
    stopped_early: bool = False


def compare_strategies(
    model: Model, budgets: Sequence[str], *, scope: str | None, time_limit_s: float | None, seed: int, effort: str,
    spinner: Activity,
) -> Comparison:  # fmt: skip
    """Run every strategy; for each row also `optimal` within that row's activation peak.

    Raises KeyboardInterrupt where Ctrl-C comes before a row is finished; later it ends the rows.
    """
    store_all, known = model.store_all(), replays_of(model)
    problems: dict[Scope, Problem] = {}
    prepared: dict[Scope, Problem | ProblemCache] = {}

    def run(which: Scope, name: str, budget: str, limit: int | None, *, again: bool = False) -> Row:
        if which not in problems:
            problems[which] = model.problem(which)
            prepared[which] = Solver().prepared(problems[which])
        where = f"{name} at {budget}" if budget else name
        spinner.now(where)
        problem = problems[which]
        given: Problem | ProblemCache = problem
        solver = Solver(name, time_limit_s=time_limit_s, seed=seed)
        if name == CERTIFIED:
            limits = spinner.limits(problem.store_all_ns, f"at {budget}: ", keeps="rows")
            solver = replace(solver, effort=effort, limits=limits)
            given = prepared[which] if again else problem
        started = time.perf_counter()
        solution = solver.solve(given, limit)
        below = limit is not None and (limit < problem.floor_nbytes or solution.status is Status.INFEASIBLE)
        row = Row(name, budget, seconds=time.perf_counter() - started, infeasible=below)
        if solution.decisions is None:
            return row
        _, timeline = replay(problem, solution, known)
        return replace(
            row,
            activation_nbytes=timeline.peak_activation_nbytes,
            total_nbytes=timeline.peak_total_nbytes,
            recompute_ns=timeline.recompute_ns,
            bound_ns=solution.bound_ns,
            bounded=bool(solution.bound_class),
        )

    @cache
    def optimal_ns(at: int) -> int | None:
        """The recomputation time of `optimal` within a peak; all peaks share one preparation."""
        return run(inner, CERTIFIED, format_nbytes(at), at, again=True).recompute_ns

    def with_optimal(row: Row) -> Row:
        """The row with the recomputation time of `optimal` within its peak."""
        if row.strategy == CERTIFIED or row.activation_nbytes is None:
            return row
        return replace(row, optimal_ns=0 if row.recompute_ns == 0 else optimal_ns(row.activation_nbytes))

    inner = Scope.ACTIVATIONS
    run(inner, "keep-all", "", None)  # loads compiled code, which no row is to be charged for
    asked: list[tuple[Scope, str, str, int | None]] = [(inner, name, "", None) for name in FIXED_PLANS]
    for text in dict.fromkeys(budgets):
        limit, chosen = resolve_budget(parse_budget(text), scope, store_all)
        asked += [(chosen, name, text, limit) for name in BUDGETED]
    rows: list[Row] = []
    stopped = False
    try:
        for of_row in asked:
            rows.append(run(*of_row))
        for at, row in enumerate(rows):
            rows[at] = with_optimal(row)
    except KeyboardInterrupt:
        stopped = True
        if not rows:
            raise
    return Comparison(
        model.path, store_all.peak_activation_nbytes, store_all.time_ns, model.time_source, tuple(rows),
        model.annotations, tuple(model.training.assumed), stopped,
    )  # fmt: skip


def rows_as_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON data: bytes, ns, shares of a store-all step."""
    whole = max(1, comparison.store_all_ns)

    def shares(row: Row) -> dict[str, float | None]:
        return {
            "overhead": None if row.recompute_ns is None else row.recompute_ns / whole,
            "bound": row.bound_ns / whole if row.bounded else None,
            "gap": (row.recompute_ns - row.bound_ns) / whole if row.bounded and row.recompute_ns is not None else None,
            "optimal_overhead": None if row.optimal_ns is None else row.optimal_ns / whole,
        }

    data = asdict(comparison)
    data["rows"] = [{**asdict(row), **shares(row)} for row in comparison.rows]
    return data


def print_rows(out: Console, comparison: Comparison) -> None:
    """The comparison as a table: one line per strategy and budget."""
    table = plain_table("strategy", "budget", "peak", "of all", "overhead", "bound", "gap", "secs", "at best", gap=2)
    whole, everything = max(1, comparison.store_all_ns), max(1, comparison.store_all_activation_nbytes)
    previous = ""
    for row in comparison.rows:
        if row.budget != previous:
            table.add_section()
            previous = row.budget
        if row.activation_nbytes is None or row.recompute_ns is None:
            cells = ["infeasible" if row.infeasible else "no plan found", "", "", "", "", f"{row.seconds:.1f}", ""]
        else:
            cells = [
                format_nbytes(row.activation_nbytes),
                f"{row.activation_nbytes / everything:.1%}",
                percent(row.recompute_ns / whole),
                percent(row.bound_ns / whole) if row.bounded else "",
                percent((row.recompute_ns - row.bound_ns) / whole) if row.bounded else "",
                f"{row.seconds:.1f}",
                "" if row.optimal_ns is None else percent(row.optimal_ns / whole),
            ]
        table.add_row(Text(row.strategy), row.budget, *cells, style="bold" if row.strategy == "optimal" else "")
    field(out, "model", path_of(comparison.model, out))
    if comparison.annotations is not None:
        field(out, "annotations", source_line(comparison.annotations))
    print_warnings(out, comparison.assumed)
    if comparison.stopped_early:
        field(out, "stopped", "by Ctrl-C: these rows were finished, others and the rest of the last column were not")
    stored = format_nbytes(comparison.store_all_activation_nbytes)
    field(out, "store-all", f"{stored} of activations, {format_ns(comparison.store_all_ns)} a step")
    field(out, "timed by", timed_by(comparison.source))
    out.print()
    out.print(table)
    out.print()
    field(
        out,
        "",
        "peak: of activations, of all: of store-all's; overhead, bound, gap: of a store-all step; "
        "at best: the overhead of optimal within the peak of this row; "
        "infeasible: proven, the budget lies below the floor",
    )
