"""Recompute nothing: what a framework does by itself, and the baseline of every comparison."""

from __future__ import annotations

from ...limits import NO_LIMITS, Limits
from ...problem import Problem
from ...solution import Solution
from ..evaluation.evaluator import Evaluator
from ..evaluation.labels import Label


def solve(
    problem: Problem,
    budget_nbytes: int | None = None,
    *,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
) -> Solution:
    """Keep every storage from its forward to its last use."""
    evaluator = Evaluator(problem)
    return evaluator.solution(evaluator.labels(Label.KEEP), budget_nbytes, "keep-all")
