"""What the committed results of the benchmark say about the networks OGC was published with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.benchmark.count import for_the_count
from models.benchmark.measure import MATCHED_MEMORY, MATCHED_TIME, STRATEGY, STRATEGY_MEMORY, STRATEGY_TIME
from models.benchmark.published import PUBLISHED
from models.benchmark.rows import cut, overhead, rows_of
from models.readme.__main__ import RESULTS

NETWORKS: dict[str, Any] = json.loads((RESULTS / "benchmark.json").read_text())["networks"]


def test_every_published_network_is_there() -> None:
    assert NETWORKS.keys() >= PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_in_the_published_time_more_is_saved_and_at_the_published_memory_less_time_added(name: str) -> None:
    rows, published = rows_of(NETWORKS[name]), PUBLISHED[name]
    assert cut(rows[MATCHED_TIME], rows["plain"]) > 1 - published.remaining
    assert overhead(rows[MATCHED_MEMORY], rows["plain"]) < published.overhead


@pytest.mark.parametrize("name", PUBLISHED)
def test_at_the_memory_of_the_strategy_less_time_is_added_and_in_its_time_no_less_saved(name: str) -> None:
    rows = rows_of(NETWORKS[name])
    assert overhead(rows[STRATEGY_MEMORY], rows["plain"]) < overhead(rows[STRATEGY], rows["plain"])
    assert for_the_count(rows, STRATEGY_TIME)["protocol_nbytes"] <= rows[STRATEGY]["protocol_nbytes"]
