"""Plan version 1 is frozen: every plan ever written as version 1 is read, replayed and written back unchanged.

tests/plans/v1/ holds plans of every kind, made by ``python -m tests.files.plan_fixtures``, which never writes an
existing one again. A change that makes one of these tests fail belongs into version 2 of the plan.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ogc_plan.planner.pipeline import verify
from ogc_plan.planner.plan_file import writer as plan_writer
from ogc_plan.planner.plan_file.reader import read_plan
from ogc_plan.planner.plan_file.writer import dumps
from ogc_plan.planner.schedule import StepKind

from tests.files.plan_fixtures import FIXTURES, FOLDER

SCHEMA = Path(plan_writer.__file__).with_name("plan.schema.json")
SCHEMA_SHA256 = "bd11825613c3121451f7ed87938da106bad0359871f5c978952b81df41086b27"
PLANS = pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.name)


def test_the_schema_is_the_one_that_was_frozen() -> None:
    assert hashlib.sha256(SCHEMA.read_bytes()).hexdigest() == SCHEMA_SHA256


def test_there_is_a_plan_of_every_kind() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == set(FIXTURES)


@PLANS
def test_the_schema_accepts_it(path: Path) -> None:
    document: Any = json.loads(path.read_text(encoding="utf-8"))
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)] == []


@PLANS
def test_its_replay_is_what_it_promises(path: Path) -> None:
    made = read_plan(path)
    assert verify(made) == made.timeline


@PLANS
def test_it_is_written_back_byte_for_byte(path: Path) -> None:
    assert dumps(read_plan(path)).encode() == path.read_bytes()


def test_the_annotated_plan_has_what_only_annotations_have() -> None:
    made = read_plan(FOLDER / "annotated.json")
    backwards = [op.backward for op in made.graph.ops if op.backward is not None]
    taken = [gradient for backward in backwards for gradient in backward.takes]
    summed = [gradient for backward in backwards for total in backward.sums for gradient in total.operands]
    recomputed = {step.index for step in made.schedule if step.kind is StepKind.RECOMPUTE}
    found = {
        "annotations": made.model.annotations is not None,
        "a gradient taken and added up": bool(set(taken) & set(summed)),
        "an op that runs once": any(op.once for op in made.graph.ops),
        "a random op that is recomputed": any(made.graph.ops[op].random_state_nbytes for op in recomputed),
        "another workspace for activations": any(
            cost.backward_activation_workspace_nbytes not in (None, cost.backward_workspace_nbytes)
            for cost in made.costs
        ),
    }
    assert [what for what, there in found.items() if not there] == []


def test_the_bare_plan_recomputes_something() -> None:
    assert read_plan(FOLDER / "bare.json").recomputed
