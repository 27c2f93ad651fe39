"""What lives from backward to backward, as tokens for the search of an order (sequencing.py)."""

from __future__ import annotations

from ...peak_bounds.gradient_lifetimes import gradient_sums, gradient_tokens
from ...problem import Problem, Scope, backward_workspace_nbytes
from .sequencing import Tokens


def held_tokens(problem: Problem, share: float) -> Tokens:
    """Gradients, their sums, workspace, and what backwards read, for a plan that retains ``share`` of every storage.

    The retained part is freed after its last reader; the rest is alive during each of its readers alone.
    """
    tokens, size = gradients_of(problem), problem.nbytes.tolist()
    inside = {op: backward_workspace_nbytes(problem.costs[op], problem.scope) for op in problem.backward_order}
    for storage, touching in enumerate(saved_for(problem)):
        held = int(size[storage] * share)
        tokens.add(held, touching, started=True)
        for step in touching:
            inside[step] += size[storage] - held
    for step, nbytes in inside.items():
        tokens.add_inside(step, nbytes)
    return tokens


def saved_for(problem: Problem) -> list[list[int]]:
    """The backwards that read each storage, in backward order; none for what the caller holds."""
    readers: list[list[int]] = [[] for _ in problem.graph.storages]
    for step in problem.backward_order:
        backward = problem.graph.ops[step].backward
        assert backward is not None
        for storage in backward.reads:
            if storage not in problem.pinned:
                readers[storage].append(step)
    return readers


def gradients_of(problem: Problem) -> Tokens:
    """Gradients from first contribution to last use, and the moments in which contributions are added up."""
    tokens = Tokens([[] for _ in problem.graph.ops])
    parameters = problem.scope is Scope.TOTAL
    for nbytes, steps, seeded in gradient_tokens(problem.graph, parameters=parameters):
        tokens.add(nbytes, steps, started=seeded)
    for nbytes, makers in gradient_sums(problem.graph, parameters=parameters):
        tokens.add_again(makers, nbytes)
    return tokens
