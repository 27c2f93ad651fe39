"""The figures of static arenas: one graph measured again, and the table that the page shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models import arena
from models.arena import BUDGETS, NETWORKS, main, report

RECORD = json.loads(Path(arena.__file__).with_name("results").joinpath("arena.json").read_text())["networks"]


def test_the_committed_arenas_are_those_of_every_network_and_at_most_1_5_percent_above_the_peak() -> None:
    assert set(RECORD) == set(NETWORKS)
    for entry in RECORD.values():
        assert list(entry["cells"]) == list(BUDGETS)
        for cell in filter(None, entry["cells"].values()):
            for found in cell.values():
                assert found["peak_nbytes"] <= found["bound_nbytes"] <= found["arena_nbytes"]
                assert found["arena_nbytes"] <= 1.015 * found["peak_nbytes"]


def test_a_row_says_how_much_larger_arenas_are_and_the_last_one_the_largest() -> None:
    def cell(peak: int, arena_nbytes: int) -> dict[str, dict[str, int]]:
        same = {"allocations": 7, "peak_nbytes": peak, "arena_nbytes": arena_nbytes, "bound_nbytes": peak}
        return {"step": same, "inside": {**same, "arena_nbytes": peak}}

    networks = {
        "vgg19": {"cells": {**dict.fromkeys(BUDGETS), "80%": cell(100, 101)}},
        "unet": {"cells": {**dict.fromkeys(BUDGETS), "80%": cell(100, 103)}},
    }
    lines = report(networks).splitlines()
    assert lines[2].startswith("| VGG-19 | 7 to 7 | 1.00% / 0.00% | no plan |")
    assert lines[-1].startswith("| largest |  | 3.00% / 0.00% |")


def test_a_graph_is_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "BUDGETS", ("60%",))
    main(["light-shufflenet", "-o", str(tmp_path / "arena.json"), "--files", str(tmp_path)])
    (entry,) = json.loads((tmp_path / "arena.json").read_text())["networks"].values()
    found = entry["cells"]["60%"]["inside"]
    assert found["peak_nbytes"] <= found["arena_nbytes"] <= 1.015 * found["peak_nbytes"]
