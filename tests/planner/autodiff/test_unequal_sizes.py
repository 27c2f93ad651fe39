"""Steps of single ops whose operands, indices and axes have unequal sizes: planned as torch is measured."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.files.case_steps import FURTHER_ABOVE, is_missed, measured_peak, planned_peak
from tests.files.op_cases import Case
from tests.files.unequal_cases import STEPS

BY_TYPE: dict[str, list[tuple[Case, frozenset[int]]]] = defaultdict(list)
for step in STEPS:
    BY_TYPE[step[0].op_type].append(step)


@pytest.mark.parametrize("op_type", sorted(BY_TYPE))
def test_every_step_of_an_op_is_planned_as_measured(op_type: str) -> None:
    peaks = {(str(case), *sorted(needs)): (planned_peak(case, needs), measured_peak(case, needs))
             for case, needs in BY_TYPE[op_type]}  # fmt: skip
    above = (0.5,) if op_type in FURTHER_ABOVE else ()
    assert {name: pair for name, pair in peaks.items() if is_missed(*pair, *above)} == {}


@pytest.mark.parametrize("op_type", sorted(FURTHER_ABOVE))
def test_an_op_that_may_be_planned_further_above_is(op_type: str) -> None:
    """An entry that is no longer needed makes this fail."""
    assert any(is_missed(planned_peak(*case), measured_peak(*case)) for case in BY_TYPE[op_type])


def test_the_page_counts_the_steps() -> None:
    page = (Path(__file__).resolve().parents[3] / "planner" / "README.md").read_text(encoding="utf-8")
    counted = (
        f"{len(STEPS):,} steps of single ops with operands of unequal sizes to within 5%, where [{len(FURTHER_ABOVE)}"
    )
    assert counted in page.replace("\n", " ")
