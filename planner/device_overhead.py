"""Plans whose peak fits a budget together with what the device takes beyond it: context, workspaces, fragmentation.

What a plan's step takes beyond its peak depends on the plan, and is known once the plan is made. So the planner is
asked again for a smaller peak until both fit, and then for larger ones in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .errors import InfeasibleBudgetError, NoPlanInTimeError, SearchStoppedError
from .infeasible import Asked
from .plan_file.record import Plan
from .units import format_both

Overhead = Callable[[Plan], int]
"""The bytes that a plan's step takes of the device beyond its total peak."""
_TRIES = 10
_MORE = 0.004
"""The share of the budget that is kept free beyond what was missing, for each plan that took too much."""
_SPREAD = 20 << 20
"""Plans of one peak differ in what their order makes an allocator reserve: by a segment of PyTorch's (20 MiB)."""
_CLOSE = 0.01
"""The search ends once the peak that is asked for is known to this share of the budget."""
_STEPS = 5
"""Where no try fits and the smallest peak does, this many steps lead from it to the budget."""


def with_overhead(within: Callable[[Asked], Plan], asked: Asked, overhead: Overhead) -> Plan:
    """The cheapest plan found whose peak and overhead fit ``asked``; ``within`` plans for a peak.

    Once there is one, a search that ends early ends this one, too. Raises what ``within`` raises, and
    InfeasibleBudgetError if plans fit alone and not with their overhead. Every refusal names a budget that holds both.
    """
    limit = asked.limit_nbytes
    assert limit is not None
    best: Plan | None = None
    too_little, most = -1, limit  # bytes kept free: so few did not do, so many did or left no plan
    taken = misses = 0
    for _ in range(_TRIES):
        over = 0
        try:
            found = within(_keeping_free(asked, taken))
        except InfeasibleBudgetError as error:
            if not taken:
                return _smallest(within, asked, overhead, error)
            most = taken
        except (NoPlanInTimeError, SearchStoppedError):
            if best is None:
                raise
            break
        else:
            over = found.peak.total_nbytes + overhead(found) - limit
            if over > 0:
                too_little = max(too_little, taken)
            else:
                best = found if best is None or found.time.recompute_ns < best.time.recompute_ns else best
                most = taken
        if most - too_little <= max(1, _CLOSE * limit):
            break
        misses += over > 0
        step = over + int(misses * _MORE * limit)  # a smaller peak may have a larger overhead
        taken = taken + step if over > 0 and taken + step < most else (too_little + most) // 2
    return _above_smallest(within, asked, overhead) if best is None else best


def _above_smallest(within: Callable[[Asked], Plan], asked: Asked, overhead: Overhead) -> Plan:
    """The cheapest plan that fits, of the smallest peak and of some larger ones; raises what `_smallest` raises."""
    best, limit = _smallest(within, asked, overhead), asked.limit_nbytes or 0
    least = best.peak.total_nbytes
    for number in range(1, _STEPS):
        taken = (limit - least) * number // _STEPS
        try:
            found = within(_keeping_free(asked, taken))
        except InfeasibleBudgetError:
            continue
        except (NoPlanInTimeError, SearchStoppedError):
            break
        if found.time.recompute_ns < best.time.recompute_ns and found.peak.total_nbytes + overhead(found) <= limit:
            best = found
    return best


def _keeping_free(asked: Asked, nbytes: int) -> Asked:
    """What was asked for, with bytes kept free for the device."""
    limit = asked.limit_nbytes or 0
    return replace(
        asked, limit_nbytes=limit - nbytes, reserve_nbytes=asked.reserve_nbytes + nbytes, overhead_nbytes=nbytes
    )


def _smallest(
    within: Callable[[Asked], Plan], asked: Asked, overhead: Overhead, refused: InfeasibleBudgetError | None = None
) -> Plan:
    """The plan of the smallest peak if it fits with its overhead; else InfeasibleBudgetError.

    ``refused`` is the error where plans do not even fit alone.
    """
    smallest = within(replace(asked, limit_nbytes=None))
    need = smallest.peak.total_nbytes + overhead(smallest)
    limit = asked.limit_nbytes or 0
    if need <= limit:
        return smallest
    enough = need + _SPREAD + asked.reserve_nbytes
    proven = refused is not None and refused.proven
    verdict = "is proven infeasible" if proven else "has no plan we could find"
    raise InfeasibleBudgetError(
        f"budget {asked.text} = {format_both(limit)} {verdict}: the plan of the smallest peak found, "
        f"{format_both(smallest.peak.total_nbytes)}, takes {format_both(need)} of the device, "
        f"and may take {format_both(_SPREAD)} more in another order",
        remedy=f"pass --budget {enough}B or more",
        smallest_known_nbytes=need,
        enough_nbytes=enough,
        lower_bound_nbytes=smallest.peak.floor_total_nbytes,
        proven=proven,
    )
