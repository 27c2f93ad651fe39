"""The plan benchmark: what it runs, and that it can be cut short and taken up again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ogc_plan.planner import load_model
from ogc_plan.planner.problem import Problem, Scope
from ogc_plan.planner.strategies import STRATEGIES
from ogc_plan.planner.strategies.baselines import greedy

from models.light import light_path
from models.plan_benchmark import __main__ as plan_benchmark
from models.plan_benchmark import measure as plan_measure
from models.plan_benchmark import targets as plan_targets
from models.plan_benchmark.cells import cells, retried
from models.plan_benchmark.extent import SHARES, Extent
from models.plan_benchmark.sources import SOURCES, Source
from models.plan_benchmark.tables import beaten
from models.plan_benchmark.targets import SIZES, size_of
from models.plan_benchmark.times import times
from models.reporting.kept import folder_of
from tests.files.onnx_files import write_perceptron

BATCH = 4096
STATUS = Path("/proc/self/status")
ROOT = Path(__file__).resolve().parents[3]


class TestExtent:
    def test_small_graphs_get_everything_and_larger_ones_never_more(self) -> None:
        assert Extent.of(100) == Extent(SHARES, SHARES, True, True)
        extents = [Extent.of(ops) for ops in (100, 401, 751, 1501)]
        sizes = [(len(e.quick), len(e.slow), e.matched, e.harder) for e in extents]
        assert all(a >= b for few in zip(*sizes, strict=True) for a, b in pairwise(few))

    def test_graphs_of_up_to_1500_ops_are_tried_harder(self) -> None:
        assert [Extent.of(ops).harder for ops in (400, 1500, 1501)] == [True, True, False]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_perceptron(tmp_path_factory.mktemp("benchmark") / "perceptron.onnx", layers=3)


@pytest.fixture(scope="module")
def measured(path: Path) -> dict[str, Any]:
    return plan_measure.measure(str(path), BATCH, "h200", "fast")


@pytest.fixture(scope="module")
def timed(path: Path) -> dict[str, Any]:
    return times(str(path), BATCH, "h200", "fast")


@pytest.fixture
def problem(path: Path) -> Problem:
    return load_model(path, batch=BATCH).problem(Scope.ACTIVATIONS)


class TestTimes:
    @pytest.mark.skipif(
        "VmHWM" not in (STATUS.read_text() if STATUS.exists() else ""), reason="other systems keep the two apart"
    )
    def test_the_memory_of_a_program_is_not_that_of_the_one_that_started_it(self) -> None:
        nbytes = 1 << 30
        held = b"x" * nbytes
        program = "from models.plan_benchmark.times import peak_rss_kb; print(peak_rss_kb())"
        told = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert int(told.stdout) * 1024 < len(held)

    def test_every_budget_above_the_floor_and_the_smallest_peak_have_a_first_plan(
        self, timed: dict[str, Any], measured: dict[str, Any]
    ) -> None:
        floor = 100 * measured["floor_nbytes"] / measured["store_all_nbytes"]
        first = [plan["label"] for plan in timed["plans"] if plan["first"]]
        assert sorted(first) == sorted(["min", *(f"{share}%" for share in SHARES if share >= floor)])

    def test_every_budget_but_half_is_planned_for_again_the_loosest_first(self, timed: dict[str, Any]) -> None:
        first, again = ([plan["label"] for plan in timed["plans"] if plan["first"] == which] for which in (True, False))
        assert again == sorted(set(first) - {"50%", "min"}, reverse=True)

    def test_a_first_plan_is_that_of_a_solve_from_nothing(
        self, timed: dict[str, Any], measured: dict[str, Any]
    ) -> None:
        fresh = {cell.label: cell.row["overhead"] for cell in cells({"it": measured})}
        first = {plan["label"]: plan["overhead"] for plan in timed["plans"] if plan["first"]}
        assert {label: fresh[label] for label in first} == first

    def test_of_a_graph_that_must_store_everything_the_smallest_peak_alone_is_timed(self) -> None:
        plans = times(str(light_path("zfnet512")), 32, "h200", "fast")["plans"]
        assert [(plan["label"], plan["overhead"]) for plan in plans] == [("min", 0.0)]


class TestMeasure:
    def test_every_strategy_has_a_row(self, measured: dict[str, Any]) -> None:
        assert {r["strategy"].partition(":")[0] for r in measured["rows"]} == set(STRATEGIES)

    def test_optimal_has_every_budget(self, measured: dict[str, Any]) -> None:
        assert [cell.label for cell in cells({"it": measured})] == [f"{share}%" for share in SHARES] + ["min"]

    def test_no_other_strategy_is_better(self, measured: dict[str, Any]) -> None:
        assert beaten({"it": measured}).endswith("in: none.")

    def test_without_the_default_effort_none_is_tried_again(self, measured: dict[str, Any]) -> None:
        assert retried({"it": measured}) == []

    def test_what_misses_its_target_is_planned_with_high_effort_too(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan_targets, "GAPS", {60: -1.0})
        again = retried({"it": plan_measure.measure(str(path), BATCH, "h200", "default")})
        assert [(second.label, second.row["effort"]) for _, second in again] == [("60%", "high")]

    def test_a_strategy_that_takes_too_long_is_ended(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan_measure, "LIMIT_S", 0.2)
        monkeypatch.setattr(greedy, "solve", lambda *_, **__: time.sleep(600))
        assert plan_measure.limited(problem, "greedy", 10**9)["status"] == "ended"

    def test_a_strategy_that_fails_is_not_passed_over(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(greedy, "solve", lambda *_, **__: 1 / 0)
        with pytest.raises(SystemExit, match="greedy failed"):
            plan_measure.limited(problem, "greedy", 10**9)


def test_what_was_planned_and_timed_is_not_planned_and_timed_again(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text(json.dumps({"ops": 3}))
    (tmp_path / "kept.times.json").write_text(json.dumps({"read_s": 3}))
    given = (Source("kept", "here"), tmp_path, "h200", "default")
    assert plan_benchmark.planned(*given) | plan_benchmark.timed(*given) == {"origin": "here", "ops": 3, "read_s": 3}


def test_a_run_on_a_small_graph_writes_its_results(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_benchmark, "SOURCES", {"small": Source("small", "written here", BATCH)})
    (tmp_path / "small.onnx").write_bytes(path.read_bytes())
    given = ["--effort", "fast", "--no-times", "--parts", str(tmp_path), "-o", str(tmp_path / "out" / "plans.json")]
    plan_benchmark.main(given)
    written = json.loads((tmp_path / "out" / "plans.json").read_text())["networks"]["small"]
    assert {row["strategy"].partition(":")[0] for row in written["rows"]} == set(STRATEGIES)


def test_a_graph_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "gpt12.onnx").write_bytes(b"as it was")
    assert SOURCES["gpt12"].file(tmp_path).read_bytes() == b"as it was"


def test_other_options_have_results_of_their_own() -> None:
    assert folder_of("", ("h200", "fast"), ()) != folder_of("", ("h200", "default"), ())


def test_every_graph_of_the_catalogue_has_one_name_and_an_origin() -> None:
    assert [name for name, source in SOURCES.items() if name != source.name or not source.origin] == []


def test_every_size_of_graph_has_seconds_to_be_held_to() -> None:
    asked = [("a", 700), ("a", 701), ("a", 3500), ("transformer_repeated", 9995), ("transformer_varied", 9995)]
    assert [size_of(*graph) for graph in asked] == list(SIZES)
