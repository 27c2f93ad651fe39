"""The certified search under one forward and backward order: initial plans, annealing, and a bound in parallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

from ..orders.reordered_problem import Orders
from ..relaxation.stage_relaxation import Relaxation
from ..retention.annealer import RetentionAnnealer
from .improve import improve_retention
from .incumbents import Candidate, Incumbents
from .initial_plans import AncestorPlans, chain_plan, offer_extremes, offer_rotor
from .parallel import annealers, threads
from .problem_cache import ProblemCache
from .proof import ParallelProof, Proof, certifying
from .relaxation_rounding import round_points
from .row_generation import bound_first_backward, generate_rows

_INITIAL_THREADS = 4
"""Threads that ask the other strategies and the chain."""
_ALONE, _PARALLEL = 0.3, 1.0
"""Shares of the effort's work on the bound: before annealing, for a thorough effort, then in parallel with it."""
_AGAIN_WORTH = 0.003
"""A thorough effort does the latter twice in a round for a gap still wider than this share of the step."""
_WIDE = 0.02
"""A gap wider than this share of the step is hardly narrowed in orders made for a plan if it was not before."""
_HOPELESS = 0.1
"""A gap wider than this share of the step is not worth work in integers, unless the effort is thorough."""
_LAST_SHARE = 0.5
"""The largest share of the annealing that is done from where the bound's points lead."""


