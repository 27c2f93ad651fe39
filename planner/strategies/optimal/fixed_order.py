"""The certified search under one forward and backward order: start, improve, and bound beside the improving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..labelling.annealer import Annealer
from ..orders.reordered_problem import Orders
from ..relaxation.stage_relaxation import Relaxation
from ..retention.annealer import HoldAnnealer
from .beside import beside, wait_for
from .improve import HOLD_OPS, improve_holds, improve_labels, reach
from .incumbents import Candidate, Search
from .initial_plans import Others, chain_plan, cut, generate_rows, offer_extremes, repair, rotors
from .parallel import annealers_of
from .problem_cache import Prepared
from .proof import Proof, ProofBeside, certifying
from .relaxation_rounding import round_points
from .smallest_peak import lower_peak

_ALONE, _BESIDE = 0.3, 1.0
"""Shares of the effort's work on the bound: before annealing, where that takes long, then beside it, once or
twice in a round."""
_AGAIN_WORTH = 0.003
"""The second time where the gap is still more than this share of the step, ..."""
_AGAIN_OPS = 100
"""... on graphs of no more ops, unless the effort is thorough: larger ones are seldom settled by as much work again."""
_AGAIN_MOST = 0.02
"""... and no more than this, unless the effort is thorough: wider ones are hardly narrowed by as much work again."""
_HOPEFUL_OPS = 200
"""Integers settle larger graphs less often, so wide gaps are given up sooner there."""
_LAST_SHARE = 0.5
"""The share of the annealing that is done at most from where the bound's points lead."""


