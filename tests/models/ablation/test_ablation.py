"""Variants switch off what they name and nothing after; the rule and the page hold what their records say."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import pytest
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.solution import Solution
from ogc_plan.planner.solver import Solver
from ogc_plan.planner.strategies.optimal.effort import EFFORTS

from models.ablation.graphs import NEW, Built, load
from models.ablation.measure import labels_of
from models.ablation.pieces import BASES, HOME, PIECES, Piece, without
from models.ablation.table import key_rows, page, pairs, stays
from models.graphs import FAMILIES
from models.plan_benchmark.sources import SOURCES

Cell = dict[str, Any]


def cell(overhead: float | None, bound: float = 0.0, cpu_s: float = 1.0) -> Cell:
    status = "unknown" if overhead is None else "feasible"
    return {"status": status, "overhead": overhead, "bound": bound, "peak": 0.5, "cpu_s": cpu_s}


def section(full: list[Cell], less: list[Cell], about: str = "a part") -> dict[str, Any]:
    """One graph for each cell, planned at 50%; ``less`` is without the piece `chain`."""
    cells = {
        piece: {f"g{at}": {"50": one} for at, one in enumerate(some)}
        for piece, some in (("default", full), ("chain", less))
    }
    graphs = {name: {"ops": 10, "new": False, "origin": ""} for name in cells["default"]}
    pieces = {"chain": {"about": about, "base": "default", "lowest": False}}
    return {"command": "", "machine": "", "graphs": graphs, "pieces": pieces, "cells": cells}


def test_twenty_graphs_are_none_of_the_benchmark() -> None:
    known = [(family.build, family.batch) for family in FAMILIES.values()]
    shapes = [(build.func, build.args) for build, _ in known if hasattr(build, "func") and hasattr(build, "args")]
    built = [graph.family.build for graph in NEW.values() if isinstance(graph, Built)]
    assert len(NEW) == 20
    assert not NEW.keys() & SOURCES.keys()
    assert [build for build in built if (build.func, build.args) in shapes] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("piece", PIECES.values(), ids=lambda piece: piece.name)
def test_a_variant_changes_what_it_names_and_only_while_it_is_solved(piece: Piece) -> None:
    def named() -> list[Any]:
        return [dict(EFFORTS), *(resolve_name(f"{HOME}.{path}") for path in piece.changes)]

    before = named()
    with without(piece):
        during = named()
    assert piece.seed or during != before
    assert (during[0] != before[0]) == bool(piece.effort)
    assert all(now is not then for now, then in zip(during[1:], before[1:], strict=True))
    assert named() == before


def test_without_integers_the_bound_is_lower(tmp_path: Any) -> None:
    model = load("dag60_7", tmp_path)

    def solved(piece: Piece) -> Solution:
        with without(piece):
            return Solver().solve(model.problem(Scope.ACTIVATIONS), model.store_all().peak_activation_nbytes // 2)

    assert solved(PIECES["integers"]).bound_ns < solved(BASES["default"]).bound_ns


def test_the_smallest_peak_is_looked_for_where_a_piece_may_change_it() -> None:
    assert labels_of(PIECES["lowering"], "g", 10)[-1] == "min"
    assert "min" not in labels_of(PIECES["integers"], "g", 10)


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ([cell(0.101, 0.101)] * 50, False),
        ([cell(0.103, 0.103)], True),
        ([cell(0.103, 0.103), cell(0.09, 0.09)], False),
        ([cell(0.1, 0.097)], True),
        ([cell(None)], True),
        ([cell(0.1, 0.1, 2.0)] * 50, True),
    ],
    ids=["hardly", "dearer", "as many cheaper", "wider gap", "no plan", "twice as long"],
)
def test_a_piece_stays_that_betters_cells_or_halves_a_time(changed: list[Cell], kept: bool) -> None:
    full = [cell(0.1, 0.1)] * 50
    assert stays(pairs(section(full, [*changed, *full[len(changed) :]]), "chain"), []) is kept


def test_rows_of_different_code_stand_in_different_tables() -> None:
    cells = [cell(0.1)]
    record = {"commit 1": section(cells, cells, "a part then"), "commit 2": section(cells, cells, "a part now")}
    for text in (page(record), key_rows(record)):
        first, second = text.split("with commit 1")[1].split("with commit 2")
        assert "a part then" in first
        assert "a part now" in second
        assert "a part now" not in first
