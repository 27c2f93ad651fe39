"""The largest input that trains within a memory: without recomputation, at the most samples a second, and at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import InfeasibleBudgetError, NoPlanInTimeError, OgcPlanError, SearchStoppedError, UsageError
from ..limits import NO_LIMITS, Limits
from ..model import Model
from ..pipeline import plan
from ..plan_file.record import Plan
from ..problem import Scope
from ..solver import DEFAULT_EFFORT
from ..units import format_both, format_nbytes, format_rate, parse_memory, percent

LARGEST = 2**31
"""No larger size is tried."""
_GROWTH = 16
"""How much larger the next size may be while none is known to be too large."""
_FASTER = 1e-3
"""A speed-up below this share is not searched for."""
_GRID = 4
"""Parts into which the sizes around the best are cut."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A size of the dimension, and the plan of its step within the memory."""

    size: int
    plan: Plan

    @property
    def step_ns(self) -> int:
        """The time of one step, recomputation included, in ns."""
        return self.plan.time.store_all_ns + self.plan.time.recompute_ns

    @property
    def per_s(self) -> float:
        """Samples, or units of another dimension, a second."""
        return self.size * 1e9 / max(1, self.step_ns)


@dataclass(frozen=True, slots=True)
class Beyond:
    """The next size after the largest, and why it has no plan.

    Attributes:
        size: The size.
        proven: Whether it is proven that no plan exists; otherwise none was found.
        floor_nbytes: The proven floor of its peak.
        smallest_nbytes: The smallest peak found, None if none was looked for.
    """

    size: int
    proven: bool
    floor_nbytes: int
    smallest_nbytes: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Fit:
    """What fits a memory.

    Attributes:
        dimension: The dimension whose size was searched.
        memory_nbytes: The bytes that bound the whole step.
        without: The largest size that needs no recomputation, None if even the smallest needs some.
        fastest: The size of the most samples a second, of those planned.
        largest: The largest size with a plan.
        beyond: The next size, None if the search was stopped before it was planned.
        planned: The sizes that were planned, in ascending order.
        stopped_early: Whether a request or the time limit ended the search.
    """

    dimension: str
    memory_nbytes: int
    without: Sized | None
    fastest: Sized
    largest: Sized
    beyond: Beyond | None
    planned: tuple[Sized, ...]
    stopped_early: bool

    def __repr__(self) -> str:
        without = "none" if self.without is None else f"{self.without.size:,}"
        return (
            f"{self.dimension} within {format_nbytes(self.memory_nbytes)}: {without} without recomputation, "
            f"{self.fastest.size:,} the fastest ({format_rate(self.fastest.per_s)}/s), {self.largest.size:,} the "
            f"largest (+{percent(self.largest.plan.time.overhead)} a step)"
        )


