"""The frontier as a PNG: a point and a dash for every plan, the knee, and names that stay text. It needs matplotlib."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ogc_plan.planner import frontier, load_model
from ogc_plan.planner.display.html.frontier_chart import bound, knee, peak_nbytes
from ogc_plan.planner.plan_file.record import Plan

from models.light import light_path

pytest.importorskip("matplotlib", reason="matplotlib is not installed (the plots extra)")


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    found = frontier(load_model(light_path("squeezenet"), batch=8), ("80%", "60%", "44%", "min"), effort="fast")
    return [made for made in found if isinstance(made, Plan)]


@pytest.fixture
def marks(plans: list[Plan]) -> dict[str, list[tuple[float, float]]]:
    """What is drawn, by its marker: peak and added time."""
    from ogc_plan.planner.display.html.frontier_png import drawing

    found: dict[str, list[tuple[float, float]]] = {}
    for line in drawing(plans).axes[0].lines:
        key = "ring" if line.get_markersize() > 10 else str(line.get_marker())
        found.setdefault(key, []).extend(zip(*line.get_data(), strict=True))
    return found


def at(plan: Plan, share: float) -> tuple[float, float]:
    return peak_nbytes(plan, plan.budget.scope), share


def test_it_is_a_png(plans: list[Plan]) -> None:
    from ogc_plan.planner.display.html.frontier_png import frontier_png

    assert frontier_png(plans)[:8] == b"\x89PNG\r\n\x1a\n"


def test_it_has_a_point_and_a_dash_for_every_plan(
    plans: list[Plan], marks: dict[str, list[tuple[float, float]]]
) -> None:
    bounds = [at(plan, share) for plan in plans if (share := bound(plan)) is not None]
    assert (marks["o"], marks["_"]) == ([at(plan, plan.time.overhead) for plan in plans], bounds)


def test_the_knee_alone_has_a_ring(plans: list[Plan], marks: dict[str, list[tuple[float, float]]]) -> None:
    assert marks["ring"] == [at(knee(plans), knee(plans).time.overhead)]


def test_plans_on_one_point_share_a_label_and_names_stay_text(plans: list[Plan]) -> None:
    from ogc_plan.planner.display.html.frontier_png import drawing

    hostile = replace(plans[0], model=replace(plans[0].model, file="$\\frac{$\x1b\ud800"))
    axes = drawing([hostile, plans[2], plans[3]]).axes[0]
    axes.figure.draw_without_rendering()
    labels = [text.get_text() for text in axes.texts]
    assert ("44%, min" in " ".join(labels), len(labels)) == (True, 3)
