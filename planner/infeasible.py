"""The error for a budget without a plan: what is proven, which peak can be reached, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InfeasibleBudgetError, NoPlanInTimeError, OgcPlanError, SearchStoppedError
from .problem import Problem, Scope
from .solution import Solution, Status
from .solver import CERTIFIED, Solver
from .strategies import FIXED
from .units import format_both


@dataclass(frozen=True, slots=True)
class Asked:
    """A budget as written, and its bytes after ``reserve_nbytes``; None for ``min``.

    ``overhead_nbytes`` of the reserve are what the device needs beyond the peak of the step; the rest is headroom.
    """

    text: str
    limit_nbytes: int | None
    reserve_nbytes: int = 0
    overhead_nbytes: int = 0


def unfinished(asked: Asked, solver: Solver) -> OgcPlanError:
    """The error for a search that ended before it found a plan or proved that there is none."""
    if solver.stopped():
        return SearchStoppedError(
            f"no plan within {asked.text} found before the search was stopped",
            remedy="let it run on, or ask for the smallest peak with --budget min",
        )
    return NoPlanInTimeError(
        f"no plan within {asked.text} found before the time limit of {solver.time_limit_s or 0:.3g} s",
        remedy="raise --time-limit, or ask for the smallest peak with --budget min",
    )


def refusal(
    problem: Problem, asked: Asked, solution: Solution, solver: Solver, smallest_nbytes: int, *, smaller: str
) -> OgcPlanError:
    """The error for a budget within which ``solution`` has no plan.

    ``smallest_nbytes`` is the smallest peak that `optimal` reaches. ``smaller`` names what a user would make smaller to
    need less memory.
    """
    limit, reserve = asked.limit_nbytes or 0, asked.reserve_nbytes
    floor = problem.floor
    scope = "peak" if problem.scope is Scope.TOTAL else "activation peak"
    proven = limit < floor.nbytes or solution.status is Status.INFEASIBLE
    fixed = solver.strategy.partition(":")[0] in FIXED
    if fixed and not proven and solution.smallest_nbytes is not None:
        return InfeasibleBudgetError(
            f"strategy {solver.strategy!r} has one fixed plan, its {scope} of {format_both(solution.smallest_nbytes)} "
            f"lies above {asked.text}",
            remedy=f"use --strategy {CERTIFIED}, which plans for a budget",
            smallest_known_nbytes=smallest_nbytes,
            lower_bound_nbytes=floor.nbytes,
            proven=False,
        )
    headroom = reserve - asked.overhead_nbytes
    parts = [f"{format_both(headroom)} of headroom"] if headroom else []
    parts += [f"{format_both(asked.overhead_nbytes)} for the device"] if asked.overhead_nbytes else []
    after = f" after {' and '.join(parts)}" if parts else ""
    verdict = "is proven infeasible" if proven else "has no plan we could find (not proven infeasible)"
    if proven and limit >= floor.nbytes:
        verdict += f" for {solution.bound_class}"
    alike = format_both(limit) in (format_both(smallest_nbytes), format_both(floor.nbytes))
    budget, smallest, least = (
        f"{nbytes:,} B" if alike else format_both(nbytes) for nbytes in (limit, smallest_nbytes, floor.nbytes)
    )
    message = (
        f"budget {asked.text} = {budget}{after} {verdict}: smallest {scope} found {smallest}, proven floor {least} at "
        f"{floor.describe()}"
    )
    # A headroom in percent grows with the budget, one in bytes does not: enough for either.
    enough = max(smallest_nbytes + reserve, -(-smallest_nbytes * (limit + reserve) // max(1, limit)))
    remedy = f"pass --budget {enough}B or more"
    if problem.scope is Scope.ACTIVATIONS:
        remedy += " with --scope activations"
    if solver.strategy != CERTIFIED:
        remedy += f" {'and' if 'with' in remedy else 'with'} --strategy {CERTIFIED}"
    remedy += f", or a smaller {smaller}"
    return InfeasibleBudgetError(
        message, remedy=remedy, smallest_known_nbytes=smallest_nbytes, lower_bound_nbytes=floor.nbytes, proven=proven
    )
