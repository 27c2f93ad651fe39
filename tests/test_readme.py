"""README.md says what the results files and the repository say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from models.light import light_path
from models.readme import ROOT, blocks, filled

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_table_is_the_one_made_from_the_committed_results() -> None:
    assert filled(README, blocks()) == README


def test_ci_runs_the_readmes_test_command_word_for_word() -> None:
    command = next(line for line in README.splitlines() if "-m pytest" in line and line.startswith("python3 -m venv"))
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_every_file_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert [link for link in links if not Path(ROOT / link).exists()] == []


def test_every_command_the_readme_gives_for_a_figure_is_a_module_here() -> None:
    modules = set(re.findall(r"python -m (models\.\w+)", README))
    assert [name for name in sorted(modules) if not (ROOT / (name.replace(".", "/") + ".py")).exists()] == []


def test_the_python_example_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    shutil.copy(light_path("squeezenet"), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", example], check=True, capture_output=True)
    assert (tmp_path / "plan.json").exists()
