"""One strategy with the options of its search, ready to be asked for plans of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING

from .errors import UsageError
from .limits import NO_LIMITS, Limits, gc_paused
from .problem import Problem
from .solution import Solution
from .strategies import strategy_named

if TYPE_CHECKING:
    from .strategies.optimal.problem_cache import ProblemCache

CERTIFIED = "optimal"
"""The strategy that searches, and alone takes an effort and a request to stop."""

DEFAULT_EFFORT = "default"
_SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class Solver:
    """How to look for plans: by which strategy, how hard, how long.

    Attributes:
        effort: An amount of work of `optimal`: fast, default or high.
        time_limit_s: Seconds for each solve, or None.
        limits: What else ends a solve of `optimal`, which then answers with its best plan, and whom it tells what it
            does.
    """

    strategy: str = CERTIFIED
    effort: str = DEFAULT_EFFORT
    time_limit_s: float | None = None
    seed: int = 0
    limits: Limits = NO_LIMITS

    def check(self) -> None:
        """Raise UsageError for a value that an option cannot have, or an effort that changes nothing."""
        from .strategies.optimal.effort import effort_named

        limit, seed = self.time_limit_s, self.seed
        if limit is not None and not (isinstance(limit, Real) and limit is not True and limit > 0):
            raise UsageError(f"time limit {limit!r} is no number of seconds above 0", remedy="pass seconds, or None")
        if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= seed < _SEEDS:
            raise UsageError(
                f"seed {seed!r} is no whole number from 0 to {_SEEDS - 1}", remedy="pass 0, or another one"
            )
        strategy_named(self.strategy)
        effort_named(self.effort)
        if self.effort != DEFAULT_EFFORT and self.strategy != CERTIFIED:
            raise UsageError(
                f"effort {self.effort!r} changes nothing: strategy {self.strategy!r} has none",
                remedy=f"leave the effort out, or use --strategy {CERTIFIED}",
            )

    def prepared(self, problem: Problem) -> Problem | ProblemCache:
        """What to hand to `solve` and `smallest_peak` where more than one solve of the problem may follow.

        Under effort default each solve after the first starts from the plans of those before it and does less, about a
        quarter on up to 1,500 ops, so its plan may cost more than that of a solve of the problem itself.
        """
        if self.strategy != CERTIFIED:
            return problem
        from .strategies.optimal.problem_cache import ProblemCache

        return ProblemCache(problem)

    def solve(self, problem: Problem | ProblemCache, limit_nbytes: int | None) -> Solution:
        """The strategy's answer within ``limit_nbytes``, or for the smallest peak if that is None."""
        solve = strategy_named(self.strategy)
        with gc_paused():
            if self.strategy == CERTIFIED:
                return solve(problem, limit_nbytes, limits=self._limits(), seed=self.seed, effort=self.effort)
            return solve(problem, limit_nbytes, limits=self._limits(), seed=self.seed)

    def smallest_peak(self, problem: Problem | ProblemCache) -> int:
        """The smallest peak in bytes that `optimal` reaches at this effort, whatever the strategy."""
        from .strategies.optimal.strategy import smallest_peak

        with gc_paused():
            return smallest_peak(problem, limits=self._limits(), seed=self.seed, effort=self.effort)

    def bound_in_any_order(self, problem: Problem, limit_nbytes: int) -> tuple[int, str]:
        """A certified bound in ns on every legal plan within ``limit_nbytes``, and the name of that class."""
        from .strategies.relaxation.order_free_bound import ANY_ORDER, order_free_bound

        return order_free_bound(problem, limit_nbytes), ANY_ORDER

    def stopped(self) -> bool:
        """Whether the search was asked to stop."""
        return self.limits.out_of_time()

    def _limits(self) -> Limits:
        """The limits of a solve that begins now."""
        if self.time_limit_s is not None and self.strategy == CERTIFIED:
            from .strategies.optimal.warm_up import prepare_kernels

            prepare_kernels()  # compiling them on a fresh machine is not part of the search
        return self.limits.with_deadline(self.time_limit_s)
