"""How hard `optimal` tries: amounts of work, never seconds, so that each effort is deterministic."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import UsageError

_WHOLE_OPS, _EXPONENT = 300, 0.6


def share_of(op_count: int) -> float:
    """The share of an amount of work that a graph gets: iterations take longer on large graphs."""
    return float(min(1.0, (_WHOLE_OPS / max(1, op_count)) ** _EXPONENT))


@dataclass(frozen=True, slots=True)
class BoundEffort:
    """Work on the bound.

    Attributes:
        simplex_work: For one linear program, as `linear_program.solve` counts it; about a billion a second.
        integer_work: For the search in integers, as `cp_sat.minimum` counts it; about one a second. 0 for none.
        accepted_gap: The search ends once its plan is proven to lie within this share of the step of the optimum.
    """

    simplex_work: int
    integer_work: float
    accepted_gap: float


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """Work on plans in given orders.

    Attributes:
        iterations: Of the retention annealing of the best plan.
        peak_iterations: Of the retention annealing that lowers the smallest peak, in each order.
        label_work: Of the label annealing that lowers it on large graphs, iterations times ops.
        chain: Of the search for options of the chain's blocks, in units of chain.py.
        refinements: How often these options are searched again around the budget.
    """

    iterations: int
    peak_iterations: int
    label_work: int
    chain: float
    refinements: int


@dataclass(frozen=True, slots=True)
class OrderEffort:
    """Work on orders made for plans.

    Attributes:
        rounds: How often plan and order alternate; 0 for the default orders alone.
        iterations: Of the retention annealing in each round.
        restarts: Of these rounds from one plan.
    """

    rounds: int
    iterations: int
    restarts: int

    def resumed(self) -> OrderEffort:
        """This effort for a plan within its budget, in a solve that starts from earlier plans."""
        return replace(self, iterations=self.iterations * 2 // 5)


@dataclass(frozen=True, slots=True)
class Effort:
    """Work of one solve.

    Attributes:
        first: The effort whose plan is made first, so that more effort never gives a worse plan.
        thorough: Whether the search accepts no short cuts: integers before annealing, two rounds, any gap.
        resumes: Whether later solves of a cached problem start from the plans of earlier ones, with less work.
    """

    name: str
    bound: BoundEffort
    search: SearchEffort
    orders: OrderEffort
    first: str | None = None
    thorough: bool = False
    resumes: bool = False

    def resumed(self) -> Effort:
        """This effort for a solve that starts from earlier plans.

        The work on the smallest peak stays, so that what one solve promises the others keep.
        """
        bound = replace(self.bound, simplex_work=self.bound.simplex_work * 2 // 5, integer_work=0.0)
        search = replace(self.search, refinements=0)
        return replace(self, bound=bound, search=search)


EFFORTS = {
    effort.name: effort
    for effort in (
        Effort(
            "fast",
            BoundEffort(simplex_work=150_000_000, integer_work=0.0, accepted_gap=0.001),
            SearchEffort(iterations=40_000, peak_iterations=20_000, label_work=1_000_000, chain=0.1, refinements=0),
            OrderEffort(rounds=0, iterations=0, restarts=0),
        ),
        Effort(
            "default",
            BoundEffort(simplex_work=240_000_000, integer_work=1.0, accepted_gap=0.001),
            SearchEffort(iterations=100_000, peak_iterations=30_000, label_work=3_000_000, chain=0.6, refinements=1),
            OrderEffort(rounds=3, iterations=20_000, restarts=2),
            resumes=True,
        ),
        Effort(
            "high",
            BoundEffort(simplex_work=1_500_000_000, integer_work=30.0, accepted_gap=0.0),
            SearchEffort(
                iterations=4_000_000, peak_iterations=1_000_000, label_work=100_000_000, chain=5.0, refinements=2
            ),
            OrderEffort(rounds=20, iterations=100_000, restarts=8),
            first="default",
            thorough=True,
        ),
    )
}


def effort_named(text: str) -> Effort:
    """The effort of a name. Raises UsageError for one that does not exist."""
    if text not in EFFORTS:
        raise UsageError(f"effort {text!r} is unknown", remedy=f"choose one of {', '.join(EFFORTS)}")
    return EFFORTS[text]
