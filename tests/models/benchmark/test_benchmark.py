"""The benchmark of the published networks, on a tiny residual network: plans, meters, tables, files."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from ogc_plan.planner.solver import Solver
from torch import Tensor, nn

from models.benchmark import __main__ as benchmark
from models.benchmark import measure as benchmark_measure
from models.benchmark.count import as_published
from models.benchmark.measure import (
    COUNTED_MATCHED_TIME,
    COUNTED_STRATEGY_TIME,
    MATCHED_MEMORY,
    MATCHED_TIME,
    MINIMUM,
    STRATEGY,
    STRATEGY_MEMORY,
    STRATEGY_TIME,
    Settings,
)
from models.benchmark.measure import benchmark as benchmarked
from models.benchmark.memory import by_statistics, gradient_difference, measure
from models.benchmark.network import PREDICTED, Network, Place
from models.benchmark.published import PUBLISHED, Published, published_at
from models.benchmark.rows import rows_of
from models.benchmark.search import Tradeoff, strategy
from models.benchmark.table import failures, page, verdict
from models.meters.storage_meter import LOSS_NBYTES
from models.zoo import ZOO, Entry

MEASURED = Place("cpu", "rtx2080ti")


class Residual(nn.Module):
    """A 3x3 convolution with norm and in-place ReLU, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)) + x)


class Tiny(nn.Module):
    """A stem, residual blocks, dropout, a classifier."""

    def __init__(self, blocks: int = 8, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(blocks)))
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(width, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.drop(self.blocks(self.stem(images)).mean((2, 3))))


TINY = Entry("tiny", lambda _: Tiny(), "images", 4, 16, 2, 16)
OGC = Published(4, 16, 100, 45, 1.0, 1.35)


def network(place: Place) -> Network:
    return Network("tiny", Tiny, lambda: TINY.inputs(4, 16), place)


@pytest.fixture(scope="module")
def fake() -> Network:
    return network(PREDICTED)


@pytest.fixture(scope="module")
def real() -> Network:
    return network(MEASURED)


@pytest.fixture(scope="module")
def tradeoff(fake: Network) -> Tradeoff:
    return Tradeoff(fake.problem, Solver(effort="fast"))


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return benchmarked(TINY, Settings(solves=2), OGC)


