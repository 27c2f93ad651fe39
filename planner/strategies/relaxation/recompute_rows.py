"""Rows of the stage program for moments at which an op runs again.

What is made again between two stages may take a row of many ops, which peaks inside as a forward does: no stage
sees it. During the first run of an op j in the interval between stages q and q+1, with t a storage and i an op:

H[t]  t is alive
B[i]  i has run again in the interval before
A[i]  i runs again in it afterwards
X[i]  i runs more than once in it, which is paid once, whatever number of moments it is before and after

What is alive at stage q+1 was alive then, or was made after it; what was alive then was so at stage q, or was made
before it. Where j does not run in the interval all of H, B and A may be 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from .linear_program import LinearProgram
from .stage_program import Recomputation, StageProgram, Uses


@dataclass(frozen=True)
class Interval:
    """The backward positions that it ends with; E variables of the stages before and after it, R and X of its own.

    There is no stage after the last interval, and ``after`` empty.
    """

    covered: range
    before: dict[int, int]
    runs: dict[int, int]
    after: dict[int, int]
    twice: dict[int, int]


def add_recompute_stage(uses: Uses, made: StageProgram, budget_nbytes: int, position: int, op: int) -> None:
    """Add to ``made`` the rows of the first run of ``op`` in the interval of a backward ``position``, if it has any."""
    q = made.interval_of(position)
    if q < 0 or op not in made.runs[q]:
        return
    last = q + 1 == len(made.stages)
    end = len(uses.order) if last else made.stages[q + 1] + 1
    covered, after = range(made.stages[q] + 1, end), {} if last else made.alive[q + 1]
    interval = Interval(covered, made.alive[q], made.runs[q], after, made.twice.setdefault(q, {}))
    made.recomputations.append(recompute_rows(uses, made.program, budget_nbytes, interval, position, op))


def recompute_rows(
    uses: Uses, lp: LinearProgram, budget_nbytes: int, interval: Interval, position: int, op: int
) -> Recomputation:
    """Variables and rows of one moment, that of ``op``, which the interval may run."""
    problem, runs, run = uses.problem, interval.runs, interval.runs[op]
    producer, time = problem.producer.tolist(), problem.forward_ns.tolist()
    held: dict[int, int] = {}
    sooner, later = {i: lp.variable() for i in runs if i != op}, {i: lp.variable() for i in runs}

    def before(storage: int) -> list[tuple[int, int]]:
        """Terms that are at least 1 when a storage is alive at some time from the stage before to the moment."""
        return uses.available(storage, interval.before, sooner, producer)

    def since(storage: int) -> list[tuple[int, int]]:
        """Terms that are at least 1 when a storage is alive at some time from the moment to the stage after."""
        return uses.available(storage, {storage: then(storage)}, later, producer)

    def then(storage: int) -> int:
        if storage not in held:
            held[storage] = lp.variable()
        return held[storage]

    for i, variable in runs.items():
        if i not in interval.twice:
            interval.twice[i] = lp.variable(time[i])
        parts = [(-1, table[i]) for table in (sooner, later) if i in table]
        once = [] if i == op else [(1, variable)]  # the run of the moment itself
        lp.at_least(0, [*once, (1, interval.twice[i]), *parts])
        for part in parts:
            lp.at_least(0, [(1, variable), part])
        for storage in uses.reads[i]:
            lp.at_least(0, [*since(storage), (-1, later[i])])
            if i in sooner:
                lp.at_least(0, [*before(storage), (-1, sooner[i])])
    for storage, variable in interval.after.items():
        lp.at_least(-1, [*since(storage), (-1, run), (-1, variable)])
    entry = problem.graph.ops[op]
    for storage in dict.fromkeys((*entry.reads, *entry.writes)):
        if not uses.free[storage]:
            lp.at_least(0, [(1, then(storage)), (-1, run)])
    for storage, variable in held.items():
        if producer[storage] != op:
            lp.at_least(0, [*before(storage), (-1, variable)])
    used = problem.pinned_nbytes + int(problem.between_nbytes[interval.covered.start : interval.covered.stop].min())
    used += problem.costs[op].forward_workspace_nbytes + entry.random_state_nbytes
    if budget_nbytes < used:
        lp.at_least(0, [(-1, run)])
    else:
        uses.memory_row(lp, budget_nbytes - used, held)
    return Recomputation(position, op, held, sooner, later)
