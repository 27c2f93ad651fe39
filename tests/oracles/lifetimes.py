"""A second opinion on bytes and time: every object gets a lifetime in a table, and every tick sums the table.

Written from the memory model alone. The replay in simulate.py walks a schedule once and counts references;
this file never replays: it derives for each storage copy, generator state and gradient allocation the ticks at
which it is born and dies, and then adds up whatever covers each tick. Slow, plain, and meant to be read.

A step is cut into ticks:
    free              before | after
    forward           before | during | after
    backward          before | contributions made | one per fan-in sum ... | one per sum spelled out ... | after
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ogc_plan.planner.schedule import Schedule, Step, StepKind
from ogc_plan.planner.training_graph import BackwardOp, OpCost, TrainingGraph

RUNS = (StepKind.FORWARD, StepKind.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Recount:
    """Per step: the most bytes during it (total, activations) and the bytes after it; and times in ns."""

    total_nbytes: tuple[int, ...]
    activation_nbytes: tuple[int, ...]
    after_nbytes: tuple[int, ...]
    time_ns: int
    recompute_ns: int

    @property
    def peak_total_nbytes(self) -> int:
        return max(self.total_nbytes)

    @property
    def peak_activation_nbytes(self) -> int:
        return max(self.activation_nbytes)


@dataclass(slots=True)
class _Row:
    """One object in memory during the ticks ``birth <= tick < death``."""

    nbytes: int
    birth: int
    death: int
    final: bool = False  # the allocation that ends up as a parameter's gradient
    activation_nbytes: int | None = None  # what activations count of it, where that is not nbytes


def recount(graph: TrainingGraph, costs: tuple[OpCost, ...], schedule: Schedule) -> Recount:
    """Bytes per step and times of a legal schedule. Legality itself is not checked."""
    steps = schedule.steps
    sums = _sums_per_step(graph, steps)
    ticks = _ticks(graph, steps, sums)
    end = ticks[-1].stop
    rows = [*_storage_rows(graph, steps, ticks, end), *_state_rows(graph, steps, ticks, end)]
    rows += _transient_rows(graph, costs, steps, ticks)
    rows += _gradient_rows(graph, steps, ticks, sums)
    held = [graph.stationary.total_nbytes] * end
    counted = [0] * end
    for row in rows:
        for tick in range(row.birth, row.death):
            held[tick] += row.nbytes
            if not row.final:
                counted[tick] += row.nbytes if row.activation_nbytes is None else row.activation_nbytes
    # "after" of a step only says what remains; the next step's "before" is the same moment.
    during = [span if len(span) == 1 else range(span.start, span.stop - 1) for span in ticks]
    forward_ns = sum(costs[step.index].forward_ns for step in steps if step.kind in RUNS)
    backward_ns = sum(costs[step.index].backward_ns for step in steps if step.kind is StepKind.BACKWARD)
    return Recount(
        tuple(max(held[tick] for tick in span) for span in during),
        tuple(max(counted[tick] for tick in span) for span in during),
        tuple(held[span.stop - 1] for span in ticks),
        forward_ns + backward_ns,
        sum(costs[step.index].forward_ns for step in steps if step.kind is StepKind.RECOMPUTE),
    )


def _sums_per_step(graph: TrainingGraph, steps: Sequence[Step]) -> dict[tuple[int, int], int]:
    """Contributions that meet an earlier one, (step, position among its gives) -> number of the sum in the step."""
    found: dict[tuple[int, int], int] = {}
    met = set(graph.seeds)
    for number, step in enumerate(steps):
        if step.kind is not StepKind.BACKWARD:
            continue
        in_step = 0
        for position, edge in enumerate(_backward(graph, step).gives):
            if edge.gradient in met:
                found[number, position] = in_step
                in_step += 1
            met.add(edge.gradient)
    return found


def _ticks(graph: TrainingGraph, steps: Sequence[Step], sums: dict[tuple[int, int], int]) -> list[range]:
    spans: list[range] = []
    start = 0
    for number, step in enumerate(steps):
        length = 2 if step.kind is StepKind.FREE else 3
        if step.kind is StepKind.BACKWARD:
            length += sum(1 for which, _ in sums if which == number) + len(_backward(graph, step).sums)
        spans.append(range(start, start + length))
        start += length
    return spans


def _storage_rows(graph: TrainingGraph, steps: Sequence[Step], ticks: list[range], end: int) -> list[_Row]:
    """Each storage from the run that makes it to its free; a run while it lives extends nothing."""
    rows = []
    for storage, kept in enumerate(graph.storages):
        runs = [n for n, step in enumerate(steps) if step.kind in RUNS and storage in graph.ops[step.index].writes]
        frees = [
            n
            for n, step in enumerate(steps)
            if step.kind is StepKind.FREE and step.index == storage and not step.random_state
        ]
        previous_free = -1
        for free in [*frees, len(steps)]:
            made = [run for run in runs if previous_free < run < free]
            if made:
                death = ticks[free].start + 1 if free < len(steps) else end
                rows.append(_Row(kept.nbytes, ticks[made[0]].start + 1, death))
                for again in made[1:]:  # the duplicate lives during that step only
                    rows.append(_Row(kept.nbytes, ticks[again].start + 1, ticks[again].start + 2))
            previous_free = free
    return rows


def _state_rows(graph: TrainingGraph, steps: Sequence[Step], ticks: list[range], end: int) -> list[_Row]:
    """The generator state of each random op that is recomputed: from its first run to its free."""
    rows = []
    for index in sorted({step.index for step in steps if step.kind is StepKind.RECOMPUTE}):
        nbytes = graph.ops[index].random_state_nbytes
        if nbytes:
            first = next(n for n, s in enumerate(steps) if s.kind is StepKind.FORWARD and s.index == index)
            freed = [n for n, s in enumerate(steps) if s.random_state and s.index == index]
            rows.append(_Row(nbytes, ticks[first].start + 1, ticks[freed[0]].start + 1 if freed else end))
    return rows


def _transient_rows(
    graph: TrainingGraph, costs: tuple[OpCost, ...], steps: Sequence[Step], ticks: list[range]
) -> list[_Row]:
    """Workspace, present during its own step: while an op computes, not while sums are made."""
    rows = []
    for step, span in zip(steps, ticks, strict=True):
        if step.kind is not StepKind.FREE:
            cost = costs[step.index]
            backward = step.kind is StepKind.BACKWARD
            nbytes = cost.backward_workspace_nbytes if backward else cost.forward_workspace_nbytes
            part = cost.backward_activation_workspace_nbytes if backward else None
            rows.append(_Row(nbytes, span.start + 1, span.start + 2, activation_nbytes=part))
    return rows


def _gradient_rows(
    graph: TrainingGraph, steps: Sequence[Step], ticks: list[range], sums: dict[tuple[int, int], int]
) -> list[_Row]:
    """Follow each gradient through its contributions: operand + operand -> sum, until it is taken.

    A gradient is a row of *terms*: what the caller hands in, and one per contribution. Term 0 is the
    first value; every further term is added to the value so far and gives the next value. A gradient
    that a sum spelled out makes is one row. What is last taken or added up dies there, a parameter's only where
    it ends.
    """
    end = ticks[-1].stop
    forwards = [n for n, step in enumerate(steps) if step.kind is StepKind.FORWARD]
    after_forward = [n for n in range(max(forwards, default=-1) + 1, len(steps)) if steps[n].kind is not StepKind.FREE]
    backwards = [n for n, step in enumerate(steps) if step.kind is StepKind.BACKWARD]
    terms: dict[int, list[tuple[int, int]]] = {}  # gradient -> (step, position among its gives)
    aliased: dict[int, set[int]] = {}
    for number in backwards:
        for position, edge in enumerate(_backward(graph, steps[number]).gives):
            terms.setdefault(edge.gradient, []).append((number, position))
            if edge.alias_of is not None:
                aliased.setdefault(edge.gradient, set()).add(edge.alias_of)
    taken: dict[int, int] = {}
    made: dict[int, int] = {}  # gradient -> the tick of the spelled-out sum that makes it
    for number in backwards:
        for gradient in _backward(graph, steps[number]).takes:
            taken[gradient] = ticks[number].start + 2  # gone before the sums
        spelled_out = _backward(graph, steps[number]).sums
        for summed, tick in zip(spelled_out, range(ticks[number].stop - 1 - len(spelled_out), end), strict=False):
            made[summed.result] = tick
            taken.update((gradient, tick + 1) for gradient in summed.operands)
    ended = {gradient for number in backwards for gradient in _backward(graph, steps[number]).ends}
    for gradient, kept in enumerate(graph.gradients):
        if gradient in ended:  # until all is done in the last backward that has to do with it
            touching = [number for number in backwards if _touches(_backward(graph, steps[number]), gradient)]
            taken[gradient] = ticks[touching[-1]].stop - 1
        elif kept.parameter:
            taken[gradient] = end

    rows: list[_Row] = []
    value: dict[int, int] = {}  # gradient -> row of its final value
    uses: list[list[tuple[int, int]]] = []  # per row, the intervals of everything that lives in it

    def new(gradient: int, birth: int, death: int) -> int:
        rows.append(_Row(graph.gradients[gradient].nbytes, birth, death))
        uses.append([(birth, death)])
        return len(rows) - 1

    def follow(gradient: int) -> None:
        """Lay out all values of one gradient; those it may alias are laid out before."""
        last = taken.get(gradient, end)
        mine = terms.get(gradient, [])
        present = -1
        if gradient in made:
            present = new(gradient, made[gradient], last)
        if gradient in graph.seeds and after_forward:
            first_meeting = _sum_tick(ticks, sums, mine[0]) + 1 if mine else last
            present = new(gradient, ticks[after_forward[0]].start, first_meeting)
        for turn, (number, position) in enumerate(mine):
            edge = _backward(graph, steps[number]).gives[position]
            birth = ticks[number].start + 1
            met = (number, position) in sums
            later = mine[turn + 1 :]
            value_death = _sum_tick(ticks, sums, later[0]) + 1 if later else last
            death = _sum_tick(ticks, sums, (number, position)) + 1 if met else value_death
            if edge.alias_of is not None and edge.alias_of in value:
                term = value[edge.alias_of]
                uses[term].append((birth, death))
            else:
                term = new(gradient, birth, death)
            present = new(gradient, _sum_tick(ticks, sums, (number, position)), value_death) if met else term
        if present >= 0:
            value[gradient] = present
            if (mine or gradient in made) and graph.gradients[gradient].parameter:
                rows[present].final = True

    for gradient in _aliases_first(aliased, len(graph.gradients)):
        follow(gradient)
    for row, intervals in zip(rows, uses, strict=True):
        row.birth, row.death = min(birth for birth, _ in intervals), max(death for _, death in intervals)
    return rows


def _backward(graph: TrainingGraph, step: Step) -> BackwardOp:
    backward = graph.ops[step.index].backward
    assert backward is not None
    return backward


def _touches(backward: BackwardOp, gradient: int) -> bool:
    given = any(edge.gradient == gradient for edge in backward.gives)
    summed = any(gradient in (total.result, *total.operands) for total in backward.sums)
    return given or summed or gradient in (*backward.takes, *backward.ends)


def _sum_tick(ticks: list[range], sums: dict[tuple[int, int], int], which: tuple[int, int]) -> int:
    return ticks[which[0]].start + 2 + sums[which]


def _aliases_first(aliased: dict[int, set[int]], count: int) -> list[int]:
    """All gradients, each after those whose memory its contributions may share."""
    ordered: list[int] = []
    done: set[int] = set()
    for gradient in range(count):
        stack = [gradient]
        while stack:
            waiting = aliased.get(stack[-1], set()) - done
            if waiting:
                stack += sorted(waiting)
                continue
            top = stack.pop()
            if top not in done:
                done.add(top)
                ordered.append(top)
    return ordered


def deaths(graph: TrainingGraph, sequence: Sequence[int]) -> list[set[tuple[str, int]]]:
    """What may be freed at the earliest after each computation of ``sequence``.

    Entries are ("storage", index) and ("state", op). Found by looking, for every copy, from the computation
    that makes it ahead to the next one that makes it again: the last reader in between is where it dies.
    """
    freed: list[set[tuple[str, int]]] = [set() for _ in sequence]
    reads = [graph.ops[n].reads if n >= 0 else _backward(graph, Step(StepKind.BACKWARD, ~n)).reads for n in sequence]
    for storage in set(range(len(graph.storages))) - set(graph.outputs):
        made = [n for n, entry in enumerate(sequence) if entry >= 0 and storage in graph.ops[entry].writes]
        for birth, again in zip(made, [*made[1:], len(sequence)], strict=True):
            readers = [n for n in range(birth + 1, again + 1) if n < len(sequence) and storage in reads[n]]
            freed[readers[-1] if readers else birth].add(("storage", storage))
    for index, op in enumerate(graph.ops):
        runs = [n for n, entry in enumerate(sequence) if entry == index]
        if op.random_state_nbytes and len(runs) > 1:
            freed[runs[-1]].add(("state", index))
    return freed
