"""The state of one certified solve, and the pieces that improve its plan or its bound.

Each piece is one function of a `Search`: `generate_rows` and `tighten` raise the bound, `repair`,
`baselines` and `improve` lower the plan's cost, `lower_peak` looks for the smallest peak alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..graph import Storage
from ..problem import Problem, Scope, build_problem
from ..training import BackwardOp, Gradient, OpCost, TrainingGraph, TrainingOp
from . import greedy, layers, ogc, segments, speed, sqrt_n
from .anneal import Annealer
from .cuts import grids
from .evaluate import Evaluation, Evaluator, Labels
from .labels import Label
from .stage_lp import Relaxation, StageLP

_THRESHOLDS = (0.999, 0.75, 0.5, 0.25)
_MAX_STAGES = 14
_STAGE_WORK = 5000
"""Stages times ops of the largest LP, a second or two of simplex; two stages always remain, however long they take."""
_ANNEALING_WORK = 36_000_000
"""Iterations times ops at effort 1: a fixed amount of work, about 2 s on one core of a 2020s server."""
_ITERATIONS_PER_PAIR = 100
"""Iterations for every pair of storages at most, so that small graphs take milliseconds."""

_RESTARTS = ((0.01, 2), (0.03, 1), (0.1, 2), (0.3, 1)) * 2
"""Starting temperature, in units of one forward pass, and levels of checkpoints of each restart."""

_LADDER = (0.8, 0.5, 0.2)
"""Budgets, between floor and reach, whose relaxation is rounded when the smallest peak is looked for."""

Progress = Callable[[str, "int | None", int], None]
"""Told what is being done now, the best recomputation time so far (ns, None if none) and the bound (ns)."""


@dataclass
class Search:
    """Best labelling within the budget, labelling of lowest peak, and bound of one problem and budget."""

    evaluator: Evaluator
    budget_nbytes: int
    deadline: float | None = None
    progress: Progress | None = None
    effort: float = 1.0
    seed: int = 0
    best: Labels | None = None
    best_found: Evaluation | None = None
    lowest: Labels | None = None
    lowest_found: Evaluation | None = None
    bound_ns: int = 0
    stopped_early: bool = False
    stages: set[int] = field(default_factory=lambda: {0})

    @property
    def problem(self) -> Problem:
        """The problem being solved."""
        return self.evaluator.problem

    def out_of_time(self) -> bool:
        """Whether the time limit has passed; remembered, because it makes the result depend on the clock."""
        if self.deadline is not None and time.perf_counter() > self.deadline:
            self.stopped_early = True
        return self.stopped_early

    def remaining_s(self) -> float | None:
        """Seconds left, None without a limit."""
        return None if self.deadline is None else max(0.01, self.deadline - time.perf_counter())

    def settled(self) -> bool:
        """Whether the best plan meets the bound: nothing better exists in the bound's class."""
        return self.best_found is not None and self.best_found.recompute_ns <= self.bound_ns

    def say(self, doing: str) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(doing, self.best_found.recompute_ns if self.best_found else None, self.bound_ns)

    def offer(self, labels: Labels) -> Evaluation:
        """Evaluate a labelling and remember it if it is the best within the budget or of the lowest peak."""
        found = self.evaluator.evaluate(labels)
        key = (found.recompute_ns, found.peak_nbytes)
        best = self.best_found
        if found.peak_nbytes <= self.budget_nbytes and (best is None or key < (best.recompute_ns, best.peak_nbytes)):
            self.best, self.best_found = labels.copy(), found
        if self.lowest_found is None or found.peak_nbytes < self.lowest_found.peak_nbytes:
            self.lowest, self.lowest_found = labels.copy(), found
        return found

    def round(self, relaxation: Relaxation) -> set[int]:
        """Offer the roundings of a relaxation; returns the backward positions where those above budget peak."""
        peaks: set[int] = set()
        free = ~self.evaluator.decided
        for threshold in _THRESHOLDS:
            labels = self.evaluator.labels(Label.DROP)
            labels[free & (relaxation.alive >= threshold)] = Label.KEEP
            found = self.offer(labels)
            if found.peak_nbytes > self.budget_nbytes and found.peak_position >= 0:
                peaks.add(found.peak_position)
        return peaks


def prepare_kernels() -> None:
    """Compile or load every kernel, on a problem of two ops."""
    ops = (
        TrainingOp("a", "", (), (0,), BackwardOp((0,), (0,))),
        TrainingOp("b", "", (0,), (1,), BackwardOp((0,), (1,))),
    )
    graph = TrainingGraph(ops, (Storage("a", 1), Storage("b", 1)), (Gradient("a", 1), Gradient("b", 1)), (1,), (1,))
    evaluator = Evaluator(build_problem(graph, (OpCost(1, 1),) * 2, Scope.ACTIVATIONS))
    for module in (greedy, layers):
        module.labels(evaluator, 1)
    Annealer(evaluator, 0).run(evaluator.labels(Label.DROP), 1, 8, heat=0.1, levels=2)


