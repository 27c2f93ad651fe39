"""Defaults of options from a pyproject.toml: where they are found, what wins over them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ogc_plan.cli import main as command_line

from tests.cli.calls import Call

Write = Callable[[str], None]
WHERE = "[tool.ogc-plan] of ../pyproject.toml"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes pyproject.toml in the folder above the working directory."""
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    return lambda text: (tmp_path / "pyproject.toml").write_text(f"[tool.ogc-plan]\n{text}\n") and None


def device_and_optimizer(run: Call, *words: object) -> tuple[str, str]:
    budget = json.loads(run(*words, "--strategy", "greedy", "--format", "json").out)["budget"]
    return budget["device"], budget["optimizer"]


def test_they_are_found_upward_and_options_win(run: Call, model: Path, write: Write) -> None:
    write('device = "a100"\noptimizer = "sgd"\ndim = "batch=64"\nbudget = "80%"')
    given = device_and_optimizer(run, model, "--device", "t4")
    assert (device_and_optimizer(run, model), given) == (("a100", "sgd"), ("t4", "sgd"))


@pytest.mark.parametrize("value", ['"batch=64"', '["batch=64"]'])
def test_an_option_that_may_be_given_again_takes_a_text_or_a_list(
    run: Call, model: Path, write: Write, value: str
) -> None:
    write(f"dim = {value}\nverbose = true")
    assert "  w0  " in run("show", model).out


def test_a_table_of_a_command_is_for_it_alone_and_wins(run: Call, model: Path, write: Write) -> None:
    write('effort = "high"\nbatch = 64\n[tool.ogc-plan.frontier]\nbudgets = "90%,70%"\neffort = "fast"')
    points = json.loads(run("frontier", model, "--format", "json").out)["points"]
    assert [(point["budget"], point["effort"]) for point in points] == [("90%", "fast"), ("70%", "fast")]


def test_the_default_command_is_called_plan(run: Call, model: Path, write: Write) -> None:
    write('batch = 64\n[tool.ogc-plan.plan]\nbudget = "90%"\ndevice = "t4"')
    assert device_and_optimizer(run, model)[0] == "t4"


def test_no_config_leaves_them_out(run: Call, model: Path, write: Write) -> None:
    write('budget = "80%"')
    assert "no budget is given" in run(model, "--dim", "batch=64", "--no-config").error


def test_they_do_not_change_what_excludes_them(run: Call, model: Path, plan_file: Path, write: Write) -> None:
    write('device = "a100"\nbatch = 64\nloss = "mse"\noptimizer = "sgd"')
    described = Path("own.json")
    described.write_text(json.dumps({"name": "own", "float32_tflops": 1, "float16_tflops": 1, "bandwidth_gbps": 1,
                                     "launch_ns": 1}))  # fmt: skip
    words = [
        ("show", plan_file),
        ("show", model, "--device-spec", described),
        ("fit", model, "--memory", "20MB", "--multiple-of", "8192"),
        ("emit", plan_file, model, "--to", "jax", "-q"),
    ]
    assert [run(*line).err for line in words] == ["", "", "", ""]


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ('devic = "x"', f"'devic' in {WHERE} is no option that may have a default", "did you mean device?"),
        ('output = "x"', f"'output' in {WHERE} is no option that may have a default", ""),
        ("[tool.ogc-plan.show]\nbudget = 1", "'budget' in [tool.ogc-plan.show] of ../pyproject.toml is no", "the keys"),
        ('strict = "yes"', f"strict in {WHERE} is 'yes'", "write true or false"),
        ("device = true", f"device in {WHERE} is True", "write a text or a number"),
        ("dim = [1, true]", f"dim in {WHERE} is [1, True]", "write a text or a list of texts"),
        ("frontier = 3", f"frontier in {WHERE} is 3", "write a table [tool.ogc-plan.frontier]"),
        ('device = "gtx"', f"device 'gtx' is unknown ({WHERE})", "choose one of h200"),
        ('effort = "hard"', f"'hard' is not one of 'fast', 'default', 'high' ({WHERE})", ""),
        ("budget = 60", f"budget '60' has no unit ({WHERE})", "write 60% for a share"),
        ('device = "', "../pyproject.toml is no TOML: ", "or pass --no-config"),
    ],
)
def test_what_cannot_be_a_default_is_refused_by_the_name_of_its_file(
    run: Call, model: Path, write: Write, text: str, message: str, remedy: str
) -> None:
    write(text)
    done = run(model, *([] if text.startswith("budget") else ["--budget", "80%"]), "--dim", "batch=64")
    assert (done.code, message in done.error, remedy in done.err) == (2, True, True)


def test_an_error_in_what_is_given_does_not_name_the_file(run: Call, model: Path, write: Write) -> None:
    write('device = "a100"')
    assert "pyproject" not in run(model, "--budget", "80%", "--device", "gtx").err


@pytest.mark.parametrize("content", ["no [ TOML", "[tool.ruff]\nx = 1"])
def test_a_file_of_other_tools_is_passed_over(run: Call, model: Path, write: Write, content: str) -> None:
    write('dim = "batch=64"')
    Path("pyproject.toml").write_text(content)
    assert run("show", model).code == 0


def test_help_needs_no_file(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write('device = "')
    assert command_line.main(["show", "--help"]) == 0
