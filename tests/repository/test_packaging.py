"""What a user installs: the wheel holds every module of the tree, the marker files and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("planner", "adapters", "cli")
DATA = (
    "ogc_plan/py.typed",
    "ogc_plan/planner/plan_file/plan.schema.json",
    "ogc_plan/planner/plan_file/plan.v2.schema.json",
    "ogc_plan/planner/arena/arena.schema.json",
    "ogc_plan/planner/display/html/page.css",
    "ogc_plan/planner/display/html/page.js",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, so that the build leaves nothing behind."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / ".src", tree / ".src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(target), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def contents(wheel: Path) -> frozenset[str]:
    return frozenset(ZipFile(wheel).namelist())


def modules_of_the_tree() -> set[str]:
    own = {f"ogc_plan/{path.name}" for path in (ROOT / ".src/ogc_plan").glob("*.py")}
    return own | {f"ogc_plan/{p.relative_to(ROOT).as_posix()}" for f in FOLDERS for p in (ROOT / f).rglob("*.py")}


def test_every_module_of_the_tree_is_in_the_wheel(contents: frozenset[str]) -> None:
    assert modules_of_the_tree() - contents == set()


@pytest.mark.parametrize("name", DATA)
def test_marker_and_schema_files_are_in_the_wheel(contents: frozenset[str], name: str) -> None:
    assert name in contents


def test_the_wheel_holds_nothing_else(contents: frozenset[str]) -> None:
    metadata = {name for name in contents if ".dist-info/" in name}
    assert contents - modules_of_the_tree() - set(DATA) - metadata == set()


def test_the_package_itself_has_a_version_and_a_command(wheel: Path) -> None:
    program = "import ogc_plan, runpy; print(ogc_plan.__version__); runpy.run_module('ogc_plan', run_name='__main__')"
    command = [sys.executable, "-c", program, "--version"]  # from the wheel, which Python reads packed
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(wheel)})
    number = wheel.name.split("-")[1]
    assert done.stdout.split("\n") == [number, f"ogc-plan {number}", ""]


def test_the_wheel_installs_the_command(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
        assert "ogc-plan = ogc_plan.cli.main:main" in archive.read(name).decode()


def test_the_wheel_carries_the_license(contents: frozenset[str]) -> None:
    assert any(name.endswith("LICENSE") for name in contents)


def test_the_wheel_runs_on_every_platform(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
