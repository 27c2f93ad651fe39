"""Checkmate's approximation: relax the retention matrix, round it at one half, complete the recomputations.

Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica and Gonzalez, "Checkmate: Breaking the Memory Wall with
Optimal Tensor Rematerialization" (MLSys 2020): S[t,i] says that value i is held into stage t, R[t,i] that it is
computed in stage t. Section 5 solves the linear relaxation, rounds S ("two-phase rounding") and then sets as few
R as S and the dependencies ask for. Rounding overshoots, so the relaxation gets (1 - epsilon) of the budget, 0.1
there; the released program tries the thresholds 0.1 to 0.9 and keeps the cheapest plan within the budget, as here.

What differs here:
- The forward runs once, in its order, and is not divided into stages; a stage is one backward step and the re-runs
  before it. Checkmate's stages are all steps of forward and backward, so it may recompute in the forward too.
- Where stages times ops exceed _WORK, a stage covers several backward steps, as few as that allows.
- The relaxation limits what the first backward of each stage and the start of the first hold; what is freed within
  a stage (their variables FREE and U) is left to epsilon, of which several are tried.
- No randomized rounding, no noise in the costs; time and memory are the problem's, gradients and workspace included,
  and the peak that decides is the simulated one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ...problem import Problem
from ...solution import Decisions, Solution, Status
from ..evaluation.evaluator import Array, Evaluator
from ..relaxation.linear_program import LinearProgram
from ..relaxation.linear_program import solve as solve_linear

NAME = "checkmate"
_EPSILONS = (0.0, 0.02, 0.05, 0.1, 0.2)
_THRESHOLDS = (0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
_LADDER = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)
"""Where between floor and keep-all the relaxation's budget lies when the smallest peak is wanted."""
_WORK = 6_000


