"""The figures of ONNX Runtime: what was committed, the table of it, and one network measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.runtimes import onnxruntime as measuring
from models.runtimes.onnxruntime import NETWORKS, STEPS, difference, main, report

RECORD = json.loads((Path(measuring.__file__).parents[1] / "results" / "onnxruntime.json").read_text())


def test_every_network_is_there_and_saves_what_is_planned_within_a_tenth() -> None:
    assert set(RECORD["networks"]) == set(NETWORKS)
    for entry in RECORD["networks"].values():
        whole = entry["cells"]["100%"]
        for budget in ("60%", "40%"):
            cell = entry["cells"][budget]
            if "infeasible" not in cell:
                planned, held = (whole[key] - cell[key] for key in ("planned_nbytes", "held_nbytes"))
                assert 0.9 * planned < held < 1.1 * planned


def test_the_plan_has_eager_bits_in_pytorch_and_is_measured_as_planned() -> None:
    for entry in RECORD["networks"].values():
        for cell in (cell["torch"] for cell in entry["cells"].values() if "torch" in cell):
            assert "refused" in cell or (cell["equal"] and cell["held_nbytes"] <= cell["planned_nbytes"] + 64)


def test_both_runtimes_train_a_published_file_to_the_same_losses() -> None:
    losses = np.array(RECORD["trained"]["losses"])
    assert losses.shape == (STEPS, 2)
    assert np.abs(losses[:, 0] - losses[:, 1]).max() < 1e-4
    assert losses[-1, 0] < losses[0, 0] / 2


def test_a_difference_is_that_of_all_parameters_together() -> None:
    theirs = {"a": np.array([3.0, 0.0]), "b": np.array([4.0])}
    assert difference({"a": np.array([3.0, 0.0]), "b": np.array([4.5])}, theirs) == pytest.approx(0.1)


def test_a_row_says_how_much_of_the_planned_saving_was_measured() -> None:
    def cell(planned: int, held: int) -> dict[str, Any]:
        torch = {"planned_nbytes": planned, "held_nbytes": planned, "equal": True}
        return {"planned_nbytes": planned, "held_nbytes": held, "difference": 1e-6, "from_double": 2e-6, "torch": torch}

    cells = {"100%": cell(100_000_000, 110_000_000), "60%": cell(60_000_000, 74_000_000), "40%": {"infeasible": 0.5}}
    lines = report({"networks": {"unet": {"cells": cells, "torch_from_double": 3e-6}}}).splitlines()
    assert "| 60.0 | 74.0 | 90% |" in lines[3]
    assert "| 60.0, 60.0 | equal |" in lines[3]
    assert "proven floor 50%" in lines[4]


def test_a_network_is_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "BUDGETS", ("100%", "60%"))
    main(["unet", "-o", str(tmp_path / "made.json"), "--files", str(tmp_path / "files")])
    (entry,) = json.loads((tmp_path / "made.json").read_text())["networks"].values()
    assert entry["cells"]["60%"]["held_nbytes"] < 0.8 * entry["cells"]["100%"]["held_nbytes"]
