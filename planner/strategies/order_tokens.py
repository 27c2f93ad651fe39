"""What lives from backward to backward, as tokens for the search of an order (order_search.py)."""

from __future__ import annotations

from collections.abc import Sequence

from ..gradient_lives import gradient_sums, gradient_tokens
from ..problem import Problem, Scope, backward_workspace_nbytes
from .order_search import Tokens


def held_tokens(problem: Problem, share: float | Sequence[float]) -> Tokens:
    """Gradients, their sums, workspace, and what backwards read: a share of it held from the start, the rest just read.

    What is held goes after its last reader, what is not is there during each of its readers alone. ``share`` is that of
    every storage, or one for each.
    """
    tokens, size = gradients_of(problem), problem.nbytes.tolist()
    held = [
        int(n * part) for n, part in zip(size, [share] * len(size) if isinstance(share, float) else share, strict=True)
    ]
    readers: list[list[int]] = [[] for _ in problem.graph.storages]
    for step in problem.backward_order:
        backward = problem.graph.ops[step].backward
        assert backward is not None
        saved = [s for s in backward.reads if s not in problem.pinned]
        workspace = backward_workspace_nbytes(problem.costs[step], problem.scope)
        tokens.add_inside(step, workspace + sum(size[s] - held[s] for s in saved))
        for storage in saved:
            readers[storage].append(step)
    for storage, touching in enumerate(readers):
        tokens.add(held[storage], touching, started=True)
    return tokens


def gradients_of(problem: Problem) -> Tokens:
    """Gradients from first contribution to last use, and the moments in which contributions are added up."""
    tokens = Tokens([[] for _ in problem.graph.ops])
    parameters = problem.scope is Scope.TOTAL
    for nbytes, steps, seeded in gradient_tokens(problem.graph, parameters=parameters):
        tokens.add(nbytes, steps, started=seeded)
    for nbytes, makers in gradient_sums(problem.graph, parameters=parameters):
        tokens.add_again(makers, nbytes)
    return tokens
