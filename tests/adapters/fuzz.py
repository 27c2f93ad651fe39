"""Trains random modules by random scripts, eagerly and bound: ``python -m tests.adapters.fuzz`` compares the two."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from typing import Any

import torch
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.planner.errors import OgcPlanError
from torch import nn

from tests.modules.ingredients import run


def bound(module: nn.Module) -> nn.Module:
    """The module with nothing but a budget, which it can only keep by recomputation."""
    return within_budget(module, budget="min", device="cpu", strategy="greedy")


def outcome(seed: int) -> str:
    """``equal``, ``different: where``, ``refused: why``, or ``fails: why`` for what fails bound and not in eager."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = run(lambda module: module, seed)
        except Exception as error:
            return f"fails in eager: {type(error).__name__}"
        try:
            found = run(bound, seed)
        except OgcPlanError as error:
            return f"refused: {error.message}"
        except Exception as error:
            return f"fails: {type(error).__name__}: {str(error)[:200]}"
    unequal = [i for i, pair in enumerate(zip(expected, found, strict=True)) if not _equal(*pair)]
    return f"different: {unequal}" if unequal else "equal"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if type(one) is int and type(other) is int:
        return one == other or -1 in (one, other)
    return type(one) is type(other) and isinstance(one, str | None) and one == other


def main() -> int:
    """Returns 1 if a case differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first case")
    options = parser.parse_args()
    count: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.cases):
        found = outcome(seed)
        count[found.partition(":")[0]] += 1
        if not found.startswith(("equal", "fails in eager")):
            print(f"{seed}: {found}", flush=True)
    print(", ".join(f"{number:,} {kind}" for kind, number in count.most_common()))
    return 1 if count["different"] or count["fails"] else 0


if __name__ == "__main__":
    sys.exit(main())
