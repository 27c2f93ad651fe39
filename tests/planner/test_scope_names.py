"""The scope of a budget may be given by its name."""

from __future__ import annotations

import pytest
from ogc_plan.planner import load_model, plan
from ogc_plan.planner.errors import UsageError
from ogc_plan.planner.pipeline import scope_named
from ogc_plan.planner.problem import Scope

from models.light import light_path


@pytest.mark.parametrize("scope", Scope)
def test_a_scope_has_the_name_that_plans_give_it(scope: Scope) -> None:
    assert scope_named(scope.value) is scope


def test_a_plan_within_a_scope_by_name_is_that_within_the_scope() -> None:
    model = load_model(light_path("squeezenet"))
    by_name, itself = (plan(model, "70%", scope=scope, effort="fast").peak for scope in ("total", Scope.TOTAL))
    assert by_name == itself


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(UsageError, match="scope 'both' is unknown"):
        scope_named("both")
