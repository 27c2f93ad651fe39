"""The tables of a report: what is alive at the peak, and what is kept and recomputed in which module."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from ...arena.step_intervals import LifeKind
from ...plan_file.record import Plan
from ...problem import Scope
from ...schedule import StepKind
from ...training_graph import TrainingGraph
from ...units import counted, format_nbytes, format_ns, percent
from .markup import short, shown, table
from .memory_stack import Kind, StepMemory

MOST_ROWS = 100
"""A table shows at most so many of the largest and sums up the others."""
MOST_GROUPS = 40
"""Modules are grouped at the deepest level that has at most so many."""
_NO_MODULE = "(no module recorded)"


def modules_of_ops(plan: Plan) -> tuple[str, ...]:
    """The path of the module that each op comes from, "" where none is recorded."""
    known, storages = dict(plan.modules), plan.graph.storages
    return tuple(next((known[storages[s].name] for s in op.writes if storages[s].name in known), "")
                 for op in plan.graph.ops)  # fmt: skip


def tensors_of(graph: TrainingGraph, storage: int) -> str:
    """The names of the tensors that live in a storage, as one line."""
    return ", ".join(dict.fromkeys((graph.storages[storage].name, *(graph.aliases[storage] if graph.aliases else ()))))


@dataclass(frozen=True, slots=True)
class Alive:
    """An allocation at the peak: ``steps`` are the computations from the one that makes it to its last."""

    kind: Kind
    names: str
    nbytes: int
    op: str = ""
    module: str = ""
    steps: str = "the whole step"


def alive_at_peak(plan: Plan, memory: StepMemory, scope: Scope) -> list[Alive]:
    """Everything that a budget of ``scope`` counts at its peak, the largest first."""
    stack, steps, modules = memory.stack(scope), plan.schedule.steps, modules_of_ops(plan)
    at, found = stack.peak, []
    moment, nth = stack.moments[at], {number: position + 1 for position, number in enumerate(stack.steps)}
    last = 0
    before = [last := nth.get(number, last) for number in range(len(steps))]  # a free belongs to what it follows
    for life in memory.lives.lives:
        kind = memory.kind_of(life)
        if life.begin <= moment < life.end and kind in stack.kinds and life.kind is not LifeKind.WORKSPACE:
            made = steps[life.first_step].index
            found.append(
                Alive(kind, ", ".join(life.names), life.nbytes, plan.graph.ops[made].name, modules[made],
                      f"{before[life.first_step]:,} to {before[life.last_step]:,}")
            )  # fmt: skip
    op = steps[stack.steps[at]].index
    workspace = stack.nbytes[at][stack.kinds.index(Kind.WORKSPACE)]
    found.append(Alive(Kind.WORKSPACE, "", workspace, plan.graph.ops[op].name, modules[op], f"{at + 1:,}"))
    if scope is Scope.TOTAL:
        found += [Alive(kind, "", nbytes) for kind, nbytes in memory.fixed().items()]
    return sorted((entry for entry in found if entry.nbytes), key=lambda entry: (-entry.nbytes, entry.names))


def peak_table(alive: list[Alive]) -> str:
    """The largest allocations at the peak; the rows add up to it. Modules have a column if any is recorded."""
    whole = max(1, sum(entry.nbytes for entry in alive))
    with_modules = any(entry.module for entry in alive)

    def row(names: str, kind: str, nbytes: int, op: str, module: str, steps: str) -> list[str]:
        cells = [names, kind, format_nbytes(nbytes), percent(nbytes / whole), op]
        return [*cells, *([module] if with_modules else []), steps]

    rows = [
        row(shown(short(entry.names)), entry.kind.value, entry.nbytes, shown(short(entry.op)),
            shown(short(entry.module)), entry.steps)
        for entry in alive[:MOST_ROWS]
    ]  # fmt: skip
    if rest := alive[MOST_ROWS:]:
        rows.append(row(f"{len(rest):,} more", "", sum(entry.nbytes for entry in rest), "", "", ""))
    rows.append(row("all of these", "", sum(entry.nbytes for entry in alive), "", "", ""))
    headings = ["tensors", "kind", "bytes", "share", "made by", *(["module"] if with_modules else []), "alive in steps"]
    return table(headings, rows, left=(0, 1, *range(4, len(headings) - 1)), summed=True)


@dataclass(slots=True)
class Group:
    """What one module keeps and recomputes."""

    kept_nbytes: int = 0
    recomputed_nbytes: int = 0
    recompute_ns: int = 0
    runs: int = 0


def grouped(plan: Plan) -> tuple[str, dict[str, Group]]:
    """What the groups are, and what each keeps and recomputes.

    They are the modules of the plan, or its op types where no module is recorded. Kept is what lives from the forward
    into the backward. Recomputed is what does not and has an op that runs again; it counts once. Groups
    without either are left out.
    """
    ops, kept = plan.graph.ops, set(plan.kept)
    paths = modules_of_ops(plan)
    if any(paths):
        depth, names = _grouping(paths)
        what = f"module{f' (the first {depth} parts of its path)' if depth else ''}"
    else:
        what, names = "op type (no modules are recorded)", tuple(op.op_type for op in ops)
    runs = Counter(step.index for step in plan.schedule if step.kind is StepKind.RECOMPUTE)
    groups: dict[str, Group] = defaultdict(Group)
    for index, op in enumerate(ops):
        group = groups[names[index] or _NO_MODULE]
        sizes = [(plan.graph.storages[s].name in kept, plan.graph.storages[s].nbytes) for s in op.writes]
        group.kept_nbytes += sum(nbytes for stays, nbytes in sizes if stays)
        if runs[index]:
            group.recomputed_nbytes += sum(nbytes for stays, nbytes in sizes if not stays)
            group.recompute_ns += runs[index] * plan.costs[index].forward_ns
            group.runs += runs[index]
    return what, {name: group for name, group in groups.items() if group != Group()}


def _grouping(paths: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Paths cut at the deepest level with few enough groups, and that level; 0 where none is cut."""
    parts = [re.split(r"(?<=[./])", path) for path in paths]
    deepest = max(map(len, parts))
    for depth in range(deepest, 0, -1):
        cut = tuple("".join(part[:depth]).rstrip("./") for part in parts)
        if len(set(cut)) <= MOST_GROUPS or depth == 1:
            return (depth if depth < deepest else 0), cut
    return 0, paths


