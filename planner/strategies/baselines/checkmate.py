"""Checkmate's approximation: relax the retention matrix, round it at one half, complete the recomputations.

Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica and Gonzalez, "Checkmate: Breaking the Memory Wall with
Optimal Tensor Rematerialization" (MLSys 2020): S[t,i] says that value i is held into stage t, R[t,i] that it is
computed in stage t. Section 5 solves the linear relaxation, rounds S ("two-phase rounding") and then sets as few
R as S and the dependencies ask for. Rounding overshoots, so the relaxation gets (1 - epsilon) of the budget, 0.1
there; the released program tries the thresholds 0.1 to 0.9 and keeps the cheapest plan within the budget, as here.

What differs here:
- The forward runs once, in its order, and is not divided into stages; a stage is one backward step and the
  recomputations before it. Checkmate's stages are all steps of forward and backward, so it may recompute in the
  forward too.
- Where stages times ops exceed _WORK, a stage covers several backward steps, as few as that allows.
- The relaxation limits what the first backward of each stage and the start of the first hold; what is freed within
  a stage (their variables FREE and U) is left to epsilon, of which several are tried.
- No randomized rounding, no noise in the costs; time and memory are the problem's, gradients and workspace included,
  and the peak that decides is the simulated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Solution
from ..evaluation.evaluator import Array, Evaluation, Evaluator, solution_of
from ..relaxation.linear_program import LinearProgram
from ..relaxation.linear_program import solve as solve_linear

NAME = "checkmate"
_EPSILONS = (0.0, 0.02, 0.05, 0.1, 0.2)
_THRESHOLDS = (0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
_LADDER = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)
"""Where between floor and keep-all the relaxation's budget lies when the smallest peak is wanted."""
_WORK = 6_000


class RetentionLP:
    """The relaxation of one problem, of about ``work`` stages times ops.

    ``starts``: first backward position of each stage, shape [stages].
    """

    def __init__(self, problem: Problem, work: int = _WORK) -> None:
        self.problem, graph = problem, problem.graph
        count = len(problem.backward_order)
        width = max(1, -(-count * problem.op_count // work))
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
        """The last stage that a storage can serve, directly or through a recomputation; -1 if none."""
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

    def roundings(self, budget_nbytes: int, limits: Limits = NO_LIMITS) -> list[list[frozenset[int]]]:
        """For each threshold the storages whose S is above it, for each stage; empty when nothing was solved."""
        program, held = self.program(budget_nbytes)
        answer = solve_linear(program, limits)
        if not answer.solved:
            return []
        return [
            [frozenset(s for s, variable in stage.items() if answer.primal[variable] > threshold) for stage in held]
            for threshold in _THRESHOLDS
        ]

    def complete(self, retained: Sequence[frozenset[int]]) -> Array:
        """The order of computations with the fewest recomputations under which each stage starts with ``retained``.

        In a stage an op runs again when a backward of the stage, a recomputation in it or the next stage's ``retained``
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
    evaluator: Evaluator, budget_nbytes: int | None = None, limits: Limits = NO_LIMITS
) -> tuple[Array, Evaluation]:
    """The cheapest plan found within the budget, else that of the smallest peak; keep-all if nothing is solved in time.

    Without a budget it is the plan of the smallest peak.
    """
    problem = evaluator.problem
    best = np.array([*range(problem.op_count), *(~op for op in problem.backward_order)], dtype=np.int64)
    found = evaluator.evaluate_sequence(best)
    if not problem.backward_order or not _key(found, budget_nbytes)[0]:
        return best, found
    relaxation, floor = RetentionLP(problem), problem.floor_nbytes
    if budget_nbytes is None:
        tried = [floor + int((found.peak_nbytes - floor) * share) for share in _LADDER]
    else:
        tried = [int(budget_nbytes * (1 - epsilon)) for epsilon in _EPSILONS]
    for inner in tried:
        if limits.out_of_time():
            break
        for retained in relaxation.roundings(inner, limits):
            completed = relaxation.complete(retained)
            evaluation = evaluator.evaluate_sequence(completed)
            if _key(evaluation, budget_nbytes) < _key(found, budget_nbytes):
                best, found = completed, evaluation
    return best, found


def _key(found: Evaluation, budget_nbytes: int | None) -> tuple[bool, int, int]:
    """What is minimised: the recomputation time within the budget, else the peak."""
    if budget_nbytes is not None and found.peak_nbytes <= budget_nbytes:
        return False, found.recompute_ns, found.peak_nbytes
    return True, found.peak_nbytes, found.recompute_ns


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> Solution:
    """The cheapest rounding within the budget, or UNKNOWN with the smallest peak that one reached."""
    found = sequence(Evaluator(problem), budget_nbytes, limits)
    return replace(solution_of(*found, budget_nbytes, NAME), stopped_early=limits.out_of_time())
