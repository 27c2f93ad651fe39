"""What a strategy answers: a decision, how good it is proven to be, and the status that says so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from .errors import BoundMismatchError


class Status(Enum):
    """OPTIMAL: the bound is met. INFEASIBLE: proven. UNKNOWN: nothing found and nothing proven."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Decisions:
    """The order in which ops run: ``i`` is a forward run of op i (a repeat is a recomputation), ``~i`` its backward.

    Frees are not decided: a value lives to its last use before its next computation, which is never
    worse (schedule.lower derives them).
    """

    sequence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """``objective_ns`` is the recomputation time; ``bound_ns`` a proven lower bound on it for ``bound_class``.

    ``peak_nbytes`` is the peak the strategy claims under the problem's scope; the replay must agree.
    ``decisions`` is None exactly when the status is INFEASIBLE or UNKNOWN; then ``smallest_nbytes`` is
    the smallest peak that the search reached.
    """

    status: Status
    strategy: str
    decisions: Decisions | None
    objective_ns: int = 0
    bound_ns: int = 0
    bound_class: str = ""
    peak_nbytes: int = 0
    smallest_nbytes: int | None = None
    stopped_early: bool = False
    notes: tuple[str, ...] = ()


def with_bound(solution: Solution, bound_ns: int, bound_class: str) -> Solution:
    """A solution that has decisions with another bound, and the status that follows from it.

    Raises BoundMismatchError where the bound lies above what the decisions cost: then it is not true.
    """
    if bound_ns > solution.objective_ns:
        raise BoundMismatchError(
            f"strategy {solution.strategy!r} has a plan of {solution.objective_ns} ns of recomputation and claims that "
            f"none takes less than {bound_ns} ns ({bound_class})",
            remedy="please report this with the model",
        )
    status = Status.OPTIMAL if bound_ns == solution.objective_ns else Status.FEASIBLE
    return replace(solution, status=status, bound_ns=bound_ns, bound_class=bound_class)
