"""How deep a network fits: depths are examined, the deepest that fits is found, memory grows slowly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.benchmark.network import FAKE, Place
from models.training import deep_resnet
from models.training.deep_resnet import Depth, deepest, examine, growth, report, within

PLACE = Place(FAKE, "rtx2080ti")


@pytest.fixture(scope="module")
def depths() -> list[Depth]:
    return [examine(blocks, 16, PLACE, overhead=0.3, effort="fast", solves=1) for blocks in (1, 3)]


def test_the_plan_keeps_to_the_time_it_may_add(depths: list[Depth]) -> None:
    assert all(depth.overhead <= 0.3 for depth in depths)


def test_a_planned_step_needs_less_than_a_plain_one(depths: list[Depth]) -> None:
    assert all(depth.planned_nbytes < depth.plain_nbytes for depth in depths)


def test_planned_memory_grows_more_slowly(depths: list[Depth]) -> None:
    assert depths[1].planned_nbytes / depths[0].planned_nbytes < depths[1].plain_nbytes / depths[0].plain_nbytes


@pytest.mark.parametrize("fits", [0, 1, 2, 3, 7, 8, 9, 20])
def test_the_deepest_that_fits_is_found(fits: int) -> None:
    assert deepest(lambda blocks: blocks <= fits, 20) == fits


def test_no_depth_above_the_limit_is_tried() -> None:
    tried: list[int] = []
    deepest(lambda blocks: tried.append(blocks) is None, 5)
    assert max(tried) <= 5


def test_growth_is_the_exponent_of_the_depth(depths: list[Depth]) -> None:
    made = [Depth(n, 6 * n + 2, 1, 100 * n, 10 * n * n, 0, 0, 0.1, 1, 1, 1, 1, 1) for n in (1, 2, 4, 8)]
    assert growth(made, "planned_nbytes") == pytest.approx(2)


def test_published_figures_stand_beside_their_batch_alone(depths: list[Depth]) -> None:
    assert ("1,620" in report(depths, 1280, PLACE), "1,620" in report(depths, 16, PLACE)) == (True, False)


def test_a_run_writes_results_and_a_picture(tmp_path: Path) -> None:
    output = tmp_path / "deep.json"
    given = ["--blocks", "1", "--batch", "4", "--solves", "0", "--memory", "20MB", "--limit", "1", "-o", str(output)]
    deep_resnet.main(given)
    written = json.loads(output.read_text())
    assert (len(written["depths"]), output.with_suffix(".svg").read_text()[:4]) == (1, "<svg")


def test_a_memory_that_no_depth_fits_is_said_to_fit_none() -> None:
    said = within("1MB", {"plain": 0, "planned": 0}, 256, 0.34)
    assert ("no depth fits plain, no depth fits planned" in said, "0 blocks" in said) == (True, False)


def test_an_interrupt_ends_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deep_resnet, "prepare_kernels", interrupted)
    assert deep_resnet.main(["--blocks", "1"]) == 130