class RetentionLP:
    """The relaxation of one problem. ``starts``: first backward position of each stage, shape [stages]."""

    def __init__(self, problem: Problem) -> None:
        self.problem, graph = problem, problem.graph
        count = len(problem.backward_order)
        width = max(1, -(-count * problem.op_count // _WORK))
        self.starts = range(0, count, width)
        self.free = [s in problem.pinned or storage.nbytes == 0 for s, storage in enumerate(graph.storages)]
        self.needs: list[tuple[int, ...]] = []
        for op in problem.backward_order:
            backward = graph.ops[op].backward
            assert backward is not None
            self.needs.append(tuple(s for s in backward.reads if not self.free[s]))
        self.reads = [tuple(s for s in op.reads if not self.free[s]) for op in graph.ops]
        self.last_stage = self._last_stages()

    def _last_stages(self) -> list[int]:
        """The last stage that a storage can serve, directly or through a re-run; -1 if none."""
        graph, last = self.problem.graph, [-1] * len(self.free)
        for position, needs in enumerate(self.needs):
            for storage in needs:
                last[storage] = position // self.starts.step
        for op in range(len(graph.ops) - 1, -1, -1):
            if not graph.ops[op].once:
                latest = max((last[s] for s in graph.ops[op].writes if not self.free[s]), default=-1)
                for storage in self.reads[op]:
                    last[storage] = max(last[storage], latest)
        return last

    def covered(self, stage: int) -> range:
        """Backward positions of a stage."""
        return range(self.starts[stage], min(self.starts[stage] + self.starts.step, len(self.needs)))

    def program(self, budget_nbytes: int) -> tuple[LinearProgram, list[dict[int, int]]]:
        """The linear program and, for each stage, the variable S of each storage that can be of use in it."""
        problem, lp = self.problem, LinearProgram()
        graph, producer = problem.graph, problem.producer.tolist()
        held: list[dict[int, int]] = []
        for stage in range(len(self.starts)):
            held.append({s: lp.variable() for s, last in enumerate(self.last_stage) if last >= stage})
            for storage, variable in held[stage].items():
                if storage in problem.keep:
                    lp.at_least(1, [(1, variable)])
                elif stage == 0 and storage in problem.recompute:
                    lp.at_least(0, [(-1, variable)])
        held.append({})
        for stage in range(len(self.starts)):
            now, following = held[stage], held[stage + 1]
            runs: dict[int, int] = {}
            for op in sorted({producer[s] for s in now if not graph.ops[producer[s]].once}):
                runs[op] = lp.variable(int(problem.forward_ns[op]))

            available = {
                s: [(1, variable), *([(1, runs[producer[s]])] if producer[s] in runs else [])]
                for s, variable in now.items()
            }
            for op, variable in runs.items():
                for storage in self.reads[op]:
                    lp.at_least(0, [*available[storage], (-1, variable)])
            for storage in sorted({s for position in self.covered(stage) for s in self.needs[position]}):
                lp.at_least(1, available[storage])
            for storage, variable in following.items():
                lp.at_least(0, [*available[storage], (-1, variable)])
            self._limit_memory(lp, stage, held, budget_nbytes)
        return lp, held[:-1]

    def _limit_memory(self, lp: LinearProgram, stage: int, held: list[dict[int, int]], budget_nbytes: int) -> None:
        """What is held at the first backward of a stage, and before the first of all, is within the budget."""
        problem, now, following = self.problem, held[stage], held[stage + 1]
        size = problem.nbytes.tolist()
        room, first = budget_nbytes - problem.pinned_nbytes, self.starts[stage]
        if stage == 0:
            lp.at_least(int(problem.between_nbytes[0]) - room, [(-size[s], variable) for s, variable in now.items()])
        needed = set(self.needs[first])
        later = {s for position in self.covered(stage) for s in self.needs[position]}
        alive = {**following, **{s: now[s] for s in later}}
        used = int(problem.during_nbytes[first]) + sum(size[s] for s in needed)
        lp.at_least(used - room, [(-size[s], variable) for s, variable in alive.items() if s not in needed])

    def roundings(self, budget_nbytes: int, time_limit_s: float | None = None) -> list[list[frozenset[int]]]:
        """For each threshold the storages whose S is above it, for each stage; empty when nothing was solved."""
        program, held = self.program(budget_nbytes)
        answer = solve_linear(program, time_limit_s)
        if not answer.solved:
            return []
        return [
            [frozenset(s for s, variable in stage.items() if answer.primal[variable] > threshold) for stage in held]
            for threshold in _THRESHOLDS
        ]

    def complete(self, retained: Sequence[frozenset[int]]) -> Array:
        """The order of computations with the fewest re-runs under which each stage starts with ``retained``.

        In a stage an op runs again when a backward of the stage, a re-run in it or the next stage's ``retained``
        needs what it writes and the stage did not start with that.
        """
        problem = self.problem
        graph, producer = problem.graph, problem.producer.tolist()
        sequence = list(range(problem.op_count))
        for stage, start_with in enumerate(retained):
            alive = set(start_with)
            following = retained[stage + 1] if stage + 1 < len(retained) else frozenset()
            covered = self.covered(stage)
            for position in covered:
                pending = [*self.needs[position], *(sorted(following) if position == covered[-1] else ())]
                runs: set[int] = set()
                while pending:
                    storage = pending.pop()
                    made = producer[storage]
                    if storage in alive or made in runs or graph.ops[made].once:
                        continue
                    runs.add(made)
                    pending += self.reads[made]
                sequence += sorted(runs)
                alive.update(s for op in runs for s in graph.ops[op].writes)
                sequence.append(~problem.backward_order[position])
        return np.array(sequence, dtype=np.int64)


def sequence(
    evaluator: Evaluator, budget_nbytes: int | None = None, *, deadline: float | None = None
) -> tuple[Array, bool]:
    """The cheapest plan found within the budget, else that of the smallest peak; and whether ``deadline`` cut it short.

    ``deadline`` is a time.perf_counter() value. Where nothing is rounded in time the plan is keep-all.
    """
    problem = evaluator.problem
    best = np.array([*range(problem.op_count), *(~op for op in problem.backward_order)], dtype=np.int64)
    best_key = _key(evaluator, best, budget_nbytes)
    if not problem.backward_order or not best_key[0]:
        return best, False
    relaxation, floor = RetentionLP(problem), problem.floor_nbytes
    if budget_nbytes is None:
        tried = [floor + int((best_key[1] - floor) * share) for share in _LADDER]
    else:
        tried = [int(budget_nbytes * (1 - epsilon)) for epsilon in _EPSILONS]
    for inner in tried:
        remaining = None if deadline is None else deadline - time.perf_counter()
        if remaining is not None and remaining <= 0:
            return best, True
        for retained in relaxation.roundings(inner, remaining):
            found = relaxation.complete(retained)
            key = _key(evaluator, found, budget_nbytes)
            if key < best_key:
                best, best_key = found, key
    return best, deadline is not None and time.perf_counter() > deadline


def _key(evaluator: Evaluator, sequence: Array, budget_nbytes: int | None) -> tuple[bool, int, int]:
    """What is minimised: above the budget or without one the peak, else the recomputation time."""
    peak, recompute_ns, _, _ = evaluator.evaluate_sequence(sequence)
    if budget_nbytes is not None and peak <= budget_nbytes:
        return False, recompute_ns, peak
    return True, peak, recompute_ns


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    time_limit_s: float | None = None,
    seed: int = 0,
) -> Solution:
    """The cheapest rounding within the budget, or UNKNOWN with the smallest peak that one reached."""
    started = time.perf_counter()
    evaluator = Evaluator(problem)
    found, cut_short = sequence(
        evaluator, budget_nbytes, deadline=None if time_limit_s is None else started + time_limit_s
    )
    peak, recompute_ns, _, _ = evaluator.evaluate_sequence(found)
    wall_s = time.perf_counter() - started
    if budget_nbytes is not None and peak > budget_nbytes:
        return Solution(Status.UNKNOWN, NAME, None, smallest_nbytes=peak, wall_s=wall_s, stopped_early=cut_short)
    return Solution(
        Status.OPTIMAL if recompute_ns == 0 else Status.FEASIBLE,
        NAME,
        Decisions(tuple(int(entry) for entry in found)),
        objective_ns=recompute_ns,
        peak_nbytes=peak,
        smallest_nbytes=peak,
        wall_s=wall_s,
        stopped_early=cut_short,
    )