def module_table(plan: Plan, groups: dict[str, Group]) -> str:
    """Bytes kept and recomputed beside the time of recomputation, by group; the largest first."""
    order = sorted(groups.items(), key=lambda entry: (-entry[1].kept_nbytes - entry[1].recomputed_nbytes, entry[0]))
    widest = max((max(g.kept_nbytes, g.recomputed_nbytes) for g in groups.values()), default=0)
    slowest, whole = max((g.recompute_ns for g in groups.values()), default=0), max(1, plan.time.recompute_ns)

    def cells(name: str, group: Group, bars: bool = True) -> list[str]:
        def bar(text: str, value: int, most: int, style: str) -> str:
            width = 6 * value / most if most and bars else 0
            return f'{text}<i class="bar {style}" style="width:{width:.2f}rem"></i>'

        return [
            name,
            bar(format_nbytes(group.kept_nbytes), group.kept_nbytes, widest, "k4"),
            bar(format_nbytes(group.recomputed_nbytes), group.recomputed_nbytes, widest, "k6"),
            bar(format_ns(group.recompute_ns), group.recompute_ns, slowest, "time"),
            percent(group.recompute_ns / whole),
            f"{group.runs:,}",
        ]

    rows = [cells(shown(short(name)), group) for name, group in order[:MOST_ROWS]]
    if len(order) > MOST_ROWS:
        rows.append(
            cells(f"{counted(len(order) - MOST_ROWS, 'other')}", _sum([g for _, g in order[MOST_ROWS:]]), False)
        )
    rows.append(cells("all", _sum(list(groups.values())), False))
    return table(("", "kept", "recomputed", "recomputation time", "share", "runs"), rows, summed=True)


def _sum(groups: list[Group]) -> Group:
    return Group(
        sum(g.kept_nbytes for g in groups),
        sum(g.recomputed_nbytes for g in groups),
        sum(g.recompute_ns for g in groups),
        sum(g.runs for g in groups),
    )
