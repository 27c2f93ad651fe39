"""Writers of plans that are killed at a random moment, and what they leave."""

from __future__ import annotations

import time
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random

from ogc_plan.planner.plan_file.reader import read_plan
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.plan_file.writer import dumps, write_plan

from tests.files.plan_fixtures import FIXTURES, FOLDER


@cache
def plans() -> tuple[Plan, ...]:
    """The plans that are written in turn."""
    return tuple(read_plan(FOLDER / name) for name in FIXTURES)


def write_forever(target: Path) -> None:
    """Write one plan after the other to one file."""
    while True:
        for plan in plans():
            write_plan(plan, target)


def killed(folder: Path, seed: int) -> str:
    """``whole`` where the file that was written over and over is one of the plans, after a kill -9."""
    target, texts = folder / f"{seed}.json", [dumps(plan) for plan in plans()]
    writer = get_context("fork").Process(target=write_forever, args=(target,), daemon=True)
    writer.start()
    while not target.exists():
        time.sleep(0.001)
    time.sleep(Random(seed).uniform(0, 0.03))
    writer.kill()
    writer.join()
    return "whole" if target.read_text(encoding="utf-8") in texts else f"broken: seed {seed}"
