"""The times of reading files: the files that are read, a small run, and the committed figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models import reading_time
from models.reading_time import NETWORKS, main, of_ops

RESULTS = Path(reading_time.__file__).with_name("results")
BEFORE, AFTER = (
    json.loads((RESULTS / f"{name}.json").read_text())["rows"] for name in ("reading_time_before", "reading_time")
)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_has_the_nodes_asked_for_or_a_layer_more(name: str) -> None:
    assert 0 <= len(of_ops(NETWORKS[name], 1000).graph.node) - 1000 < 60


def test_small_files_are_read_and_their_times_written(tmp_path: Path) -> None:
    main(["--ops", "100", "--rounds", "1", "-o", str(tmp_path / "times.json")])
    assert [row["name"] for row in json.loads((tmp_path / "times.json").read_text())["rows"]] == list(NETWORKS)


def test_the_same_files_take_less_time_than_before() -> None:
    pairs = zip(BEFORE, AFTER, strict=True)
    assert all(new["nodes"] == old["nodes"] and new["seconds"] < 0.9 * old["seconds"] for old, new in pairs)
