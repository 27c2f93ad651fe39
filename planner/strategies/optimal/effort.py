"""How hard `optimal` tries: amounts of work, never seconds, so that each effort is deterministic."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import UsageError

_WHOLE_OPS, _WHOLE_THOROUGH_OPS, _GROWING_OPS = 300, 375, 80
"""Larger graphs get less of the work, ..."""
_PATIENT_OPS, _PATIENCE = 700, 3
"""... but more again where they are so large that plans may take longer."""
_LEAST_GROWING = 0.3
"""No graph gets less of the work in integers: a few stages of a large one are often easy."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Work of one solve.

    ``stages``: stages times ops of the largest linear program; ``relaxing``: work of one, as linear_program.Simplex
    counts it, a billion a second or two, ``patient`` where plans may take longer.
    ``labels``: iterations times ops of the label annealing (where holds are annealed next, only ``thorough`` does any).
    ``holds``: iterations of the hold annealing, on large graphs fewer; ``roundings``: likewise at each of two heats
    from a rounding of a relaxation's point that overruns the budget (relaxation_rounding.py); ``reaching``:
    of what lowers the peak until a plan fits; ``peaks``: of that which looks for the smallest peak under each order,
    ``deepest``: in the best, both on large graphs fewer; ``lowerings``: rounds of adapting orders to the lowest plans;
    ``at_lowest``: the share of ``holds`` and ``roundings`` that is done within the smallest peak, where an iteration
    takes several times as long.
    ``growing``: work of the search in integers under more and more stages, as cp_sat.minimum counts it, on large
    graphs less, 0 for no bound but that of the linear programs that plans are rounded from. ``rounds``: how often
    bound and plan learn from each other.
    ``chain``: effort of the search for options of the chain's blocks, ``refinements``: how often they are searched
    again around the budget. ``orders``: how many other orders may be planned for where the graph branches and the
    default orders have no plan, or ``eager`` wherever they leave a gap; ``compared``: ops of the largest graph where
    they are chosen from many by their relaxations. ``reorderings``: rounds of adapting the order to the best plan on
    graphs of up to ``reordered`` ops, ``adapting``: iterations of the hold annealing in each, on large graphs fewer
    where peaks are lowered; ``following``: likewise, or 0, where an order follows a plan until it fits the budget,
    in as many rounds as ``lowerings``; ``restarts``: how often that is done from one plan.
    ``hopeless``: the share of a step from which on a gap is not worth work in integers, on large graphs less.
    ``enough``: the share of a step that a plan may be proven to lie above the best one at most for the search to end.
    ``first``: the effort whose plan is made before, so that more effort never gives a worse one.
    ``thorough``: whether the plans of several orders are improved before the best of them is chosen, and integers are
    searched before annealing, and for longer.
    ``again``: less work for solves of a prepared problem that has plans of earlier ones already, which it starts from.
    """

    name: str
    stages: int
    relaxing: int
    patient: int
    labels: int
    holds: int
    peaks: int
    deepest: int
    lowerings: int
    at_lowest: float
    growing: float
    rounds: int
    chain: float
    refinements: int
    reorderings: int
    adapting: int
    reordered: int
    restarts: int
    hopeless: float
    enough: float
    first: str | None = None
    thorough: bool = False
    again: Effort | None = None

    def share_of(self, op_count: int) -> float:
        """The share of ``holds``, ``peaks`` and ``deepest`` that a graph gets: iterations take longer on large ones."""
        return self._share(_WHOLE_THOROUGH_OPS if self.thorough else _WHOLE_OPS, op_count)

    def relaxing_on(self, op_count: int) -> int:
        """The work of one linear program of a graph."""
        return self.patient if op_count > _PATIENT_OPS else self.relaxing

    def growing_on(self, op_count: int) -> float:
        """The share of ``growing`` that a graph gets, as work: on a small one integers soon settle the search."""
        whole = 1.0 if self.thorough else min(1.0, _GROWING_OPS / max(1, op_count))
        return self.growing * max(_LEAST_GROWING, whole)

    def lowering_on(self, op_count: int) -> int:
        """Iterations of each annealing while orders follow the lowest plans of a graph.

        An iteration takes several times as long near the smallest peak, and more rounds lower it more than longer ones.
        """
        return int(self.adapting * min(1.0, _WHOLE_OPS / max(1, op_count)))

    def reorderings_on(self, op_count: int) -> int:
        """The rounds of ``reorderings`` that a graph gets."""
        return self.reorderings * self._patience(op_count) if op_count <= self.reordered else 0

    def _share(self, whole: int, op_count: int) -> float:
        return min(1.0, self._patience(op_count) * whole / max(1, op_count))

    def _patience(self, op_count: int) -> int:
        return 1 if self.thorough or op_count <= _PATIENT_OPS else _PATIENCE


_DEFAULT = Effort(
    "default", stages=2_500, relaxing=240_000_000, patient=400_000_000, labels=3_000_000,
    holds=100_000, peaks=20_000, deepest=40_000, lowerings=3, at_lowest=0.2,
    growing=0.7, rounds=1, chain=0.6, refinements=1, reorderings=3,
    adapting=20_000, reordered=1_500, restarts=2, hopeless=0.1, enough=0.001,
)  # fmt: skip
_AGAIN = replace(
    _DEFAULT, stages=1_500, relaxing=100_000_000, patient=100_000_000, holds=80_000,
    at_lowest=1.0, growing=0.0, refinements=0, reorderings=1, reordered=150,

)  # fmt: skip
"""What it takes to look for the smallest peak is as in the first solve, so that what one promises the other keeps."""

EFFORTS = {
    effort.name: effort
    for effort in (
        Effort(
            "fast", stages=2_000, relaxing=150_000_000, patient=150_000_000,
            labels=1_000_000, holds=40_000, peaks=20_000, deepest=0,
            lowerings=0, at_lowest=1.0, growing=0.0, rounds=1, chain=0.1, refinements=0,
            reorderings=0, adapting=0, reordered=0, restarts=0, hopeless=0.1,
            enough=0.001,
        ),
        replace(_DEFAULT, again=_AGAIN),
        Effort(
            "high", stages=5_000, relaxing=1_500_000_000, patient=1_500_000_000,
            labels=100_000_000, holds=4_000_000, peaks=500_000,
            deepest=4_000_000, lowerings=10, at_lowest=1.0, growing=30.0, rounds=2, chain=5.0,
            refinements=2, reorderings=20, adapting=100_000,
            reordered=1_500, restarts=8, hopeless=1e9, enough=0.0, first="default", thorough=True,
        ),
    )
}  # fmt: skip


def effort_named(text: str) -> Effort:
    """The effort of a name. Raises UsageError for one that does not exist."""
    if text not in EFFORTS:
        raise UsageError(f"effort {text!r} is unknown", remedy=f"choose one of {', '.join(EFFORTS)}")
    return EFFORTS[text]
