"""The docstrings of the public functions of the adapter, and of plans: complete, and their examples run."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import ogc_plan
import pytest
import torch
from ogc_plan import planner
from ogc_plan.adapters import pytorch
from ogc_plan.planner import Plan

from tests.files.onnx_files import write_perceptron
from tests.modules.devices import cpu_only

FUNCTIONS = [name for name in pytorch.__all__ if inspect.isfunction(getattr(pytorch, name))]
DOCUMENTED = {
    **{name: getattr(pytorch, name) for name in FUNCTIONS},
    "Plan": Plan,
    "report": planner.report,
    "ogc_plan": ogc_plan,
}


def text_of(name: str) -> str:
    return inspect.getdoc(DOCUMENTED[name]) or ""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_explained(name: str) -> None:
    part = text_of(name).partition("Args:")[2].partition("\n\n")[0]
    told = {word for line in re.findall(r"^    ([\w, ]+):", part, re.MULTILINE) for word in line.split(", ")}
    assert set(inspect.signature(DOCUMENTED[name]).parameters) <= told


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("export", "to_onnx")])
def test_what_is_returned_is_explained(name: str) -> None:
    assert "\n\nReturns:\n" in text_of(name)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "original"])
def test_what_is_raised_is_explained(name: str) -> None:
    assert "\n\nRaises:\n" in text_of(name)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_nothing_internal_is_named(name: str) -> None:
    assert not re.search(r"\w\.py\b|`capture`|`pipeline\.", text_of(name))


@cpu_only("the examples are those of a CPU")
@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_perceptron(tmp_path / "fixed.onnx")
    names = {"torch": torch, **{public: getattr(pytorch, public) for public in pytorch.__all__}}
    names |= {"plan": planner.plan, "report": planner.report}
    names["load_model"] = lambda _: planner.load_model("fixed.onnx", dims={"batch": 4096})
    found = doctest.DocTestFinder(recurse=True).find(DOCUMENTED[name], name, module=False, extraglobs=names)
    runner = doctest.DocTestRunner()
    assert sum(runner.run(test).attempted for test in found) > 0
    assert runner.summarize(verbose=False).failed == 0
