"""README.md says what the results files and the repository say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ogc_plan.planner.strategies.optimal.effort import EFFORTS

from models.light import light_path
from models.readme.__main__ import ROOT, blocks, filled

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
    files = {name: ROOT / name.replace(".", "/") for name in sorted(modules)}
    assert [
        n for n, path in files.items() if not any(p.exists() for p in (path.with_suffix(".py"), path / "__main__.py"))
    ] == []


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def example(word: str) -> str:
    """The one Python example with ``word`` in it."""
    (found,) = (text for text in EXAMPLES if word in text)
    return str(found)


def run(program: str) -> str:
    """What a fresh Python prints when it runs ``program`` in the present folder."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_python_example_is_run_below() -> None:
    assert len(EXAMPLES) == 4


def test_the_example_without_pytorch_runs_as_written(folder: Path) -> None:
    shutil.copy(light_path("squeezenet"), folder / "model.onnx")
    run(example("load_model"))
    assert (folder / "plan.json").exists()


def test_the_pytorch_example_runs_as_written() -> None:
    assert re.fullmatch(r"[\d,]+ bytes of activations, \d+\.\d% more time\n", run(example("AdamW")))


def test_the_lines_on_top_run_as_written() -> None:
    ready = "import torch\nx = y = torch.ones(2, 2)\nmodel = torch.nn.Bilinear(2, 2, 2)\n"
    assert run(ready + example('"3GB")  # same class')) == ""


def test_the_example_through_a_file_runs_as_written() -> None:
    words = ["model.onnx", "--budget", "3GB", "-q", "-o", "plan.json"]
    plan = f"from ogc_plan.cli.main import main\nassert main({words}) == 0"
    exported, bound = example("import bind, export").split("model = bind")
    ready = "import torch\nmodel, x = torch.nn.Linear(4, 4), torch.randn(2, 4)\n"
    run(f"{ready}{exported}\n{plan}\nmodel = bind{bound}\nmodel(x).sum().backward()")


def test_the_gap_at_which_a_search_ends_is_the_one_of_its_effort() -> None:
    (share,) = {EFFORTS[name].bound.accepted_gap for name in ("fast", "default")}
    assert f"within {100 * share:g}% of a step of the best" in " ".join(README.split())
