"""What a strategy returns: its decisions, a status, and a bound on what any plan costs."""

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

    Frees are not decided: `schedule.lower` frees a value after its last use before its next computation, which is
    never worse.
    """

    sequence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """The answer of one strategy.

    Attributes:
        decisions: None exactly when the status is INFEASIBLE or UNKNOWN.
        objective_ns: The recomputation time.
        bound_ns: A proven lower bound on the recomputation time of every plan of ``bound_class``.
        peak_nbytes: The peak in the problem's scope that the strategy claims; the replay must agree.
        smallest_nbytes: Without decisions, the smallest peak that the search reached.
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
    """A solution that has decisions, with another bound and the status that follows from it.

    Raises BoundMismatchError for a bound above what the decisions cost, which cannot be true.
    """
    if bound_ns > solution.objective_ns:
        raise BoundMismatchError(
            f"strategy {solution.strategy!r} has a plan of {solution.objective_ns} ns of recomputation and claims that "
            f"none takes less than {bound_ns} ns ({bound_class})",
            remedy="please report this with the model",
        )
    status = Status.OPTIMAL if bound_ns == solution.objective_ns else Status.FEASIBLE
    return replace(solution, status=status, bound_ns=bound_ns, bound_class=bound_class)
