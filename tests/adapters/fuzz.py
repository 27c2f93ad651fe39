"""Trains random modules by random scripts, eagerly and bound: ``python -m tests.adapters.fuzz`` compares the two."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.planner.errors import OgcPlanError
from torch import nn

from models.reporting.result_record import write
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


@dataclass
class Found:
    """What came of the cases from seed ``first`` on, and which are not equal; kept in ``path`` if there is one."""

    path: Path | None
    first: int
    counts: Counter[str] = field(default_factory=Counter)
    unequal: dict[str, str] = field(default_factory=dict)

    @classmethod
    def before(cls, path: Path | None, first: int) -> Found:
        """What ``path`` holds. Raises ValueError if its cases begin at another seed."""
        if path is None or not path.exists():
            return cls(path, first)
        record = json.loads(path.read_text())
        if record["first"] != first:
            raise ValueError(f"{path} holds cases from seed {record['first']} on, not {first}: name another file")
        return cls(path, first, Counter(record["counts"]), record["unequal"])

    @property
    def cases(self) -> int:
        """How many there were."""
        return self.counts.total()

    @property
    def defects(self) -> int:
        """How many differ from eager training, or fail where it does not."""
        return self.counts["different"] + self.counts["fails"]

    def add(self, seed: int, found: str) -> None:
        """Count what came of one more."""
        kind = found.partition(":")[0]
        self.counts[kind] += 1
        if kind not in ("equal", "fails in eager"):
            self.unequal[str(seed)] = found
            print(f"{seed}: {found}", flush=True)

    def report(self) -> str:
        """The counts, and every case that is not equal."""
        counts = ", ".join(f"{number:,} {kind}" for kind, number in self.counts.most_common())
        return "\n".join([f"{counts}.", "", *(f"- {seed}: {found}" for seed, found in self.unequal.items())]).rstrip()

    def save(self, command: list[str]) -> None:
        """Write what was found so far."""
        if self.path is not None:
            write(
                self.path,
                self.report(),
                script="tests.adapters.fuzz",
                arguments=command,
                device="cpu",
                quantity="outcomes of random scripts, bound against eager",
                first=self.first,
                counts=dict(self.counts),
                unequal=self.unequal,
            )


def main() -> int:
    """Returns 1 if a case differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first case")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write; a run that was stopped goes on from it")
    parser.add_argument("--jobs", type=int, default=1, help="processes that train cases side by side")
    options = parser.parse_args()
    try:
        found = Found.before(options.output, options.first)
    except ValueError as error:
        parser.error(str(error))
    seeds = range(options.first + found.cases, options.first + options.cases)
    apart = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, apart, torch.set_num_threads, (1,)) as processes:
        for seed, what in zip(seeds, processes.map(outcome, seeds), strict=True):
            found.add(seed, what)
            if found.cases % 100 == 0 or found.cases == options.cases:
                found.save(sys.argv[1:])
    print(found.report())
    return 1 if found.defects else 0


if __name__ == "__main__":
    sys.exit(main())
