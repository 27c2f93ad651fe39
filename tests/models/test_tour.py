"""The tour: its cells run, and what they show is what stands in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from models.readme.__main__ import ROOT
from models.tour import NOTEBOOK, executed

RUN = "import json; from models.tour import run; print(json.dumps(run()))"


def cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any]) -> list[str]:
    """What a cell shows as text, without the numbers that depend on the machine."""
    texts = ["".join(output.get("text") or output["data"]["text/plain"]) for output in cell["outputs"]]
    return [re.sub(r"\d[\d,.]*", "N", text) for text in texts]


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="a cell limits the memory of the process")
def test_every_cell_runs_and_shows_what_stands_in_the_notebook(committed: dict[str, Any]) -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [*map(shown, cells(json.loads(done.stdout)))] == [*map(shown, cells(committed))]


def test_it_takes_ten_cells_from_out_of_memory_to_training(committed: dict[str, Any]) -> None:
    texts = ["".join(shown(cell)) for cell in cells(committed)]
    assert (len(texts), texts[2][:13], texts[-1].count("loss")) == (10, "out of memory", 3)


def test_the_report_is_in_it(committed: dict[str, Any]) -> None:
    found = [output["data"] for cell in cells(committed) for output in cell["outputs"] if "data" in output]
    pages = ["".join(data["text/html"]) for data in found if "text/html" in data]
    assert [page[:7] for page in pages] == ["<iframe"]


def test_it_is_a_notebook_of_format_4_5(committed: dict[str, Any]) -> None:
    kinds = {"code": {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}}
    kinds["markdown"] = kinds["code"] - {"execution_count", "outputs"}
    assert (committed["nbformat"], committed["nbformat_minor"]) == (4, 5)
    assert [cell["id"] for cell in committed["cells"] if set(cell) != kinds[cell["cell_type"]]] == []


def test_a_cell_shows_what_it_prints_and_its_last_line() -> None:
    cell = {"cell_type": "code", "source": ["print(1)\n", "2"]}
    (made,) = executed({"cells": [cell]})["cells"]
    assert shown(made) == ["N\n", "N"]


def test_a_cell_that_raises_ends_the_run() -> None:
    with pytest.raises(ZeroDivisionError):
        executed({"cells": [{"cell_type": "code", "source": ["1 / 0"]}]})
