"""A plan rounded to a list of what is saved: everything else is recomputed once, when the first backward needs it.

Runtimes that take a list keep what it names from the forward to its last use. What is not named they compute anew
before its first use in the backward, from what is saved, and hold it to its last use.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ...planner.errors import InfeasibleBudgetError
from ...planner.model import store_all_timeline
from ...planner.pipeline import peak_of, replay
from ...planner.plan_file.record import Plan
from ...planner.problem import Scope, build_problem
from ...planner.simulate import Timeline
from ...planner.strategies.evaluation.evaluator import Evaluator, Labels
from ...planner.strategies.evaluation.labels import Label
from ...planner.units import format_both

_SWEEPS = 4
_MEASUREMENTS = 20_000
"""Most labellings that a rounding tries."""
Groups = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Rounded:
    """A rounded plan, replayed.

    Attributes:
        plan: the plan.
        groups: the storages that the runtime saves or recomputes together.
        saved: the indices of the groups that are saved.
        always: the storages that are saved in any case.
        made: the replay of the step that saves them.
        unwrapped: the replay of the step that recomputes nothing.
    """

    plan: Plan
    groups: Groups
    saved: tuple[int, ...]
    always: frozenset[int]
    made: Timeline
    unwrapped: Timeline

    @property
    def peak_nbytes(self) -> int:
        """The peak that the plan's budget bounds."""
        return peak_of(self.made, Scope(self.plan.budget.scope))

    @property
    def unwrapped_peak_nbytes(self) -> int:
        """The same peak with everything saved."""
        return peak_of(self.unwrapped, Scope(self.plan.budget.scope))

    @property
    def overhead(self) -> float:
        """Recomputation as a share of a step without any."""
        return self.made.recompute_ns / max(1, self.plan.time.store_all_ns)


def rounded(plan: Plan, groups: Groups, *, always: Collection[int] = (), runtime: str) -> Rounded:
    """Choose which groups to save so that the step stays within the plan's budget at the least time.

    Args:
        plan: a plan that has been verified.
        groups: storages that can be named to the runtime; those of one group are saved together. All others are
            recomputed.
        always: storages that the runtime saves in any case.
        runtime: its name, for the message.

    Returns:
        The choice, beginning with what the plan itself keeps, and its replay.

    Raises:
        InfeasibleBudgetError: no choice keeps the budget; it has the smallest peak that was reached.
    """
    scope = Scope(plan.budget.scope)
    problem = build_problem(plan.graph, plan.costs, scope, keep=frozenset(always), late=lambda: True)
    search = _Search(Evaluator(problem), groups, plan.budget.nbytes)
    kept = {index for index, storage in enumerate(plan.graph.storages) if storage.name in set(plan.kept)}
    starts = (
        [not kept.isdisjoint(group) for group in groups],
        [True] * len(groups),
        [False] * len(groups),
    )
    best = min((search.improved(start) for start in starts), key=search.cost)
    over, _ = search.cost(best)
    if over > 0:
        peak = plan.budget.nbytes + int(over)
        suffix = " --scope activations" if scope is Scope.ACTIVATIONS else ""
        raise InfeasibleBudgetError(
            f"no choice of what {runtime} saves ({len(groups)} to choose from) keeps the budget of "
            f"{format_both(plan.budget.nbytes)}: the smallest peak that was reached is {format_both(peak)}",
            remedy=f"plan again with --budget {peak}B{suffix} or more",
            smallest_known_nbytes=peak,
        )
    solution = search.evaluator.solution(search.labels(best), plan.budget.nbytes, "rounded")
    _, timeline = replay(problem, solution)
    unwrapped = store_all_timeline(plan.graph, plan.costs)[1]
    return Rounded(
        plan, groups, tuple(i for i, saved in enumerate(best) if saved), frozenset(always), timeline, unwrapped
    )


class _Search:
    """Changes one group after the other while that helps."""

    def __init__(self, evaluator: Evaluator, groups: Groups, budget_nbytes: int) -> None:
        self.evaluator, self.groups, self.budget_nbytes = evaluator, groups, budget_nbytes
        self.left = _MEASUREMENTS
        nbytes = evaluator.arrays.nbytes
        self.order = sorted(range(len(groups)), key=lambda index: -int(nbytes[list(groups[index])].sum()))

    def labels(self, saved: Sequence[bool]) -> Labels:
        """The labelling of a choice; what is decided stays as it is."""
        labels = self.evaluator.labels(Label.DROP)
        wanted = np.zeros(len(labels), dtype=np.bool_)
        wanted[
            [storage for group, is_saved in zip(self.groups, saved, strict=True) if is_saved for storage in group]
        ] = True
        labels[wanted] = Label.KEEP
        return labels

    def cost(self, saved: Sequence[bool]) -> tuple[float, float]:
        """Bytes above the budget, then the time of recomputations."""
        self.left -= 1
        found = self.evaluator.evaluate(self.labels(saved))
        return max(0, found.peak_nbytes - self.budget_nbytes), found.recompute_ns

    def improved(self, saved: Sequence[bool]) -> list[bool]:
        """The choice after changes that lower its cost; what is saved for nothing is dropped."""
        saved, least = list(saved), self.cost(saved)
        for _ in range(_SWEEPS):
            before = least
            for index in self.order:
                if self.left <= 0:
                    return saved
                saved[index] = not saved[index]
                cost = self.cost(saved)
                if cost < least or (cost == least and not saved[index]):
                    least = cost
                else:
                    saved[index] = not saved[index]
            if least == before:
                break
        return saved
