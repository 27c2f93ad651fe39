"""How deep a network fits: depths are examined, the deepest that fits is found, memory grows slowly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.training import deep_resnet
from models.training.deep_resnet import OVERHEAD, Depth, deepest, examine, growth, within


@pytest.fixture(scope="module")
def depths() -> list[Depth]:
    return [examine(blocks, 16, solves=1) for blocks in (1, 3)]


def test_the_plan_keeps_to_the_time_it_may_add(depths: list[Depth]) -> None:
    assert all(depth.overhead <= OVERHEAD for depth in depths)


def test_planned_memory_is_less_and_grows_more_slowly(depths: list[Depth]) -> None:
    shares = [depth.planned_nbytes / depth.plain_nbytes for depth in depths]
    assert 1 > shares[0] > shares[1]


@pytest.mark.parametrize("fits", [0, 1, 3, 8, 20])
def test_the_deepest_that_fits_is_found_and_none_above_the_limit_is_tried(fits: int) -> None:
    tried: list[int] = []
    found = deepest(lambda blocks: tried.append(blocks) or blocks <= fits, 20)  # type: ignore[func-returns-value]
    assert (found, max(tried) <= 20) == (fits, True)


def test_growth_is_the_exponent_of_the_depth() -> None:
    made = [{"blocks": n, "planned_nbytes": 10 * n * n} for n in (1, 8)]
    assert growth(*made) == pytest.approx(2)


def test_a_run_writes_results_and_a_picture(
    depths: list[Depth], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deep_resnet, "examine", lambda *_: depths[0])
    monkeypatch.setattr(deep_resnet, "LIMIT", 1)
    output = tmp_path / "deep.json"
    deep_resnet.main(["--blocks", "1", "--batch", "4", "--memory", "1MB", "-o", str(output)])
    written = json.loads(output.read_text())
    assert (len(written["depths"]), output.with_suffix(".svg").read_text()[:4]) == (1, "<svg")


def test_a_memory_that_no_depth_fits_is_said_to_fit_none() -> None:
    record: dict[str, Any] = {"batch": 4, "memory": "1MB", "fitting_blocks": {"plain": 0, "planned": 0}}
    assert "no blocks a stage plain, no blocks a stage planned" in within(record)


def test_an_interrupt_ends_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(deep_resnet, "prepare_kernels", interrupted)
    assert deep_resnet.main(["--blocks", "1"]) == 130