@dataclass
class OneOrder:
    """A search and what was prepared for its order; ``orders`` None stands for the default ones."""

    search: Search
    prepared: Prepared
    orders: Orders | None = None
    point: Relaxation | None = None
    """What the relaxation of several backwards holds, once it is solved."""
    _cut: bool = False

    @cached_property
    def _labels(self) -> tuple[Annealer, ...]:
        return annealers_of(Annealer, self.search)

    @cached_property
    def _holds(self) -> tuple[HoldAnnealer, ...]:
        """One for each lane; none where the graph is too large."""
        small = self.search.problem.op_count <= HOLD_OPS
        return annealers_of(HoldAnnealer, self.search) if small else ()

    def bound_quickly(self) -> None:
        """The bound and the roundings of the first backward alone; once."""
        if not self._cut:
            cut(self.search, self.prepared.cut.afresh())
            self._cut = True

    def relax(self) -> None:
        """The bound and the roundings of the first backward, then of several; once."""
        if self.point is None:
            self.bound_quickly()
            if self.prepared.relaxed is not None:
                self.point = generate_rows(self.search, self.prepared.relaxed)

    def start(self, known: Sequence[Candidate] = (), unreached: Callable[[], object] = lambda: None) -> None:
        """Find plans: relaxations rounded, the other strategies, the chain.

        ``known`` plans are for this order; with any, roundings under smaller budgets are spared. Where the relaxations
        under the default orders lead to no plan within the budget, ``unreached`` is called. The other strategies are
        asked even where the relaxations settle the search: a plan may be as much worse than the best as the effort
        allows, but never worse than theirs.
        """
        search, prepared = self.search, self.prepared
        for candidate in known:
            search.keep(candidate)
        offer_extremes(search)
        if not search.problem.backward_order or search.gap() <= 0:
            return
        relaxed = prepared.relaxed
        if self.orders is None:  # else the chain's blocks are large, and not worth its time
            self.bound_quickly()
            self._ask_others(unreached)
        else:
            self.relax()
        if relaxed is not None and not known and not search.settled():
            repair(search, relaxed)
        if search.best is None and self.orders is not None:
            others = Others(search, self.prepared)
            with beside(search, len(others.parts)) as pool:
                wait_for(search, [pool.submit(part) for part in others.parts])
            others.offer()

    def reach(self) -> None:
        """Lower the peak until a plan fits the budget."""
        if self.search.best is None and not self.search.out_of_time():
            reach(self.search, self._labels[0], self._holds[0] if self._holds else None)

    def _ask_others(self, unreached: Callable[[], object]) -> None:
        """Round the relaxations of several backwards; meanwhile ask the other strategies and the chain for plans."""
        search, prepared, others, chain = self.search, self.prepared, Others(self.search, self.prepared), None
        with beside(search, 1 + len(others.parts)) as pool:
            asked = [] if prepared.relaxed is None else [pool.submit(part) for part in others.parts]
            if not search.settled():
                chain = pool.submit(chain_plan, search, prepared)
            if prepared.relaxed is None:
                others.make()
            else:
                self.point = generate_rows(search, prepared.relaxed)
                if search.best is None:
                    unreached()
            pending: list[Future[Any]] = [*asked, *([] if chain is None else [chain])]
            wait_for(search, pending)
        if search.gap() <= 0:
            return
        others.offer()
        rotors(search, prepared.rotor)
        if chain is not None and not search.settled():
            found = chain.result()
            if found is not None:
                search.offer_sequence(found)

    def follow(self, candidate: Candidate) -> None:
        """Go on from a plan of this order that was found elsewhere, and bound the others."""
        self.search.keep(candidate)
        self.relax()

    def improve(self, *, share: float = 1.0) -> bool:
        """Anneal labels where it is worth it, then holds; whether a plan was better.

        ``share`` of the effort's work may be done; small graphs have use for less than that.
        """
        search, before = self.search, self.search.best
        if before is not None and not search.settled():
            improve_labels(search, self._labels, share=share, holds_follow=bool(self._holds))
            if self._holds:
                improve_holds(search, self._holds, share=share)
        return search.best is not before

    @cached_property
    def _proof(self) -> Proof | None:
        small = self.search.problem.op_count <= HOLD_OPS
        if self.prepared.relaxed is None or (small and not self.search.effort.growing):
            return None
        return Proof(self.search, self.prepared.relaxed)

    def solve(self) -> None:
        """Round the relaxation's point.

        Where annealing takes long, as a thorough effort's does, look for the optimum in integers before it, too: if
        that is found soon, that is all. A short annealing is done beside that search at no cost.
        """
        if self._holds and self.point is not None and self._open():
            round_points(self.search, self._holds, (self.point,))
        if not self.search.effort.thorough:
            return
        proof = self._proof
        if proof is not None and proof.grows and self._promising():
            assert self.search.best is not None
            self.search.say("solving in integers")
            proof.advance(self.search.best, proof.worth(_ALONE))
            self._take(proof)

    @contextmanager
    def proving(self) -> Iterator[ProofBeside | None]:
        """Begin to raise the bound beside what the caller does, for `finish`; None where that promises nothing."""
        if self._proof is None or not self._promising():
            yield None
            return
        with certifying(self._proof) as begun:
            begun.go_on(_BESIDE)
            yield begun
            if self.search.stopped_early:  # the outcome depends on when, so what is proven by now may count
                self.search.bound_ns = max(self.search.bound_ns, begun.certified().bound_ns)

    def learn(self, proof: ProofBeside | None, *, share: float = 1.0) -> None:
        """Wait for the proof where that is of use, take over what is proven, and round its points."""
        if proof is not None and not self.search.settled():
            self.search.say("solving in integers" if proof.proof.grows else "bounding")
            self._take(proof.certified(), share)

    def finish(self, begun: ProofBeside | None = None, *, share: float = 1.0, tried: bool = False) -> None:
        """Raise the bound, and meanwhile lower the cost, at last where the bound's own points lead.

        In a round, annealing that has led nowhere is not taken up again unless those points did. Each does ``share`` of
        the annealing before that. The first goes on with a proof ``begun`` before. Where one was ``tried`` in
        other orders, none is begun in these that promises no more than a second piece of work.
        """
        for number in range(self.search.effort.rounds):
            if not self._open():
                return
            known = None if number else begun
            begins = known is None and not (tried and self.search.problem.op_count > _AGAIN_OPS and self._wide())
            with self.proving() if begins else nullcontext(known) as proof:
                self._round(proof, share)

    def _round(self, proof: ProofBeside | None, share: float) -> None:
        """Anneal, then again where that or points of the proof led somewhere, beside more of it if that is of use."""
        search = self.search
        moves = self.improve(share=share) or search.effort.thorough
        before = search.best
        self.learn(proof, share=share)
        if search.settled():
            return
        again = search.effort.thorough or (search.problem.op_count <= _AGAIN_OPS and not self._wide())
        more = proof is not None and again and search.gap() > _AGAIN_WORTH and self._promising()
        if proof is not None and more:
            proof.go_on(_BESIDE)
        if self._holds and (moves or search.best is not before):
            improve_holds(search, self._holds, share=min(share, _LAST_SHARE))
        if more:
            self.learn(proof, share=share)

    def _take(self, proof: Proof, share: float = 1.0) -> None:
        """Take over what is proven, and round its points."""
        self.search.bound_ns = max(self.search.bound_ns, proof.bound_ns)
        if self._holds:
            round_points(self.search, self._holds, proof.taken(), share=share)

    def _wide(self) -> bool:
        """Whether a second piece of work on the bound would hardly close the gap; a thorough effort tries it anyway."""
        return self.search.gap() > _AGAIN_MOST and not self.search.effort.thorough

    def _open(self) -> bool:
        """Whether there is a plan, and reason and time to better it or its bound."""
        search = self.search
        return search.best is not None and not search.settled() and not search.out_of_time()

    def _promising(self) -> bool:
        """Whether more work on the bound may close what is left."""
        if self._proof is None or self._proof.ended or not self._open():
            return False
        share = min(1.0, _HOPEFUL_OPS / max(1, self.search.problem.op_count))
        return not self._proof.grows or self.search.gap() <= share * self.search.effort.hopeless


def lowest_of(prepared: Prepared, search: Search) -> tuple[tuple[Candidate, ...], bool]:
    """Plans of the smallest peak, the best and the best labelling, and whether the search for them was cut short."""
    key = (search.effort.name, search.seed)
    if key not in prepared.lowest:
        lower_peak(search, prepared)
        assert search.lowest is not None
        assert search.lowest_labels is not None
        found = (search.lowest, search.lowest_labels)
        if search.stopped_early:
            return found, True
        prepared.lowest[key] = found
    return prepared.lowest[key], False