class TestNetwork:
    def test_a_planned_step_on_fake_tensors_holds_what_the_plan_says(self, fake: Network, tradeoff: Tradeoff) -> None:
        point = tradeoff.within(fake.plain_nbytes // 2)
        assert point is not None
        held = measure(fake, fake.planned(fake.plan(point.solution, tradeoff.solver))).activation_nbytes
        assert held == point.peak_nbytes + LOSS_NBYTES

    def test_a_plan_for_the_published_count_holds_by_it_what_it_says(self, fake: Network) -> None:
        solver = Solver(effort="fast")
        smallest = Tradeoff(fake.counted, solver).smallest()
        held = measure(fake, fake.planned(fake.plan(smallest.solution, solver, counted=True))).protocol_nbytes
        assert held == smallest.peak_nbytes - fake.uncounted_nbytes + LOSS_NBYTES

    def test_a_step_holds_the_same_on_fake_and_on_real_tensors(self, fake: Network, real: Network) -> None:
        sides = [replace(measure(one, one.module), seconds=None) for one in (fake, real)]
        assert sides[0] == sides[1]

    def test_a_planned_network_has_plain_gradients(self, real: Network) -> None:
        solver = Solver(effort="fast")
        smallest = Tradeoff(real.problem, solver).smallest()
        assert gradient_difference(real, real.planned(real.plan(smallest.solution, solver))) == 0.0

    def test_a_wrong_gradient_is_seen(self, real: Network) -> None:
        class Wrong(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = real.module

            def forward(self, x: Tensor) -> Tensor:
                return 1.5 * self.inner(x)

        assert gradient_difference(real, Wrong()) == pytest.approx(0.5, rel=1e-3)


def test_on_a_gpu_memory_is_the_peak_less_what_stands_before_or_after_and_steps_are_waited_for(real: Network) -> None:
    """100 bytes before the steps, 130 after them, 900 at their peak; one step more than is timed."""
    cuda = Mock()
    cuda.memory_allocated.side_effect = (100, 130)
    cuda.max_memory_allocated.return_value, cuda.max_memory_reserved.return_value = 900, 1024
    found = by_statistics(real, real.module, cuda, 3, 1)
    assert (*found[:3], cuda.synchronize.call_count) == (900 - 130, 900, 1024, 1 + 2 * 3)


class TestSearch:
    def test_the_strategy_saves_memory_on_residual_blocks(self, fake: Network) -> None:
        assert strategy(fake.problem, "ogc").peak_nbytes < 0.8 * fake.plain_nbytes

    @pytest.mark.parametrize(("overhead", "solves"), [(0.1, 3), (0.0, 0)])
    def test_the_least_memory_within_a_time_keeps_to_it(self, overhead: float, solves: int, tradeoff: Tradeoff) -> None:
        assert tradeoff.least_memory(overhead, solves).overhead <= overhead

    def test_an_impossible_memory_has_no_plan(self, tradeoff: Tradeoff, fake: Network) -> None:
        assert tradeoff.within(fake.problem.floor_nbytes - 1) is None

    def test_ample_time_gives_the_smallest_memory(self, tradeoff: Tradeoff) -> None:
        assert tradeoff.least_memory(1e9, 1).peak_nbytes == tradeoff.smallest().peak_nbytes


def counting(found: dict[str, Any], method: str, nbytes: int) -> dict[str, dict[str, Any]]:
    """The results where ``method`` holds so many bytes by the published count."""
    rows = [{**r, "protocol_nbytes": nbytes} if r["method"] == method else r for r in found["rows"]]
    return {"tiny": {**found, "rows": rows}}


class TestResult:
    def test_a_network_has_a_row_for_every_question(self, found: dict[str, Any]) -> None:
        asked = {"plain", STRATEGY, MINIMUM, MATCHED_MEMORY, STRATEGY_MEMORY, MATCHED_TIME, STRATEGY_TIME}
        assert asked | {COUNTED_MATCHED_TIME, COUNTED_STRATEGY_TIME} <= rows_of(found).keys()

    def test_ours_is_better_in_both(self, found: dict[str, Any]) -> None:
        assert verdict("tiny", found) == (True, "both")

    def test_a_worse_result_says_so(self, found: dict[str, Any]) -> None:
        worse = [{**r, "overhead": 9.0} if r["method"] == STRATEGY_MEMORY else r for r in found["rows"]]
        assert verdict("tiny", {**found, "rows": worse})[1].startswith("not time at the strategy's memory")

    @pytest.mark.parametrize(
        ("share", "said"),
        [
            (1.0, "less than the strategy in its time on tiny (0.0%"),
            (0.0, "ours saves more than the strategy, and no less than published, on every network here"),
        ],
    )
    def test_what_is_saved_by_the_published_count_is_said(self, share: float, said: str, found: dict[str, Any]) -> None:
        plain = rows_of(found)["plain"]["protocol_nbytes"]
        assert said in as_published(counting(found, COUNTED_STRATEGY_TIME, round(share * plain)))

    def test_a_tie_at_the_floor_of_that_count_is_told(self, found: dict[str, Any]) -> None:
        floor = found["counted_floor_nbytes"]
        results = counting(found, COUNTED_STRATEGY_TIME, floor)
        told = as_published(counting(results["tiny"], STRATEGY, floor))
        assert "save the same on tiny (at the proven floor)." in told

    def test_what_that_count_includes_is_told_where_the_floor_keeps_ours_behind(self, found: dict[str, Any]) -> None:
        floor, inputs = found["counted_floor_nbytes"], 4 * 3 * 16 * 16 * 4
        results = counting({**found, "input_nbytes": 2**20 * inputs}, COUNTED_STRATEGY_TIME, floor)
        told = as_published(counting(results["tiny"], STRATEGY, floor - 1))
        assert f"each with {inputs:,} MiB of inputs)" in told


class TestFiles:
    def test_a_run_writes_a_record_its_page_and_a_picture(self, found: dict[str, Any], tmp_path: Path) -> None:
        results = {"tiny": found, "absent": {"error": "it failed"}}
        output = tmp_path / "benchmark.json"
        benchmark.write_all(output, results, page(results, PREDICTED), ["--arch", "tiny"], PREDICTED)
        written = (
            json.loads(output.read_text())["command"],
            "absent failed: it failed" in output.with_suffix(".md").read_text(),
            "absent" in (tmp_path / "benchmark_memory_time.svg").read_text(),
        )
        assert written == ("python -m models.benchmark --arch tiny", True, False)

    def test_what_is_done_is_not_done_again(self, tmp_path: Path) -> None:
        (tmp_path / "resnet18.json").write_text('{"input": "known"}')
        assert benchmark.run(["resnet18"], tmp_path, Settings("nowhere"), 1) == {"resnet18": {"input": "known"}}

    def test_a_network_that_fails_is_named_and_left_to_be_done(self, tmp_path: Path) -> None:
        failed = benchmark.run(["resnet18"], tmp_path, Settings("nowhere", small=True), 1)
        assert ("nowhere" in failures(failed)["resnet18"], list(tmp_path.iterdir())) == (True, [])


class TestPublishedFigures:
    def test_they_stand_beside_networks_of_their_own_size(self) -> None:
        sized = {name: ZOO[name].describe(ZOO[name].batch, ZOO[name].extent) for name in PUBLISHED}
        assert {name: published_at(name, inputs) for name, inputs in sized.items()} == PUBLISHED

    def test_they_do_not_stand_beside_small_ones(self, found: dict[str, Any]) -> None:
        sized = {name: ZOO[name].describe(ZOO[name].small_batch, ZOO[name].small_extent) for name in PUBLISHED}
        assert not any(published_at(name, inputs) for name, inputs in sized.items())
        assert "4,955" not in page({"alexnet": found}, PREDICTED)


class TestSmall:
    def test_the_reduced_network_is_built(self) -> None:
        class Built(Exception): ...

        def reduced(extent: int) -> nn.Module:
            raise Built

        with pytest.raises(Built):
            benchmarked(replace(TINY, reduced=reduced), Settings(small=True), None)

    def test_a_run_writes_its_results(self, tmp_path: Path) -> None:
        output = tmp_path / "small.json"
        given = ["--arch", "resnet8_v2_cifar10", "--small"]
        code = benchmark.main([*given, "--parts", str(tmp_path / "parts"), "-o", str(output)])
        written = json.loads(output.read_text())["networks"]["resnet8_v2_cifar10"]
        assert (code, written["input"], "plain" in rows_of(written)) == (0, "16x3x32x32", True)


class TestInterrupt:
    def test_the_exit_code_and_a_line_say_so(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupted(*given: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(benchmark, "run", interrupted)
        code, said = benchmark.main(["--arch", "vgg11"]), capsys.readouterr().err
        assert (code, "interrupted; the same command" in said) == (130, True)

    def test_no_other_network_is_started(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        started: list[str] = []

        def interrupted(name: str, *_: object) -> None:
            started.append(name)
            time.sleep(0.02)
            raise KeyboardInterrupt

        monkeypatch.setattr(benchmark, "measured", interrupted)
        with pytest.raises(KeyboardInterrupt):
            benchmark.run(list(ZOO), tmp_path, Settings(), 1)
        assert len(started) < len(ZOO)


def test_kernels_are_compiled_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(benchmark_measure, "prepare_kernels", lambda: done.append("compiled"))
    monkeypatch.setattr(benchmark_measure, "benchmark", lambda *given: done.append("timed"))
    benchmark_measure.main("resnet18", "{}")
    assert done == ["compiled", "timed"]
