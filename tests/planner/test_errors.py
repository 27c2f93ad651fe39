"""What an error tells whoever meets it."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ogc_plan.planner.errors import UsageError, shell_word
from ogc_plan.planner.infeasible import Asked, refusal, unfinished
from ogc_plan.planner.problem import Scope, build_problem
from ogc_plan.planner.solution import Solution, Status
from ogc_plan.planner.solver import Solver

from tests.graphs.builders import chain


def test_the_text_of_an_error_is_its_message_and_its_remedy() -> None:
    assert str(UsageError("seed -1 is no number", remedy="pass 0")) == "seed -1 is no number; pass 0"


@pytest.mark.parametrize(
    ("text", "in_python"),
    [
        ("pass --budget 9B or more with --scope total", 'pass budget="9B" or more with scope="total"'),
        ("write --headroom 5% or --headroom 500MB", 'write headroom="5%" or headroom="500MB"'),
        ("use --strategy segments:4, or min", 'use strategy="segments:4", or min'),
        ("pass --dim n=8 --dim 'a b'=512", "pass dims={'n': 8, 'a b': 512}"),
        (
            "pass --shape x=8x64 --shape h=2 in place of --batch",
            "pass inputs={'x': (8, 64), 'h': (2,)} in place of batch",
        ),
        ("--dim, --frozen cannot change 'x'", "dims, frozen cannot change 'x'"),
        ("pass --charge-unknown to charge it", "pass charge_unknown=True to charge it"),
        ("or describe yours: --device-spec FILE", "or describe yours: device=read_device(FILE)"),
        ("plan again with: ogc-plan MODEL --budget SIZE", "plan again with: ogc-plan MODEL --budget SIZE"),
    ],
)
def test_the_text_of_an_error_has_the_words_of_python(text: str, in_python: str) -> None:
    assert str(UsageError(text)) == in_python


def test_a_time_limit_without_a_plan_is_raised_by_the_argument_of_python() -> None:
    ended = unfinished(Asked("60%", 1), Solver(time_limit_s=1))
    assert str(ended).endswith('raise time_limit_s, or ask for the smallest peak with budget="min"')


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


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1))
@example("a\nb")
@example("it's \\ \x1b[31m")
@example("\u2028")
@settings(max_examples=25)
def test_a_word_for_the_shell_is_one_line_that_it_reads_back(text: str) -> None:
    word = shell_word(text)
    read = subprocess.run(
        ["bash", "-c", f"printf %s {word}"], capture_output=True, env={"LC_ALL": "C.UTF-8"}, check=True
    )
    assert (word.isprintable(), read.stdout.decode()) == (True, text)
