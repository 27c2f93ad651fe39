"""The pieces of `optimal` that the ablation switches off, one variant each.

A variant sets fields of the effort where a field switches the piece off. Otherwise it replaces names of modules under
planner/strategies during a solve. A name is replaced in the module that looks it up: for an imported function, the
module that calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ogc_plan.planner.strategies.evaluation.evaluator import Evaluator, Labels
from ogc_plan.planner.strategies.evaluation.labels import Label
from ogc_plan.planner.strategies.integers.stage_generation import IntegerBound
from ogc_plan.planner.strategies.optimal.effort import EFFORTS, Effort
from ogc_plan.planner.strategies.optimal.incumbents import Incumbents

DEFAULT, HIGH, REPLAN = "default", "high", "replan"
"""What a variant is compared with: first plans of either effort, or plans after one for another budget."""
HOME = "ogc_plan.planner.strategies"
_NEVER = 1 << 30


@dataclass(frozen=True, slots=True)
class Piece:
    """One variant.

    Attributes:
        about: The piece that is switched off, in words.
        effort: Values of fields of the effort, by dotted name.
        changes: Replaced names, dotted from `HOME`.
        base: What the variant is compared with.
        lowest: Whether the variant also looks for the smallest peak.
    """

    name: str
    about: str
    effort: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    base: str = DEFAULT
    lowest: bool = False
    seed: int = 0


def _gives(value: Any = None) -> Callable[..., Any]:
    """A function that does nothing but return a value."""
    return lambda *_, **__: value


def _nothing_kept(evaluator: Evaluator, _: int) -> Labels:
    return evaluator.labels(Label.DROP)


_round, _overruns = Incumbents.round, IntegerBound._overruns


def _round_for_backwards(incumbents: Incumbents, relaxation: Any) -> set[int]:
    return {peak for peak in _round(incumbents, relaxation) if peak >= 0}


def _overruns_in_backwards(bound: IntegerBound, sequence: Any) -> dict[int, int]:
    return {stage: nbytes for stage, nbytes in _overruns(bound, sequence).items() if stage >= 0}


_COUNTED, _GREEDY, _PER_LAYER = (
    {f"optimal.initial_plans.AncestorPlans._make_{kind}": _gives()} for kind in ("counted", "greedy", "per_layer")
)
_ROTOR = {"optimal.fixed_order.offer_rotor": _gives()}
_KEEP_NOTHING = SimpleNamespace(labels=lambda evaluator, *_: evaluator.labels(Label.DROP))
_CYCLES = {"_MOVES": (100_000,), "_GUESSES": (0.4,), "_HEATS": (7.0,), "_PEAK_HEATS": (0.03,)}
_UNBUDGETED = ("checkpoint_sequential", "keep_expensive", "sqrt_n", "ogc")

BASES = {
    name: Piece(name, about, base=name, lowest=name == DEFAULT)
    for name, about in ((DEFAULT, "nothing"), (HIGH, "nothing, effort high"), (REPLAN, "nothing, after a plan at 50%"))
}
"""What variants are compared with, by name."""

_ALL = (
    Piece("seed", "control: nothing, but with another seed", seed=1),
    # initial plans
    Piece("ancestors", "initial plans of all other strategies", changes=_COUNTED | _GREEDY | _PER_LAYER | _ROTOR),
    Piece("greedy", "initial plan of greedy", changes=_GREEDY),
    Piece("layers", "initial plan of greedy by layers", changes=_PER_LAYER),
    Piece("rotor", "initial plan of rotor", changes=_ROTOR),
    Piece("knapsack", "initial plan of the knapsack", changes={"baselines.torch_knapsack.labels": _nothing_kept}),
    Piece("checkmate", "initial plan of checkmate", changes={"optimal.initial_plans._CHECKMATE_OPS": 0}),
    Piece("unbudgeted", "initial plans of segments, speed, sqrt and ogc",
          changes={f"optimal.initial_plans.{module}": _KEEP_NOTHING for module in _UNBUDGETED}),
    Piece("chain", "the chain of blocks", lowest=True,
          changes={"optimal.fixed_order.chain_plan": _gives(), "optimal.problem_cache.ProblemCache.chain":
                   lambda cache, _: SimpleNamespace(smallest=lambda: cache.rotor.smallest)}),
    Piece("refinements", "the second search for the chain's options", {"search.refinements": 0}),
    # roundings
    Piece("points", "rounding of the relaxations' points to retention",
          changes={"optimal.fixed_order.round_points": _gives()}),
    Piece("cut_rounding", "rounding of the minimum cut", changes={"optimal.row_generation.round_cut": _gives()}),
    Piece("mixtures", "mixtures of two kept sets of the cut",
          changes={"relaxation.min_cut_rounding.mixture": lambda small, *_: small.copy()}),
    # bounds
    Piece("integers", "bounds in integers", {"bound.integer_work": 0.0}),
    Piece("forward_rows", "rows for moments of the forward",
          changes={"optimal.incumbents.Incumbents.round": _round_for_backwards,
                   "integers.stage_generation.IntegerBound._overruns": _overruns_in_backwards}),
    Piece("necks", "stages at narrow necks from the start",
          changes={"relaxation.stage_relaxation.StageRelaxation.necks": _gives([])}),
    Piece("hopeless", "giving up integers for a wide gap", changes={"optimal.fixed_order._HOPELESS": 1e9}),
    # annealing
    Piece("retention", "annealing of the best plan's retention", {"search.iterations": 0}),
    Piece("two_annealers", "a second annealer in parallel", changes={"optimal.parallel.THREADS": 1}),
    Piece("worth", "less annealing for a narrow gap", changes={"optimal.incumbents.Incumbents.worth": _gives(1.0)}),
    Piece("law", "less work on large graphs", changes={"optimal.effort._EXPONENT": 0.0}),
    # orders
    Piece("orders", "all orders but the default ones", {"orders.rounds": 0}, lowest=True),
    Piece("reordering", "orders made for the best plan", changes={"optimal.strategy._may_reorder": _gives(False)}),
    Piece("elsewhere", "orders made for a plan that is the best of its order",
          changes={"optimal.strategy.order_free_bound": _gives(1 << 62)}),
    Piece("restarts", "a second restart when orders are made", {"orders.restarts": 1}, lowest=True),
    Piece("order_cycles", "cycles of moves, guesses and heats while orders are made", lowest=True,
          changes={f"optimal.alternate_orders.{name}": values for name, values in _CYCLES.items()}),
    Piece("far_orders", "far orders after the first round", lowest=True,
          changes={"optimal.alternate_orders._GUESSED": _NEVER}),
    # smallest peaks
    Piece("reaching", "lowering a plan's peak into a budget that no plan fits",
          changes={"optimal.strategy._reached": _gives()}),
    Piece("lowering", "orders made for the plans of the smallest peak", lowest=True,
          changes={"optimal.solve_context.SolveContext._smallest_reordered":
                   lambda _, known: min(known, key=lambda plans: plans.peak_nbytes)}),
    Piece("last_lowering", "lowering the peak further in the best order", lowest=True,
          changes={"optimal.solve_context.lower_peak_further": _gives()}),
    Piece("low_orders", "orders of a low floor", lowest=True,
          changes={"optimal.problem_cache.ProblemCache.low": _gives()}),
    Piece("peak_annealing", "annealing of retention for the smallest peak", {"search.peak_iterations": 0}, lowest=True),
    # plans after others, and more effort
    Piece("earlier", "plans of earlier solves, and less work after them", {"resumes": False}, base=REPLAN),
    Piece("high_first", "the plan of effort default first", {"first": None}, base=HIGH),
    Piece("thorough", "work that effort high alone does", {"thorough": False}, base=HIGH),
)  # fmt: skip
PIECES: dict[str, Piece] = {piece.name: piece for piece in _ALL}
"""Every variant by name."""


@contextmanager
def without(piece: Piece) -> Iterator[None]:
    """Solve without a piece meanwhile. Raises AttributeError for a name that no module has."""
    name = HIGH if piece.base == HIGH else DEFAULT
    with ExitStack() as stack:
        for path, value in piece.changes.items():
            stack.enter_context(patch(f"{HOME}.{path}", value))
        stack.enter_context(patch.dict(EFFORTS, {name: _adjusted(EFFORTS[name], piece.effort)}))
        yield


def _adjusted(effort: Effort, values: Mapping[str, Any]) -> Effort:
    for path, value in values.items():
        record, _, name = path.rpartition(".")
        changed = {record: replace(getattr(effort, record), **{name: value})} if record else {name: value}
        effort = replace(effort, **changed)
    return effort