def fit(
    load: Callable[[int], Model],
    memory: str,
    *,
    dimension: str = "batch",
    multiple_of: int = 1,
    smallest: int = 1,
    plan_at: Callable[[int], Plan] | None = None,
    seed: int = 0,
    effort: str = DEFAULT_EFFORT,
    time_limit_s: float | None = None,
    limits: Limits = NO_LIMITS,
) -> Fit:
    """The largest sizes of a dimension whose training step fits a memory.

    Peaks are taken to grow with the size: the largest size is planned, and the next one is proven not to fit or has no
    plan that was found. For the most samples a second sizes from the one without recomputation to the largest are
    planned on a grid that narrows around the best, until no size can be a thousandth faster or none is left between.

    Args:
        load: Gives the model at a size of the dimension.
        memory: What the whole step may take, as ``24GB``.
        dimension: The name of the dimension, for messages.
        multiple_of: Only multiples of it are sizes.
        smallest: No smaller size is tried.
        plan_at: Plans a size within the memory, where more is known than the model of `load` says: workspace that is
            measured, what a device takes beyond the step. It raises what `pipeline.plan` raises.
        seed, effort: As in `pipeline.plan`, for each plan.
        time_limit_s: The longest search for each plan.
        limits: End the search early, with what is found by then.

    Raises:
        UsageError, BudgetSyntaxError: An argument cannot be used, or the peak does not depend on the dimension.
        InfeasibleBudgetError: Not even the smallest size has a plan.
        SearchStoppedError, NoPlanInTimeError: The search ended before any size was planned.
        ModelError: The model cannot be read at a size.
    """
    nbytes = parse_memory(memory)
    if multiple_of < 1:
        raise UsageError(f"sizes cannot be multiples of {multiple_of}", remedy="pass 1 or more")
    search = _Search(load, memory, nbytes, dimension, multiple_of, -(-smallest // multiple_of), limits)

    def planned(size: int) -> Plan:
        within = replace(limits, progress=lambda doing, *_: search.say(f"{size}: {doing}"))
        return plan(
            search.at(size), memory, scope=Scope.TOTAL, seed=seed, effort=effort, time_limit_s=time_limit_s,
            limits=within,
        )  # fmt: skip

    return search.run(planned if plan_at is None else plan_at)


class _Search:
    """Sizes are counted in multiples; every model is read and every size planned at most once."""

    def __init__(
        self, load: Callable[[int], Model], memory: str, limit_nbytes: int, dimension: str, unit: int, first: int,
        limits: Limits,
    ) -> None:  # fmt: skip
        self._load, self._memory, self._limit_nbytes = load, memory, limit_nbytes
        self._dimension, self._unit, self._first, self._limits = dimension, unit, first, limits
        self._model: tuple[int, Model] | None = None
        self._peaks: dict[int, int] = {}
        self._floors: dict[int, int] = {}
        self._plans: dict[int, Sized | Beyond] = {}
        self._errors: dict[int, OgcPlanError] = {}

    def run(self, plan_at: Callable[[int], Plan]) -> Fit:
        """Search the three sizes."""
        self._plan_at = plan_at
        first = self._first
        stored = self._last_within(self._stored_nbytes, first)
        if self._stopped():
            raise SearchStoppedError("the search was stopped before a size was planned", remedy="let it run on")
        stored = self._last_without(stored)
        if not self._fits(max(stored, first)):
            raise self._nothing_fits(self._errors[first])
        stored = stored if stored >= first and self._needs_none(stored) else 0
        high = self._last_within(self._floor_nbytes, max(stored + 1, first)) if not self._stopped() else stored
        self._largest(max(stored, first), high)
        if stored:
            self._fastest(stored)
        return self._found(stored)

    def _last_without(self, high: int) -> int:
        """The last count up to ``high`` whose plan recomputes nothing, or a lesser one than the first.

        A plan may count more than the model: measured workspace, or what a device takes beyond the step.
        """
        low, above, step = self._first - 1, high + 1, 1
        probe = high
        while low < above - 1 and not self._stopped():
            if self._needs_none(probe):
                low, probe = probe, (probe + above) // 2
            elif low < self._first:
                above, probe, step = probe, max(self._first, self._nearer(probe, step)), 2 * step
            else:
                above, probe = probe, (low + probe) // 2
        return low

    def _nearer(self, count: int, step: int) -> int:
        """A count less by at least a step, by how far the step that stores everything lies above the memory."""
        found = self._planned(count)
        whole = found.plan.peak.store_all_total_nbytes if isinstance(found, Sized) else 2 * self._limit_nbytes
        return min(count - step, count * self._limit_nbytes // max(1, whole))

    def _needs_none(self, count: int) -> bool:
        """Whether the plan of a count recomputes nothing."""
        found = self._planned(count)
        return isinstance(found, Sized) and found.plan.time.recompute_ns == 0

    def _nothing_fits(self, error: OgcPlanError) -> OgcPlanError:
        """The planner's error for the smallest size, as that of a memory."""
        if not isinstance(error, InfeasibleBudgetError) or error.smallest_known_nbytes is None:
            return error
        how = "is proven not to fit" if error.proven else "has no plan that was found"
        smallest, floor = format_both(error.smallest_known_nbytes), format_both(error.lower_bound_nbytes)
        return InfeasibleBudgetError(
            f"not even {self._dimension} {self._first * self._unit} fits {self._memory}, it {how}: "
            f"smallest peak found {smallest}, proven floor {floor}",
            remedy=f"pass --memory {error.enough_nbytes}B or more",
            smallest_known_nbytes=error.smallest_known_nbytes,
            enough_nbytes=error.enough_nbytes,
            lower_bound_nbytes=error.lower_bound_nbytes,
            proven=error.proven,
        )

    def at(self, size: int) -> Model:
        """The model at a size."""
        return self._at(size // self._unit)

    def say(self, doing: str) -> None:
        """Report progress; the best plan is that of the largest size so far."""
        fits = [found for found in self._plans.values() if isinstance(found, Sized)]
        best = max(fits, key=lambda sized: sized.size, default=None)
        largest = "" if best is None else f", {best.size:,} fits"
        self._limits.say(f"{self._dimension} {doing}{largest}", None if best is None else best.plan.time.recompute_ns)

    def _at(self, count: int) -> Model:
        if self._model is None or self._model[0] != count:
            self.say(f"{count * self._unit}: reading the model")
            model = self._load(count * self._unit)
            self._model = count, model
            self._peaks[count] = model.store_all().peak_total_nbytes
        return self._model[1]

    def _stored_nbytes(self, count: int) -> int:
        if count not in self._peaks:
            self._at(count)
        return self._peaks[count]

    def _floor_nbytes(self, count: int) -> int:
        if count not in self._floors:
            self._floors[count] = self._at(count).floors[Scope.TOTAL].nbytes
        return self._floors[count]

    def _stopped(self) -> bool:
        return self._limits.out_of_time()

    def _last_within(self, nbytes: Callable[[int], int], first: int) -> int:
        """The largest count whose bytes are within the memory; at least ``first - 1``, which is known to be.

        Bytes are nearly linear in the size, so the line through the last two counts says where to look next.
        """
        low, high = first - 1, 0
        seen: list[tuple[int, int]] = []
        probe = first
        while not self._stopped():
            seen.append((probe, nbytes(probe)))
            low, high = (probe, high) if seen[-1][1] <= self._limit_nbytes else (low, probe)
            if high and high - low == 1:
                break
            probe = _next_probe(seen, low, high, self._limit_nbytes)
            if probe * self._unit > LARGEST:
                raise UsageError(
                    f"a step with {self._dimension} {low * self._unit} still fits {self._memory}",
                    remedy="pass a smaller --memory, or name a dimension that memory depends on (ogc-plan show)",
                )
        return low

    def _fits(self, count: int) -> bool:
        return isinstance(self._planned(count), Sized)

    def _planned(self, count: int) -> Sized | Beyond:
        if count not in self._plans:
            size = count * self._unit
            self.say(f"{size}: planning")
            try:
                self._plans[count] = Sized(size, self._plan_at(size))
            except InfeasibleBudgetError as error:
                self._errors[count] = error
                self._plans[count] = Beyond(size, error.proven, error.lower_bound_nbytes, error.smallest_known_nbytes)
            except NoPlanInTimeError as error:
                self._errors[count] = error
                self._plans[count] = Beyond(size, False, self._floor_nbytes(count), None)
        return self._plans[count]

    def _largest(self, low: int, high: int) -> None:
        """Narrow down to a count that is planned, and the next one that is not; ``high`` has a floor that fits.

        The smallest peak found at a count tells where to look next, and every third time the middle is tried, as it may
        tell too little; upwards from a count that fits steps grow.
        """
        probe, step, misses = high, 1, 0
        while low < high and not self._stopped():
            found = self._planned(probe)
            if isinstance(found, Sized):
                low, probe, step = probe, probe + step, 4 * step
            else:
                misses += 1
                high, probe, step = probe - 1, self._estimate(probe, found) if misses % 3 else (low + probe) // 2, 1
            probe = min(max(probe, low + 1), high)
        if not self._stopped():
            self._planned(low + 1)

    def _estimate(self, count: int, found: Beyond) -> int:
        """The count that the smallest peak at ``count`` lets expect; what does not grow with it, the floors tell."""
        (less, low_nbytes), (more, high_nbytes) = sorted(self._floors.items())[-2:] if len(self._floors) > 1 else (
            (0, 0), (count, found.floor_nbytes)
        )  # fmt: skip
        fixed = max(0, low_nbytes - less * (high_nbytes - low_nbytes) // (more - less))
        smallest = found.smallest_nbytes or found.floor_nbytes
        return count * max(0, self._limit_nbytes - fixed) // max(1, smallest - fixed)

    def _fastest(self, stored: int) -> None:
        """Plan counts from ``stored`` to the largest until none between can be faster."""
        while not self._stopped():
            counts = sorted(count for count in self._plans if count >= stored and self._fits(count))
            largest = self._sized(counts[-1])
            ceiling = largest.size * 1e9 / max(1, largest.plan.time.store_all_ns)
            rates = [self._sized(count).per_s for count in counts]
            best = max(range(len(counts)), key=rates.__getitem__)
            if rates[best] * (1 + _FASTER) >= ceiling:
                return
            low, high = counts[max(best - 1, 0)], counts[min(best + 1, len(counts) - 1)]
            between = sorted({low + (high - low) * step // _GRID for step in range(1, _GRID)} - set(counts))
            if not between:
                return
            for count in between:
                if not self._stopped():
                    self._planned(count)

    def _sized(self, count: int) -> Sized:
        found = self._plans[count]
        assert isinstance(found, Sized)
        return found

    def _found(self, stored: int) -> Fit:
        planned = tuple(found for _, found in sorted(self._plans.items()) if isinstance(found, Sized))
        largest = planned[-1]
        after = self._plans.get(largest.size // self._unit + 1)
        return Fit(
            self._dimension,
            self._limit_nbytes,
            self._sized(stored) if stored in self._plans else None,
            max(planned, key=lambda sized: sized.per_s),
            largest,
            after if isinstance(after, Beyond) else None,
            planned,
            self._stopped(),
        )


def _next_probe(seen: list[tuple[int, int]], low: int, high: int, limit: int) -> int:
    """Where the line through the last two points meets the limit, strictly between the known bounds."""
    at, nbytes = seen[-1]
    before, less = seen[-2] if len(seen) > 1 else (0, 0)
    slope = (nbytes - less) / (at - before)
    guess = at + int((limit - nbytes) / slope) if slope > 0 else low * _GROWTH
    if not high:
        return max(low + 1, min(guess, max(low, 1) * _GROWTH))
    if len(seen) % 3 == 0:  # lines may creep towards the limit from one side
        guess = (low + high) // 2
    return min(max(guess, low + 1), high - 1)
