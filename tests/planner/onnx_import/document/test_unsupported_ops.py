"""Every op of the standard domain trains, is rewritten while it is read, or is excluded for a written reason."""

from __future__ import annotations

import pytest
from ogc_plan.planner.autodiff.rule_table import is_known
from ogc_plan.planner.graph import Op
from ogc_plan.planner.onnx_import.document.unsupported_ops import DOMAINS, EXCLUSIONS, exclusion
from onnx import defs

REWRITTEN = frozenset(
    "If SplitToSequence ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert"
    " SequenceLength".split()
)
"""Ops that leave no trace in a graph: a branch taken, a sequence of known length."""
STANDARD = sorted({schema.name for schema in defs.get_all_schemas_with_history() if not schema.domain})
ELSEWHERE = sorted({(schema.domain, schema.name) for schema in defs.get_all_schemas_with_history() if schema.domain})


@pytest.mark.parametrize("op_type", STANDARD)
def test_something_is_done_with(op_type: str) -> None:
    known = is_known(Op("n", op_type, "", (), ()))
    assert known or op_type in REWRITTEN or exclusion("", op_type) is not None


@pytest.mark.parametrize(("domain", "op_type"), ELSEWHERE)
def test_an_op_of_another_onnx_domain_is_excluded(domain: str, op_type: str) -> None:
    assert exclusion(domain, op_type) is not None


@pytest.mark.parametrize("key", EXCLUSIONS, ids="/".join)
def test_what_is_excluded_exists(key: tuple[str, str]) -> None:
    domain, op_type = key
    assert defs.has(op_type, domain)


@pytest.mark.parametrize("key", [*EXCLUSIONS, *((domain, "Any") for domain in DOMAINS)], ids="/".join)
def test_an_exclusion_says_why_and_what_to_do(key: tuple[str, str]) -> None:
    found = exclusion(*key)
    assert found is not None
    assert len(found.reason.split()) > 4
    assert found.remedy


def test_an_op_that_trains_is_not_excluded() -> None:
    assert exclusion("", "Conv") is None
