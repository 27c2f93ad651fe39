"""A package that is not installed is one line with its remedy, from the command line and from Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.files.onnx_files import write_perceptron

HIDE = """
import sys
from importlib.machinery import PathFinder
found, hidden = PathFinder.find_spec, sys.argv[1].split(",")
PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] in hidden else found(name, *rest)
"""
COMMAND = """
from ogc_plan.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
PLANNER = """
from ogc_plan.planner import load_model, plan
plan(load_model(sys.argv[2], batch=8), "60%")
"""
ADAPTER = """
import ogc_plan.adapters.pytorch as adapter
planned = adapter.within_budget
import torch
planned(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), (torch.ones(2, 4),), budget="100%")
"""


def without(package: str, program: str, *words: str) -> tuple[int, str]:
    """Exit code and last lines of a program that does not find a package."""
    command = [sys.executable, "-c", HIDE + program, package, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_perceptron(tmp_path_factory.mktemp("model") / "model.onnx"))


@pytest.mark.parametrize("package", ["ortools", "numba", "scipy"])
def test_the_command_line_names_the_package(package: str, model: str) -> None:
    message = f"error: {package} cannot be imported: No module named '{package}'\nhelp: pip install {package}\n"
    assert without(package, COMMAND, model, "--batch", "8", "--budget", "60%") == (8, message)


def test_profile_names_the_runtime(model: str) -> None:
    told = "onnxruntime cannot be imported: No module named 'onnxruntime'"
    message = f"error: {told}\nhelp: pip install onnxruntime\n"
    assert without("onnxruntime", COMMAND, "profile", model, "--batch", "8") == (8, message)


def test_a_picture_that_needs_a_package_is_refused_before_the_work(model: str) -> None:
    message = (
        "error: matplotlib cannot be imported: No module named 'matplotlib'\nhelp: pip install 'ogc-plan[plots]'\n"
    )
    assert without("matplotlib,ortools", COMMAND, "frontier", model, "--batch", "8", "--plot", "a.png") == (8, message)


@pytest.mark.parametrize("package", ["ortools", "numba"])
def test_python_names_the_package(package: str, model: str) -> None:
    _, told = without(package, PLANNER, model)
    assert told.splitlines()[-1].endswith(
        f"MissingPackageError: {package} cannot be imported: No module named '{package}'; pip install {package}"
    )


@pytest.mark.parametrize(
    ("package", "remedy"),
    [
        ("torch", "'ogc-plan[pytorch]'"),
        ("numba", "numba"),
        ("networkx", "networkx"),  # which torch needs, too
    ],
)
def test_the_adapter_names_the_package(package: str, remedy: str) -> None:
    _, told = without(package, ADAPTER)
    last = told.splitlines()[-1]
    assert last.endswith(f"{package} cannot be imported: No module named '{package}'; pip install {remedy}")
