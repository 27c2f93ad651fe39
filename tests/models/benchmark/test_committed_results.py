"""What the committed results of the benchmark say about the networks OGC was published with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.benchmark.count import for_the_count
from models.benchmark.measure import MATCHED_MEMORY, MATCHED_TIME, STRATEGY, STRATEGY_MEMORY, STRATEGY_TIME
from models.benchmark.published import PUBLISHED
from models.benchmark.rows import cut, overhead, rows_of

RESULTS = Path(__file__).resolve().parents[3] / "models" / "results"
NETWORKS: dict[str, Any] = json.loads((RESULTS / "benchmark.json").read_text())["networks"]


def test_every_published_network_is_there() -> None:
    assert NETWORKS.keys() >= PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_in_the_published_time_more_activations_are_saved(name: str) -> None:
    rows = rows_of(NETWORKS[name])
    assert cut(rows[MATCHED_TIME], rows["plain"]) > 1 - PUBLISHED[name].remaining


@pytest.mark.parametrize("name", PUBLISHED)
def test_at_the_published_memory_less_time_is_added(name: str) -> None:
    rows = rows_of(NETWORKS[name])
    assert overhead(rows[MATCHED_MEMORY], rows["plain"]) < PUBLISHED[name].overhead


@pytest.mark.parametrize("name", PUBLISHED)
def test_at_the_memory_of_the_strategy_run_here_less_time_is_added(name: str) -> None:
    rows = rows_of(NETWORKS[name])
    assert overhead(rows[STRATEGY_MEMORY], rows["plain"]) < overhead(rows[STRATEGY], rows["plain"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_by_the_published_count_no_less_is_saved_than_by_the_strategy_in_its_time(name: str) -> None:
    rows = rows_of(NETWORKS[name])
    assert for_the_count(rows, STRATEGY_TIME)["protocol_nbytes"] <= rows[STRATEGY]["protocol_nbytes"]
