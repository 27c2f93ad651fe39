"""Orders worth planning for: those that keep less alive between steps where the graph branches.

Which orders suit a plan depends on the plan. What is known before is that a backward step holds the gradients
begun and not done with, and what several backwards read from the first of them to the last; and that under a
middling budget about a fraction of the saved activations is held from the start until their last reader. A
forward step, the first time or again, holds the values that have been made and are still to be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from ...dependencies import Predecessors, backward_predecessors, forward_predecessors, is_forced
from ...problem import Problem
from .reordered_problem import Orders, default_orders
from .sequencing import Tokens, better_order, cost
from .tokens import gradients_of, held_tokens, saved_for

_HELD = 0.4
"""The fraction of saved activations that is taken to be held from the start of the backward."""

_SHARES = (0.3, 0.0, 0.4, 0.2, 0.1, 0.6)
"""Fractions of what is saved for which backward orders are made, in turn, ..."""
_TRIES = 4
"""... so many times."""

_WORTH = 0.997
"""Orders are proposed when forward and backward together keep less than this of what the default ones do."""


def other_orders(problem: Problem, *, seed: int = 0) -> Iterator[Orders]:
    """Orders other than the default ones that promise lower peaks, some dozen at most.

    First up to two pairs made for a middling budget, the most promising first; then backward orders made for plans that
    hold more or less of what is saved. None where the graph leaves no choice, or where no choice matters.
    """
    assert problem.reorders is None, "orders are chosen for the default problem"
    default = default_orders(problem)
    forward_before, backward_before = forward_predecessors(problem.graph), backward_predecessors(problem.graph)
    if is_forced(default.backward, backward_before) and is_forced(default.forward, forward_before):
        return
    known = {default}
    for orders in chain(_middling(problem, default, seed), _held(problem, default, backward_before, seed)):
        if orders not in known:
            known.add(orders)
            yield orders


def _held(problem: Problem, default: Orders, before: Predecessors, seed: int) -> Iterator[Orders]:
    """Backward orders made for plans that hold some share of what is saved, where one costs less than the default."""
    shares = {share: held_tokens(problem, share) for share in _SHARES}
    for number in range(_TRIES):
        for share, tokens in list(shares.items()):
            order, reached = better_order(default.backward, before, tokens, seed=seed + number)
            if reached < _WORTH * cost(default.backward, tokens):
                yield Orders(default.forward, order)
            else:
                del shares[share]


def held_order(problem: Problem, begun: tuple[int, ...], share: float | Sequence[float], seed: int) -> tuple[int, ...]:
    """A backward order made from ``begun`` for plans that hold this share of what is saved, or of each storage."""
    return better_order(begun, backward_predecessors(problem.graph), held_tokens(problem, share), seed=seed)[0]


def _middling(problem: Problem, default: Orders, seed: int) -> list[Orders]:
    """Orders that keep less alive from step to step when a fraction of what is saved is held, best first."""
    forward_before, backward_before = forward_predecessors(problem.graph), backward_predecessors(problem.graph)
    forward_tokens, backward_tokens = _forward_tokens(problem), _backward_tokens(problem)
    least = (cost(default.forward, forward_tokens), cost(default.backward, backward_tokens))
    forward, forward_cost = better_order(default.forward, forward_before, forward_tokens, seed=seed)
    mirrored = _following(reversed(forward), backward_before, default.backward)
    backward, backward_cost = min(
        (better_order(start, backward_before, backward_tokens, seed=seed) for start in (mirrored, default.backward)),
        key=lambda found: found[1],
    )
    share = backward_cost / max(1.0, least[1])
    choices = {
        Orders(forward, backward): share * forward_cost / max(1.0, least[0]),
        Orders(default.forward, backward): share,
    }
    worth = sorted((share, number) for number, share in enumerate(choices.values()) if share < _WORTH)
    return [list(choices)[number] for _, number in worth]


def _following(wish: Iterable[int], predecessors: Predecessors, members: tuple[int, ...]) -> tuple[int, ...]:
    """The legal order of ``members`` that runs what comes first in ``wish`` as early as it may."""
    import networkx as nx

    rank = {index: position for position, index in enumerate(wish)}
    graph = nx.DiGraph()
    graph.add_nodes_from(members)
    graph.add_edges_from((before, index) for index in members for before in predecessors[index])
    return tuple(nx.lexicographical_topological_sort(graph, key=rank.__getitem__))


def _forward_tokens(problem: Problem) -> Tokens:
    """Values from their maker to their last reader in the forward."""
    tokens = Tokens([[] for _ in problem.graph.ops])
    steps = [[maker] for maker in problem.graph.producer]
    for index, op in enumerate(problem.graph.ops):
        for storage in op.reads:
            steps[storage].append(index)
    for storage, touching in enumerate(steps):
        if storage not in problem.pinned:
            tokens.add(int(problem.nbytes[storage]), touching)
    return tokens


def _backward_tokens(problem: Problem) -> Tokens:
    """Gradients from first contribution to last use, and saved values, held or made just in time, to theirs."""
    tokens = gradients_of(problem)
    for storage, touching in enumerate(saved_for(problem)):
        held = int(problem.nbytes[storage] * _HELD)
        tokens.add(held, touching, started=True)
        tokens.add(int(problem.nbytes[storage]) - held, touching)
    return tokens