def _stage_limit(problem: Problem) -> int:
    """How many stages an LP of this problem may have."""
    return max(2, min(_MAX_STAGES, _STAGE_WORK // max(1, problem.op_count)))


def generate_rows(search: Search, relaxed: StageLP) -> None:
    """Solve, round, replay, add the stages where the roundings peak; until they fit or show nothing new."""
    while not search.out_of_time():
        search.say(f"bounding with {len(search.stages)} stages")
        relaxation = relaxed.solve(search.budget_nbytes, sorted(search.stages), search.remaining_s())
        search.bound_ns = max(search.bound_ns, relaxation.bound_ns)
        if not relaxation.solved:
            return
        fresh = sorted(search.round(relaxation) - search.stages)[:3]
        if not fresh or len(search.stages) >= _stage_limit(search.problem):
            return
        search.stages.update(fresh)


def repair(search: Search, relaxed: StageLP) -> None:
    """Roundings of the LP under a smaller budget of its own, bisected towards the largest that fits."""
    low, high = 0.5, 1.0
    floor = search.problem.floor_nbytes
    for _ in range(6 if search.problem.op_count <= _STAGE_WORK // 4 else 2):
        if search.settled() or search.out_of_time():
            return
        middle = (low + high) / 2
        inner = floor + int((search.budget_nbytes - floor) * middle)
        relaxation = relaxed.solve(inner, sorted(search.stages), search.remaining_s())
        if not relaxation.solved:
            low = middle
            continue
        before = search.best_found
        search.round(relaxation)
        if search.best_found is not before:
            low = middle
        else:
            high = middle


def baselines(search: Search) -> None:
    """Grids of cuts and the labels of the other strategies: the certified one is never worse than they are."""
    for labels in grids(search.evaluator):
        search.offer(labels)
    for count in (2, 4, 8):
        search.offer(segments.labels(search.evaluator, count))
    for module in (speed, sqrt_n, ogc, greedy, layers):
        if search.out_of_time():
            return
        search.offer(module.labels(search.evaluator, search.budget_nbytes))


def _iterations(annealer: Annealer, effort: float) -> int:
    ops, movable = max(1, annealer.evaluator.problem.op_count), len(annealer.movable)
    work = max(2000, _ANNEALING_WORK // ops)
    return int(effort * min(work, _ITERATIONS_PER_PAIR * movable * movable))


def improve(search: Search) -> None:
    """Anneal: down to the budget if nothing fits yet, then restarts of growing heat, then a cool finish.

    The restarts alternate between two levels of checkpoints and one, over a spread of heats, because no
    single heat serves every network of models/plan_benchmark.py.
    """
    annealer = Annealer(search.evaluator, search.seed)
    iterations = _iterations(annealer, search.effort)
    cool = min(0.03, 1.5 / max(1, search.problem.op_count)) / 2

    def stop(labels: Labels) -> bool:
        search.offer(labels)
        search.say("improving the plan")
        return search.out_of_time() or search.settled()

    def within(labels: Labels) -> bool:
        return stop(labels) or search.best is not None

    for levels in (1, 2):
        if search.best is None and not search.stopped_early:
            assert search.lowest is not None
            labels, _ = annealer.run(
                search.lowest, search.budget_nbytes, iterations // 2, heat=0.02, levels=levels, minimise_peak=True,
                stop=within,
            )  # fmt: skip
            search.offer(labels)
    if search.best is None:
        return
    origin = search.best
    restarts = [(origin, heat, levels, iterations // (2 * len(_RESTARTS))) for heat, levels in _RESTARTS]
    finish = [(None, cool / levels, levels, iterations // 4) for levels in (1, 2)]
    for start, heat, levels, work in [*restarts, *finish]:
        if search.stopped_early or search.settled():
            return
        labels, _ = annealer.run(
            search.best if start is None else start, search.budget_nbytes, work, heat=heat, levels=levels, stop=stop
        )
        search.offer(labels)


def lower_peak(search: Search) -> None:
    """Look for the smallest peak. Depends on problem, seed and effort alone, so what it reaches can be promised."""
    for fill in (Label.KEEP, Label.DROP):
        search.offer(search.evaluator.labels(fill))
    baselines(search)
    annealer = Annealer(search.evaluator, search.seed)
    floor = search.problem.floor_nbytes
    if search.problem.backward_order:
        relaxed = StageLP(search.problem)
        assert search.lowest_found is not None
        reach = search.lowest_found.peak_nbytes
        for share in _LADDER:
            if not search.out_of_time():
                search.round(relaxed.solve(floor + int((reach - floor) * share), (0,), search.remaining_s()))

    def stop(labels: Labels) -> bool:
        found = search.offer(labels)
        search.say("lowering the peak")
        return found.peak_nbytes <= floor or search.out_of_time()

    for heat, levels in ((0.02, 1), (0.02, 2), (0.1, 2), (0.01, 2)):
        assert search.lowest is not None
        assert search.lowest_found is not None
        if search.lowest_found.peak_nbytes <= floor or search.stopped_early:
            return
        labels, _ = annealer.run(
            search.lowest, search.lowest_found.peak_nbytes, _iterations(annealer, search.effort), heat=heat,
            levels=levels, minimise_peak=True, stop=stop,
        )  # fmt: skip
        search.offer(labels)


def tighten(search: Search, relaxed: StageLP) -> None:
    """Solve the bound once more with stages where the plan found holds the most."""
    if search.best is None or search.settled() or search.out_of_time():
        return
    decisions = search.evaluator.decisions(search.best)
    search.evaluator.evaluate(search.best)
    held = np.cumsum(search.evaluator.scratch.memory[: len(decisions.sequence)])
    during = [
        (int(held[event]) + int(search.problem.during_nbytes[position]), position)
        for position, event in enumerate(e for e, entry in enumerate(decisions.sequence) if entry < 0)
    ]
    limit = _stage_limit(search.problem)
    for _, position in sorted(during, key=lambda pair: (-pair[0], pair[1])):
        if len(search.stages) >= limit:
            break
        if all(abs(position - stage) > len(during) // (3 * limit) for stage in search.stages):
            search.stages.add(position)
    search.say(f"bounding with {len(search.stages)} stages")
    relaxation = relaxed.solve(search.budget_nbytes, sorted(search.stages), search.remaining_s())
    search.bound_ns = max(search.bound_ns, relaxation.bound_ns)
    if relaxation.solved:
        search.round(relaxation)
