"""Decisions that need somewhat more than a budget, with a few more recomputations until they fit."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Model
from ..problem import Scope
from ..schedule import StepKind, lower
from ..simulate import simulate
from ..solution import Decisions

_ROUNDS, _TRIED, _DEEPEST = 60, 12, 4
"""Recomputations that are added at most, storages that are tried for each, and ops of one recomputation."""


def into_budget(model: Model, decisions: Decisions, scope: Scope, limit_nbytes: int) -> Decisions | None:
    """``decisions`` with recomputations added until the peak is within the limit; None if that is not found.

    Each round lets go of one storage over the peak: of the largest that are alive there and not read, the one whose
    recomputation before its next use leaves the fewest bytes above the limit, summed over all steps.
    """
    over = _over(model, decisions, scope, limit_nbytes)
    for _ in range(_ROUNDS):
        if not over:
            return decisions
        trials = [(_over(model, trial, scope, limit_nbytes), trial) for trial in _changed(model, decisions, scope)]
        best, decisions = min(trials, key=lambda trial: (trial[0], len(trial[1].sequence)), default=(over, decisions))
        if best >= over:
            return None
        over = best
    return None


def _series(model: Model, decisions: Decisions, scope: Scope) -> tuple[int, ...]:
    timeline = simulate(model.training, model.costs, lower(model.training, decisions))
    return tuple(timeline.total_nbytes if scope is Scope.TOTAL else timeline.activation_nbytes)


def _over(model: Model, decisions: Decisions, scope: Scope, limit_nbytes: int) -> int:
    """The bytes above the limit, summed over all steps."""
    return sum(max(0, nbytes - limit_nbytes) for nbytes in _series(model, decisions, scope))


def _changed(model: Model, decisions: Decisions, scope: Scope) -> Iterator[Decisions]:
    """Decisions that recompute one more storage after the peak, or with it what it is made of."""
    graph, sequence = model.training, decisions.sequence
    series = _series(model, decisions, scope)
    peak = series.index(max(series))
    alive, position = set[int](), -1
    alive_before: list[frozenset[int]] = []
    at_peak = -1
    for index, step in enumerate(lower(graph, decisions)):
        if step.kind is not StepKind.FREE:
            alive_before.append(frozenset(alive))
            position += 1
        if step.kind in (StepKind.FORWARD, StepKind.RECOMPUTE):
            alive.update(graph.ops[step.index].writes)
        elif step.kind is StepKind.FREE and not step.random_state:
            alive.discard(step.index)
        if index == peak:
            at_peak = position
    producer = graph.producer
    reads = [_reads(model, entry) for entry in sequence]
    held = set(graph.outputs) | reads[at_peak]
    idle = sorted(alive_before[at_peak] - held, key=lambda storage: -graph.storages[storage].nbytes)
    for storage in idle[:_TRIED]:
        use = next((at for at in range(at_peak + 1, len(sequence)) if storage in reads[at]), None)
        if use is None:
            continue
        runs = [producer[storage]]
        while len(runs) <= _DEEPEST and not any(graph.ops[op].once for op in runs):
            yield Decisions((*sequence[:use], *sorted(set(runs)), *sequence[use:]))
            missing = {s for op in runs for s in graph.ops[op].reads} - alive_before[use]
            missing = {producer[s] for s in missing} - set(runs)
            if not missing:
                break
            runs += missing


def _reads(model: Model, entry: int) -> set[int]:
    op = model.training.ops[max(entry, ~entry)]
    if entry >= 0:
        return set(op.reads)
    return set() if op.backward is None else set(op.backward.reads)