@dataclass
class FixedOrderSearch:
    """The search for plans in ``orders``, None for the default ones.

    Attributes:
        incumbents: What the search has found.
        cache: What was worked out for the problem in these orders.
        point: The relaxation at several backward stages, once it is solved.
    """

    incumbents: Incumbents
    cache: ProblemCache
    orders: Orders | None = None
    point: Relaxation | None = None
    _bounded: bool = False

    @property
    def best(self) -> Candidate | None:
        """The cheapest plan found within the budget."""
        return self.incumbents.best

    @cached_property
    def _retention_annealers(self) -> tuple[RetentionAnnealer, ...]:
        """One for each thread; none if the graph is too large."""
        return () if self.incumbents.problem.large else annealers(self.incumbents)

    def bound_quickly(self) -> None:
        """Bound the first backward alone and offer the roundings; once."""
        if not self._bounded:
            bound_first_backward(self.incumbents, self.cache.cut.afresh())
            self._bounded = True

    def relax(self) -> None:
        """Bound the first backward, then several, and offer the roundings; once."""
        if self.point is None:
            self.bound_quickly()
            if self.cache.relaxed is not None:
                self.point = generate_rows(self.incumbents, self.cache.relaxed)

    def start(self, known: Sequence[Candidate] = ()) -> None:
        """Find initial plans: the ``known`` ones, roundings of the relaxations, the other strategies and the chain.

        Under the default orders threads ask the other strategies and the chain while the relaxations are solved. The
        other strategies count even if the relaxations settle the search: a plan may be as much worse than the optimum
        as the effort accepts, but never worse than theirs. The chain's blocks are large in other orders, and not worth
        its time.
        """
        incumbents, cache = self.incumbents, self.cache
        for candidate in known:
            incumbents.keep(candidate)
        offer_extremes(incumbents)
        if not incumbents.problem.backward_order or incumbents.gap() <= 0:
            return
        if self.orders is not None:
            self.relax()
            return
        self.bound_quickly()
        chain = None
        with threads(incumbents.limits, _INITIAL_THREADS) as team:
            ancestors = AncestorPlans(incumbents, cache, team.limits)
            for part in ancestors.parts:
                team.start(part)
            if not incumbents.settled():
                chain = team.start(chain_plan, incumbents, cache, team.cancelled)
            self.relax()
            team.join()
        if incumbents.gap() <= 0:
            return
        ancestors.offer()
        offer_rotor(incumbents, cache.rotor)
        if chain is not None and not incumbents.settled():
            found = chain.result()
            if found is not None:
                incumbents.offer_sequence(found)

    def follow(self, candidate: Candidate) -> None:
        """Go on from a plan in these orders that was found elsewhere, and bound the others."""
        self.incumbents.keep(candidate)
        self.relax()

    def improve(self, *, share: float = 1.0) -> bool:
        """Anneal the best plan, for ``share`` of the effort's work; whether that led to a better plan."""
        incumbents, before = self.incumbents, self.best
        if before is not None and self._retention_annealers and not incumbents.settled():
            improve_retention(incumbents, self._retention_annealers, share=share)
        return self.best is not before

    @cached_property
    def _proof(self) -> Proof | None:
        if self.cache.relaxed is None or not self.incumbents.effort.bound.integer_work:
            return None
        return Proof(self.incumbents, self.cache.relaxed)

    def solve(self) -> None:
        """Round the relaxation's point; a thorough effort then looks for the optimum in integers.

        A thorough effort anneals for long, so an optimum found before saves that. A short annealing runs in parallel
        with the search in integers.
        """
        if self._retention_annealers and self.point is not None and self._open():
            round_points(self.incumbents, self._retention_annealers[0], (self.point,))
        if not self.incumbents.effort.thorough:
            return
        proof = self._proof
        if proof is not None and self._promising():
            assert self.best is not None
            self.incumbents.say("searching exactly")
            proof.advance(self.best, proof.worth(_ALONE), self.incumbents.limits)
            self._take(proof)

    @contextmanager
    def proving(self) -> Iterator[ParallelProof | None]:
        """Raise the bound in parallel with the block, for `finish`; None if that promises nothing."""
        if self._proof is None or not self._promising():
            yield None
            return
        with certifying(self._proof) as begun:
            begun.go_on(_PARALLEL)
            yield begun
            if self.incumbents.out_of_time():  # the outcome depends on the time already, so what is proven counts
                self.incumbents.bound_ns = max(self.incumbents.bound_ns, begun.certified().bound_ns)

    def learn(self, proof: ParallelProof | None) -> None:
        """Wait for the proof unless the search is settled, take the bound, and round the proof's points."""
        if proof is not None and not self.incumbents.settled():
            self.incumbents.say("searching exactly")
            self._take(proof.certified())

    def finish(self, begun: ParallelProof | None = None, *, share: float = 1.0, tried: bool = False) -> None:
        """Raise the bound and lower the cost in rounds; the last annealing starts where the bound's points lead.

        Args:
            begun: A proof at work, which the first round goes on with.
            share: The share of the effort's annealing that each round does before that last one.
            tried: Whether a proof was tried in other orders. None is then begun that promises no more than a second
                piece of work would.
        """
        for number in range(2 if self.incumbents.effort.thorough else 1):
            if not self._open():
                return
            known = None if number else begun
            begins = known is None and not (tried and self._wide())
            with self.proving() if begins else nullcontext(known) as proof:
                self._round(proof, share)

    def _round(self, proof: ParallelProof | None, share: float) -> None:
        """Anneal, and anneal again if that or points of the proof led somewhere."""
        incumbents = self.incumbents
        moves = self.improve(share=share) or incumbents.effort.thorough
        before = self.best
        self.learn(proof)
        if incumbents.settled():
            return
        thorough = incumbents.effort.thorough
        more = proof is not None and thorough and incumbents.gap() > _AGAIN_WORTH and self._promising()
        if proof is not None and more:
            proof.go_on(_PARALLEL)
        if self._retention_annealers and (moves or self.best is not before):
            improve_retention(incumbents, self._retention_annealers, share=min(share, _LAST_SHARE))
        if more:
            self.learn(proof)

    def _take(self, proof: Proof) -> None:
        """Take the bound of a proof, and round its points."""
        self.incumbents.bound_ns = max(self.incumbents.bound_ns, proof.bound_ns)
        if self._retention_annealers:
            round_points(self.incumbents, self._retention_annealers[0], proof.taken())

    def _wide(self) -> bool:
        """Whether a second piece of work on the bound would hardly close the gap; a thorough effort tries it anyway."""
        return self.incumbents.gap() > _WIDE and not self.incumbents.effort.thorough

    def _open(self) -> bool:
        """Whether there is a plan, and reason and time to improve it or its bound."""
        incumbents = self.incumbents
        return self.best is not None and not incumbents.settled() and not incumbents.out_of_time()

    def _promising(self) -> bool:
        """Whether more work on the bound may close what is left of the gap."""
        if self._proof is None or self._proof.ended or not self._open():
            return False
        return self.incumbents.effort.thorough or self.incumbents.gap() <= _HOPELESS
