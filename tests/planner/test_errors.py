"""What an error tells whoever meets it."""

from __future__ import annotations

import pytest
from ogc_plan.planner.errors import UsageError
from ogc_plan.planner.infeasible import Asked, refusal
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.solution import Solution, Status
from ogc_plan.planner.solver import Solver

from tests.graphs.builders import chain


def test_the_text_of_an_error_is_its_message_and_its_remedy() -> None:
    assert str(UsageError("seed -1 is no number", remedy="pass 0")) == "seed -1 is no number; pass 0"


@pytest.mark.parametrize(
    ("below", "said"),
    [
        (
            1,
            "= 899,999,999 B has no plan we could find (not proven infeasible): smallest activation peak found 900,",
        ),
        (5 * 10**7, "= 850.00 MB (810.62 MiB) has no plan we could find (not proven infeasible): smallest activation "),
    ],
)
def test_sizes_that_would_look_alike_are_printed_to_the_byte(below: int, said: str) -> None:
    problem = build_problem(*chain(8, nbytes=10**8), Scope.ACTIVATIONS)
    unknown, smallest = Solution(Status.UNKNOWN, "optimal", None), 900_000_000
    assert said in str(refusal(problem, Asked("x", smallest - below), unknown, Solver(), smallest, smaller="batch"))
