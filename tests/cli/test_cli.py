"""The command line: exit codes, streams, what is printed, and how it fails."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.cli import options, terminal
from ogc_plan.cli.files import check_target, is_plan
from ogc_plan.cli.main import cli, main
from ogc_plan.cli.options import parse_dims, parse_duration, parse_inputs
from ogc_plan.cli.terminal import MAX_LINE, one_line
from ogc_plan.cli.timeline import BLOCKS, axis, bars, binned, phase_widths
from ogc_plan.planner import model as model_module
from ogc_plan.planner import pipeline
from ogc_plan.planner.errors import NoPlanInTimeError, StorageError, UnsupportedOpError, UsageError
from ogc_plan.planner.strategies import STRATEGIES
from ogc_plan.planner.strategies.optimal.effort import EFFORTS
from onnx import TensorProto, helper

from models.light import light_path
from tests.files.annotated_files import residual_network, write_annotated
from tests.files.onnx_files import RESNET50, write_perceptron

HEAVY = ("torch", "ortools", "numba", "onnx", "numpy", "scipy", "networkx", "rich")
GREEDY = ("--dim", "batch=4096", "--budget", "70%", "--strategy", "greedy")


class Run:
    """One call of `main` in this process."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def error(self) -> str:
        """The single error line; fails when stderr holds anything but it and at most one help line."""
        lines = self.err.splitlines()
        assert lines
        assert lines[0].startswith("error: ")
        assert len(lines) <= 2
        assert all(line.startswith("help: ") for line in lines[1:])
        return lines[0]


Call = Callable[..., Run]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    fast = EFFORTS["fast"]
    little = replace(fast, name="default", search=replace(fast.search, iterations=5_000, label_work=50_000))
    monkeypatch.setitem(EFFORTS, "default", little)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: Any) -> Run:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_perceptron(tmp_path_factory.mktemp("cli") / "perceptron.onnx")


@pytest.fixture
def plan_file(run: Call, model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "made.json"
    assert run(model, *GREEDY, "-o", path, "-q").code == 0
    return path


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def process(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ogc_plan.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class TestStart:
    def test_help_imports_nothing_heavy(self) -> None:
        program = (
            "import sys; from ogc_plan.cli.main import main; main(['--help']); "
            f"print([name for name in {HEAVY!r} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    def test_help_answers_in_half_a_second(self) -> None:
        times = []
        for _ in range(3):
            started = time.perf_counter()
            process("--help")
            times.append(time.perf_counter() - started)
        assert min(times) < 0.5

    @pytest.mark.parametrize("words", [["--help"], ["-h"], ["model.onnx", "--help"], ["--budget", "3GB", "--help"]])
    def test_help_tells_the_default_command_and_all_others(self, run: Call, words: list[str]) -> None:
        done = run(*words)
        assert (done.code, [word for word in ("--budget", "--time-limit", *cli.commands) if word not in done.out]) == (
            0,
            [],
        )

    @pytest.mark.parametrize("command", [*cli.commands])
    def test_every_command_has_its_help(self, run: Call, command: str) -> None:
        assert f"ogc-plan {command}" in run(command, "--help").out

    def test_help_fits_80_columns(self) -> None:
        lines = process("--help", env={**os.environ, "COLUMNS": "80"}).stdout.splitlines()
        assert max(map(len, lines)) <= 80

    def test_without_arguments_the_help_goes_to_stderr_with_code_2(self, run: Call) -> None:
        done = run()
        assert (done.code, done.out, "Usage:" in done.err) == (2, "", True)

    def test_version(self, run: Call) -> None:
        assert re.fullmatch(r"ogc-plan \d+\.\d+\.\d+\n", run("--version").out)

    def test_the_console_script_is_main(self) -> None:
        script = shutil.which("ogc-plan", path=str(Path(sys.executable).parent))
        if script is None:
            pytest.skip("not installed as a script")
        assert subprocess.run([script, "--version"], capture_output=True, check=False).returncode == 0


class TestExitCodes:
    def test_0_for_a_plan(self, run: Call, model: Path) -> None:
        assert run(model, *GREEDY).code == 0

    def test_1_for_a_defect_of_ours(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(model_module, "load_model", raising(RuntimeError("two\nlines")))
        done = run(model, *GREEDY)
        assert (done.code, done.error) == (1, r"error: internal RuntimeError: two\nlines")

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ([], "no budget is given"),
            (["--budget", "3XB"], "'XB'"),
            (["--budget", "0"], "zero"),
            (["--budget"], "--budget"),
            (["--frobnicate"], "--frobnicate"),
            (["--budget", "60%", "--batch", "0"], "--batch '0'"),
            (["--budget", "60%", "--batch", "many"], "--batch 'many'"),
            (["--budget", "60%", "--seed", "-1"], "--seed '-1'"),
            (["--budget", "60%", "--dim", "batch"], "--dim 'batch'"),
            (["--budget", "60%", "--dim", "batch=0"], "'0'"),
            (["--budget", "60%", "--dim", "batch=1", "--dim", "batch=2"], "'batch' is given as 1 and as 2"),
            (["--budget", "60%", "--input", "x=3xy"], "'3xy' is not a shape"),
            (["--budget", "60%", "--input", "x=3", "--input", "x=4"], "'x' is given two shapes"),
            (["--budget", "60%", "--time-limit", "soon"], "--time-limit 'soon'"),
            (["--budget", "60%", "--time-limit", "0s"], "--time-limit '0s'"),
            (["--budget", "60%", "--headroom", "some"], "--headroom 'some'"),
            (["--budget", "60%", "--dim", "batch=4096", "--strategy", "magic"], "'magic'"),
            (["--budget", "60%", "--dim", "batch=4096", "--device", "abacus"], "'abacus'"),
            (["--budget", "60%", "--dim", "batch=4096", "--optimizer", "hope"], "'hope'"),
            (["--budget", "60%", "--dim", "batch=4096", "--frozen", "zzz*"], "'zzz*'"),
            (["--budget", "60%", "--dim", "batch=4096", "--keep", "zzz*"], "'zzz*'"),
            (["--budget", "60%", "--scope", "everything"], "--scope"),
            (["--budget", "60%", "--effort", "heroic"], "--effort"),
            (["--budget", "60%", "--effort", "high", "--strategy", "greedy"], "strategy 'greedy' has none"),
            (["--budget", "60%", "second.onnx"], "second.onnx"),
            (["--budget", "60%"], "batch"),
        ],
    )
    def test_2_for_usage_with_one_line_that_names_it(self, run: Call, model: Path, words: list[str], says: str) -> None:
        done = run(model, *words)
        assert (done.code, says in done.error, done.out) == (2, True, "")

    def test_a_missing_budget_says_what_to_pass(self, run: Call, model: Path) -> None:
        assert run(model).err.splitlines()[1] == "help: pass --budget 3GB, --budget 60% or --budget min"

    def test_3_for_something_that_is_no_model(self, run: Call, tmp_path: Path) -> None:
        (tmp_path / "noise.onnx").write_bytes(b"\x00\xff" * 50)
        assert run(tmp_path / "noise.onnx", "--budget", "60%").code == 3

    def test_4_for_what_is_not_supported(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            model_module, "load_model", raising(UnsupportedOpError("node 'n' (Loop): no", remedy="unroll"))
        )
        done = run(model, *GREEDY)
        assert (done.code, done.err) == (4, "error: node 'n' (Loop): no\nhelp: unroll\n")

    def test_5_for_a_budget_below_the_floor(self, run: Call, model: Path) -> None:
        done = run(model, "--dim", "batch=4096", "--budget", "1MB")
        assert (done.code, "proven floor" in done.error, "--budget" in done.err.splitlines()[1]) == (5, True, True)

    def test_the_budget_that_an_infeasible_one_names_works(self, run: Call, model: Path) -> None:
        words = [model, "--dim", "batch=4096", "--budget"]
        smallest = re.search(r"--budget (\d+B)", run(*words, "1MB").err)
        assert smallest is not None
        assert run(*words, smallest[1]).code == 0

    @pytest.mark.parametrize(("batch", "smaller"), [("2", "a smaller --batch"), ("1", "a smaller input")])
    def test_no_batch_below_one_is_asked_for(self, run: Call, model: Path, batch: str, smaller: str) -> None:
        assert run(model, "--batch", batch, "--budget", "1B").err.splitlines()[1].endswith(smaller)

    def test_6_when_the_time_ends_without_a_plan(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipeline, "plan", raising(NoPlanInTimeError("no plan in 1 s", remedy="wait")))
        assert run(model, *GREEDY).code == 6

    def test_7_for_something_that_is_no_plan(self, run: Call, model: Path) -> None:
        assert run("verify", model).code == 7

    def test_8_for_a_missing_model(self, run: Call) -> None:
        done = run("absent.onnx", *GREEDY)
        assert (done.code, "'absent.onnx'" in done.error) == (8, True)

    @pytest.mark.parametrize(
        ("word", "remedy"), [("verfy", "did you mean verify?"), ("zzz", f"the commands are {', '.join(cli.commands)}")]
    )
    def test_2_for_a_word_that_is_no_command_and_no_file(self, run: Call, word: str, remedy: str) -> None:
        done = run(word, "plan.json")
        assert (done.code, done.err) == (2, f"error: '{word}' is no file and no command\nhelp: {remedy}\n")

    def test_a_file_that_is_no_model_is_named(self, run: Call, tmp_path: Path) -> None:
        (tmp_path / "empty.onnx").touch()
        assert '"empty.onnx" is empty' in run(tmp_path / "empty.onnx", *GREEDY).error

    def test_3_for_sizes_that_add_up_to_more_than_any_machine_has(self, run: Call) -> None:
        done = run("show", light_path("squeezenet"), "--batch", "20000000000")
        assert (done.code, re.search(r"squeezenet\.onnx' add up to \d+ bytes", done.error) is not None) == (3, True)

    def test_8_for_a_folder(self, run: Call, tmp_path: Path) -> None:
        assert run(tmp_path, *GREEDY).code == 8

    def test_8_for_a_named_pipe_which_is_not_waited_for(self, run: Call, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        done = run(tmp_path / "pipe", *GREEDY)
        assert (done.code, "pipe or a device" in done.err) == (8, True)

    def test_8_when_memory_runs_out(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(model_module, "load_model", raising(MemoryError()))
        done = run(model, *GREEDY)
        assert (done.code, "memory" in done.error) == (8, True)

    def test_8_for_an_operating_system_error(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(model_module, "load_model", raising(OSError(errno.EIO, "Input/output error", "disk")))
        done = run(model, *GREEDY)
        assert (done.code, "'disk': Input/output error" in done.error) == (8, True)

    def test_130_for_ctrl_c(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipeline, "plan", raising(KeyboardInterrupt()))
        done = run(model, *GREEDY)
        assert (done.code, "interrupted" in done.error) == (130, True)

    def test_debug_shows_the_traceback(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(model_module, "load_model", raising(RuntimeError("x")))
        assert "Traceback" in run(model, *GREEDY, "--debug").err


class TestErrorLines:
    HOSTILE = "n\x1b[31m\n\rerror: \u202efake\u2028[bold red] {x}\x00\x9b\ud800" + "y" * 900

    @given(st.text(max_size=3000))
    def test_any_text_becomes_one_short_printable_line(self, text: str) -> None:
        line = one_line(text)
        assert (
            len(line) <= MAX_LINE,
            len(line.splitlines()) <= 1,
            all(c.isprintable() or c.isspace() for c in line),
        ) == (
            True,
            True,
            True,
        )

    def test_names_from_a_file_cannot_break_the_line(self, run: Call, plan_file: Path) -> None:
        data = json.loads(plan_file.read_text())
        data["schedule"][0][1] = self.HOSTILE
        plan_file.write_text(json.dumps(data))
        done = run("verify", plan_file)
        assert (done.code, len(done.error) <= MAX_LINE + 10, "\x1b" in done.err) == (7, True, False)

    def test_names_from_a_file_cannot_break_the_report(self, run: Call, plan_file: Path) -> None:
        name = json.loads(plan_file.read_text())["ops"][0]["name"]
        plan_file.write_text(plan_file.read_text().replace(json.dumps(name), json.dumps(self.HOSTILE)))
        done = run("show", plan_file, "-v")
        assert (done.code, set(done.out) & set("\x1b\r\x00\u202e\u2028")) == (0, set())

    def test_node_names_of_a_model_cannot_break_its_report(self, run: Call, model: Path, tmp_path: Path) -> None:
        proto = onnx.load(str(model))
        proto.graph.node[0].name = "a\x1b[2J\n[red]b"
        proto.graph.node[1].output[0] = proto.graph.node[2].input[0] = "t\x1b[2J\n[red]u"
        onnx.save(proto, str(tmp_path / "hostile.onnx"))
        done = run("show", tmp_path / "hostile.onnx", "--dim", "batch=64", "-v")
        assert (done.code, "\x1b" in done.out, "[red]u" in done.out) == (0, False, True)

    def test_a_file_name_cannot_break_the_line(self, run: Call) -> None:
        assert "\x1b" not in run("a\x1b[31m\nb.onnx", "--budget", "60%").error


class TestFirstWord:
    @pytest.mark.parametrize("split", [0, 2, 4, 6])
    def test_options_stand_before_or_after_the_file(self, run: Call, model: Path, split: int) -> None:
        assert run(*GREEDY[:split], model, *GREEDY[split:]).code == 0

    def test_a_file_named_show_is_reached_by_its_path(
        self, run: Call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copy(model, tmp_path / "show")
        monkeypatch.chdir(tmp_path)
        assert run("./show", *GREEDY).code == 0

    def test_a_file_named_show_is_reached_behind_two_dashes(
        self, run: Call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copy(model, tmp_path / "show")
        monkeypatch.chdir(tmp_path)
        assert run(*GREEDY, "--", "show").code == 0

    def test_a_command_may_follow_its_options(self, run: Call, model: Path) -> None:
        assert "largest storages" in run("--dim", "batch=64", "show", model).out

    def test_the_value_of_an_option_is_no_command(self, run: Call, model: Path, tmp_path: Path) -> None:
        (tmp_path / "compare").mkdir()
        assert "matches no tensor" in run("--keep", "compare", model, *GREEDY).error


class TestStreams:
    def test_the_report_is_on_stdout_and_stderr_is_silent(self, run: Call, model: Path) -> None:
        done = run(model, *GREEDY)
        assert ("activation peak" in done.out, done.err) == (True, "")

    def test_a_plan_on_stdout_moves_the_report_to_stderr(self, run: Call, model: Path) -> None:
        done = run(model, *GREEDY, "-o", "-")
        assert (json.loads(done.out)["format"], "activation peak" in done.err) == ("ogc-plan", True)

    def test_json_on_stdout_moves_the_report_to_stderr(self, run: Call, model: Path) -> None:
        done = run(model, *GREEDY, "--format", "json")
        assert (json.loads(done.out)["budget"]["text"], "activation peak" in done.err) == ("70%", True)

    def test_quiet_says_nothing_on_success(self, run: Call, model: Path, tmp_path: Path) -> None:
        done = run(model, *GREEDY, "-q", "-o", tmp_path / "plan.json")
        assert (done.code, done.out, done.err) == (0, "", "")

    def test_quiet_with_a_plan_on_stdout_prints_the_plan_alone(self, run: Call, model: Path) -> None:
        done = run(model, *GREEDY, "-q", "-o", "-")
        assert (json.loads(done.out)["version"], done.err) == (1, "")

    def test_quiet_still_tells_errors(self, run: Call, model: Path) -> None:
        assert run(model, "-q", "--dim", "batch=64", "--budget", "1B").error

    def test_the_plan_on_stdout_is_the_plan_in_the_file(self, run: Call, model: Path, plan_file: Path) -> None:
        assert run(model, *GREEDY, "-q", "-o", "-").out == plan_file.read_text()

    def test_a_model_and_a_plan_come_through_pipes(self, model: Path) -> None:
        words = [sys.executable, "-m", "ogc_plan.cli.main"]
        made = subprocess.run(
            [*words, "-", *GREEDY, "-q", "-o", "-"], input=model.read_bytes(), capture_output=True, check=True
        )
        done = subprocess.run([*words, "verify", "-"], input=made.stdout, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_a_closed_pipe_ends_it_silently(self, model: Path, unbuffered: str) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "-m", "ogc_plan.cli.main", "show", str(model), "--dim", "batch=64", "-v"]
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=env, check=False)
        os.close(writing)
        assert (done.returncode, done.stderr) == (141, b"")

    def test_a_stdout_that_is_not_there_is_code_8(self, model: Path) -> None:
        words = f"{sys.executable} -m ogc_plan.cli.main show {model} --dim batch=64 >&-"
        done = subprocess.run(["sh", "-c", words], stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            8,
            "error: cannot read or write: standard output is closed",
        )

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_a_full_stdout_is_code_8(self, model: Path, unbuffered: str) -> None:
        command = [sys.executable, "-m", "ogc_plan.cli.main", "show", str(model), "--dim", "batch=64"]
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)
        assert (done.returncode, done.stderr.splitlines()) == (
            8,
            ["error: cannot read or write: No space left on device", "help: check the path, its rights and the disk"],
        )

    def test_an_ascii_terminal_gets_escapes_instead_of_a_crash(self, model: Path) -> None:
        done = process(model, *GREEDY, env={**os.environ, "PYTHONIOENCODING": "ascii"})
        assert (done.returncode, done.stderr) == (0, "")


def on_terminal(*words: Any, **environment: str) -> str:
    """What a run shows on a pseudo-terminal, stdout and stderr together."""
    main_end, process_end = pty.openpty()
    variables = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    running = subprocess.Popen(
        [sys.executable, "-m", "ogc_plan.cli.main", *map(str, words)],
        stdin=process_end, stdout=process_end, stderr=process_end,
        env={**variables, "TERM": "xterm-256color", "COLUMNS": "90", **environment},
    )  # fmt: skip
    os.close(process_end)
    shown = b""
    while True:
        try:
            part = os.read(main_end, 65536)
        except OSError:  # Linux ends a pseudo-terminal with EIO
            break
        if not part:
            break
        shown += part
    running.wait()
    os.close(main_end)
    return shown.decode()


def test_a_plan_never_overwrites_the_model(run: Call, model: Path) -> None:
    assert run(model, *GREEDY, "-o", model).err.startswith(f"error: -o {str(model)!r} would overwrite the model")


class TestTerminal:
    COLOUR = re.compile(r"\x1b\[[0-9;]*m")

    def test_a_terminal_gets_colour_and_progress(self, model: Path) -> None:
        shown = on_terminal(model, *GREEDY)
        assert (bool(self.COLOUR.search(shown)), "reading" in shown) == (True, True)

    def test_no_color_takes_the_colour_away(self, model: Path) -> None:
        assert not self.COLOUR.search(on_terminal(model, *GREEDY, NO_COLOR="1"))

    def test_quiet_takes_the_progress_away(self, model: Path) -> None:
        assert on_terminal(model, *GREEDY, "-q") == ""

    def test_no_colour_in_a_pipe(self, run: Call, model: Path) -> None:
        assert "\x1b" not in run(model, *GREEDY).out

    def test_progress_tells_the_best_plan_the_bound_and_the_gap(self) -> None:
        lines: list[str] = []

        class Spinner:
            def update(self, *, text: Any) -> None:
                lines.append(str(text))

        show = terminal.Activity(Spinner()).progress(1000)
        assert show is not None
        show("improving the plan", 50, 30)
        assert lines == ["improving the plan, best +5.00%, bound 3.00%, gap 2.00%"]

    def test_progress_tells_that_the_search_is_being_stopped(self) -> None:
        lines: list[str] = []

        class Spinner:
            def update(self, *, text: Any) -> None:
                lines.append(str(text))

        show = terminal.Activity(Spinner()).progress(1000, stop=lambda: True)
        assert show is not None
        show("improving the plan", None, 0)
        assert lines == ["stopping, Ctrl-C again to give up: improving the plan"]

    def test_a_closed_stream_is_no_terminal(self) -> None:
        stream = io.StringIO()
        stream.close()
        assert not terminal.is_terminal(stream)


class TestReport:
    @pytest.mark.parametrize(
        ("budget", "echo"),
        [
            ("3MB", "3MB = 3.00 MB (2.86 MiB), bounds the total peak"),
            ("3MiB", "3MiB = 3.15 MB (3.00 MiB), bounds the total peak"),
            ("70%", "of it"),
            ("min", "min = "),
        ],
    )
    def test_the_budget_is_echoed_in_both_units_once(self, run: Call, model: Path, budget: str, echo: str) -> None:
        out = run(model, "--dim", "batch=1024", "--budget", budget).out
        assert out.count(f"{budget} = ") == 1

    def test_a_size_says_that_it_bounds_the_total(self, run: Call, model: Path) -> None:
        assert (
            "3MB = 3.00 MB (2.86 MiB), bounds the total peak"
            in run(model, "--dim", "batch=1024", "--budget", "3MB").out
        )

    def test_a_percentage_says_that_it_bounds_the_activations(self, run: Call, model: Path) -> None:
        assert "bounds the activation peak" in run(model, *GREEDY).out

    def test_the_scope_can_be_overridden(self, run: Call, model: Path) -> None:
        assert "bounds the total peak" in run(model, *GREEDY, "--scope", "total").out

    def test_headroom_is_told(self, run: Call, model: Path) -> None:
        assert "kept free as headroom" in " ".join(run(model, *GREEDY, "--headroom", "5%").out.split())

    @pytest.mark.parametrize("columns", [60, 80, 90, 100])
    def test_no_line_is_wider_than_the_terminal(
        self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch, columns: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, run(model, *GREEDY).out.splitlines())) <= columns

    def test_a_wide_terminal_is_not_filled(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "250")
        assert max(map(len, run(model, *GREEDY).out.splitlines())) <= 100

    def test_no_line_ends_with_spaces(self, run: Call, model: Path) -> None:
        assert not re.search(r" $", run(model, *GREEDY).out, re.MULTILINE)

    def test_the_parts_at_the_total_peak_add_up(self, run: Call, model: Path) -> None:
        data = json.loads(run(model, *GREEDY, "--optimizer", "adamw", "--format", "json").out)
        assert sum(data["at_total_peak_nbytes"].values()) == data["peak"]["total_nbytes"]

    def test_what_is_not_covered_is_said(self, run: Call, model: Path) -> None:
        out = " ".join(run(model, *GREEDY).out.split())
        assert "a loss computed outside the model; optimizer states (no --optimizer given); temporaries of" in out

    def test_a_given_optimizer_is_covered(self, run: Call, model: Path) -> None:
        assert "no --optimizer given" not in run(model, *GREEDY, "--optimizer", "sgd").out

    def test_verbose_names_what_is_recomputed(self, run: Call, model: Path) -> None:
        assert re.search(r"^recomputed .*(gemm|act|drop)\d", run(model, *GREEDY, "-v").out, re.MULTILINE)

    def test_the_timeline_shows_both_phases_of_both_schedules(self, run: Call, model: Path) -> None:
        lines = run(model, *GREEDY).out.splitlines()
        rows = [line for line in lines if any(block in line for block in BLOCKS[1:])]
        marker = next(line for line in lines if "┴" in line)
        assert (len(rows), "forward" in marker, "backward" in marker) == (2, True, True)

    def test_the_summary_has_no_step_lists(self, run: Call, model: Path) -> None:
        data = json.loads(run(model, *GREEDY, "--format", "json").out)
        assert not {"schedule", "timeline", "storages", "ops"} & set(data) or isinstance(data["ops"], int)


class TestEffort:
    WORDS = ("--dim", "batch=4096", "--budget", "70%")

    def test_the_names_are_those_of_the_search(self) -> None:
        assert tuple(EFFORTS) == options.EFFORTS

    @pytest.mark.parametrize("effort", ["fast", "default"])
    def test_the_summary_names_it(self, run: Call, model: Path, effort: str) -> None:
        data = json.loads(run(model, *self.WORDS, "--effort", effort, "--format", "json").out)
        assert data["effort"] == effort

    @pytest.mark.parametrize(("effort", "told"), [("fast", True), ("default", False)])
    def test_the_report_tells_one_that_was_asked_for(self, run: Call, model: Path, effort: str, told: bool) -> None:
        assert ("optimal, effort fast, seed 0" in run(model, *self.WORDS, "--effort", effort).out) is told

    def test_verbose_always_tells_it(self, run: Call, model: Path) -> None:
        assert "optimal, effort default, seed 0" in run(model, *self.WORDS, "-v").out

    def test_a_plan_shown_from_its_file_names_it_too(self, run: Call, model: Path, tmp_path: Path) -> None:
        run(model, *self.WORDS, "--effort", "fast", "-q", "-o", tmp_path / "p.json")
        assert "optimal, effort fast" in run("show", tmp_path / "p.json").out

    def test_a_search_that_the_time_limit_ended_says_so(self, run: Call, model: Path) -> None:
        out = " ".join(run(model, *self.WORDS, "--time-limit", "1ms").out.split())
        assert ("search stopped by the time limit" in out, "the time limit ended it early" in out) == (True, True)


class TestTimeline:
    @given(st.lists(st.integers(0, 2**50), min_size=1, max_size=300), st.integers(1, 120))
    def test_binning_keeps_the_peak(self, values: list[int], width: int) -> None:
        found = binned(values, width)
        assert (len(found), max(found)) == (width, max(values))

    def test_an_empty_phase_is_blank(self) -> None:
        assert bars(binned([], 5), 10) == "     "

    def test_bars_round_up_so_that_something_is_seen(self) -> None:
        assert bars([0, 1, 500, 1000], 1000) == " ▁▄█"

    @given(st.integers(0, 5000), st.integers(0, 5000), st.integers(20, 120))
    def test_the_marker_line_is_as_wide_as_the_bars(self, forward: int, backward: int, width: int) -> None:
        widths = phase_widths(forward + backward, forward, width)
        assert (sum(widths), len(axis(widths)), min(widths) > 1) == (width, width, True)


class TestTarget:
    def test_a_missing_folder_is_refused_before_the_model_is_read(self, run: Call, tmp_path: Path) -> None:
        done = run("absent.onnx", *GREEDY, "-o", tmp_path / "no" / "plan.json")
        assert (done.code, "folder" in done.error) == (8, True)

    def test_a_folder_as_target_is_refused(self, run: Call, model: Path, tmp_path: Path) -> None:
        done = run(model, *GREEDY, "-o", tmp_path)
        assert (done.code, f"{tmp_path}/plan.json" in done.err) == (8, True)

    def test_a_folder_without_write_permission_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
        with pytest.raises(StorageError, match="not writable"):
            check_target(str(tmp_path / "plan.json"))

    @pytest.mark.parametrize("words", [["--budget", "1B"], ["--budget", "3XB"], ["--budget", "70%", "--strategy", "x"]])
    def test_a_failure_leaves_an_old_plan_untouched(
        self, run: Call, model: Path, plan_file: Path, words: list[str]
    ) -> None:
        before = plan_file.read_bytes()
        code = run(model, "--dim", "batch=4096", *words, "-o", plan_file).code
        assert (code != 0, plan_file.read_bytes() == before) == (True, True)

    def test_an_interrupt_leaves_an_old_plan_untouched(
        self, run: Call, model: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = plan_file.read_bytes()
        monkeypatch.setattr(pipeline, "plan", raising(KeyboardInterrupt()))
        run(model, *GREEDY, "-o", plan_file)
        assert plan_file.read_bytes() == before

    def test_a_link_is_written_through(self, run: Call, model: Path, tmp_path: Path) -> None:
        (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
        run(model, *GREEDY, "-o", tmp_path / "link.json")
        assert ((tmp_path / "link.json").is_symlink(), is_plan(str(tmp_path / "real.json"))) == (True, True)

    def test_a_pipe_or_device_stays_one(self, run: Call, model: Path, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        done = run(model, *GREEDY, "-q", "-o", tmp_path / "pipe")
        os.close(reader)
        assert (done.code, (tmp_path / "pipe").is_fifo()) == (0, True)

    def test_a_name_that_ends_in_gz_is_packed(self, run: Call, model: Path, plan_file: Path, tmp_path: Path) -> None:
        run(model, *GREEDY, "-o", tmp_path / "plan.json.gz")
        assert gzip.decompress((tmp_path / "plan.json.gz").read_bytes()) == plan_file.read_bytes()


class TestShow:
    def test_a_model_is_described(self, run: Call, model: Path) -> None:
        out = run("show", model, "--dim", "batch=64").out
        words = ("Dropout 6", "parameters", "optimizer", "floor set by", "largest storages", "store-all peak")
        assert [word for word in words if word not in out] == []

    def test_verbose_lists_every_tensor(self, run: Call, model: Path) -> None:
        out = run("show", model, "--dim", "batch=64", "-v").out
        assert [name for i in range(6) for name in (f"w{i}", f"g{i}", f"r{i}") if f"  {name}  " not in out] == []

    def test_json_is_bytes(self, run: Call, model: Path) -> None:
        data = json.loads(run("show", model, "--dim", "batch=64", "--format", "json").out)
        assert (data["memory_nbytes"]["parameters"], data["memory_nbytes"]["inputs"]) == (6 * 32 * 32 * 4, 64 * 32 * 4)

    def test_the_peaks_are_those_of_the_plan(self, run: Call, model: Path, plan_file: Path) -> None:
        data = json.loads(run("show", model, "--dim", "batch=4096", "--format", "json").out)
        peak = json.loads(plan_file.read_text())["peak"]
        shown = (data["store_all"]["total_peak_nbytes"], data["floor"]["activations"]["nbytes"])
        assert shown == (peak["store_all_total_nbytes"], peak["floor_activation_nbytes"])

    @pytest.mark.parametrize("name", ["plan.json", "plan.onnx", "plan.json.gz"])
    def test_a_plan_is_known_by_its_content(self, run: Call, plan_file: Path, tmp_path: Path, name: str) -> None:
        content = plan_file.read_bytes()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        assert "bounds the activation peak" in run("show", tmp_path / name).out

    def test_a_plan_as_json(self, run: Call, plan_file: Path) -> None:
        assert json.loads(run("show", plan_file, "--format", "json").out)["format"] == "ogc-plan"

    def test_a_plan_that_is_not_true_is_not_shown(self, run: Call, plan_file: Path) -> None:
        data = json.loads(plan_file.read_text())
        data["peak"]["total_nbytes"] -= 1
        plan_file.write_text(json.dumps(data))
        assert run("show", plan_file).code == 7

    def test_model_options_do_not_apply_to_a_plan(self, run: Call, plan_file: Path) -> None:
        done = run("show", plan_file, "--batch", "4")
        assert (done.code, "--batch" in done.error) == (2, True)

    def test_other_json_is_refused(self, run: Call, tmp_path: Path) -> None:
        (tmp_path / "other.json").write_text('{"a": 1}')
        assert run("show", tmp_path / "other.json").code == 7


class TestCompare:
    @pytest.fixture
    def rows(self, run: Call, model: Path) -> list[dict[str, Any]]:
        done = run("compare", model, "--dim", "batch=4096", "--budget", "70%", "--format", "json")
        rows: list[dict[str, Any]] = json.loads(done.out)["rows"]
        return rows

    def test_every_strategy_has_its_row(self, rows: list[dict[str, Any]]) -> None:
        assert {row["strategy"].partition(":")[0] for row in rows} == set(STRATEGIES)

    def test_optimal_is_no_worse_at_the_same_peak(self, rows: list[dict[str, Any]]) -> None:
        worse = [r["strategy"] for r in rows if r["optimal_ns"] is not None and r["optimal_ns"] > r["recompute_ns"]]
        assert worse == []

    def test_no_plan_is_below_the_bound(self, rows: list[dict[str, Any]]) -> None:
        assert all(row["gap"] >= 0 for row in rows if row["gap"] is not None)

    def test_the_table_names_all_of_them(self, run: Call, model: Path) -> None:
        out = run("compare", model, "--dim", "batch=1024", "--budget", "70%").out
        assert [n for n in ("optimal", "greedy", "segments:4", "overhead", "gap") if n not in out] == []

    def test_a_budget_without_a_plan_is_a_row(self, run: Call, model: Path) -> None:
        assert "infeasible" in run("compare", model, "--dim", "batch=1024", "--budget", "1%").out

    def test_the_table_fits_80_columns(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        out = run("compare", model, "--dim", "batch=1024", "--budget", "70%").out
        assert (max(map(len, out.splitlines())) <= 80, "…" in out) == (True, False)


class TestVerify:
    def test_a_plan_alone(self, run: Call, plan_file: Path) -> None:
        done = run("verify", plan_file)
        assert (done.code, done.out.count("equal")) == (0, 4)

    def test_a_plan_with_its_model_and_the_recorded_options(self, run: Call, plan_file: Path, model: Path) -> None:
        done = run("verify", plan_file, model)
        assert (done.code, "derived afresh from the same file" in done.out) == (0, True)

    def test_all_options_are_recorded(self, run: Call, model: Path, tmp_path: Path) -> None:
        words = ("--input", "x=512x32", "--frozen", "w[01]", "--optimizer", "adamw", "--grad-accumulation")
        made = run(model, *words, "--device", "t4", "--budget", "80%", "-q", "-o", tmp_path / "p.json")
        assert (made.code, run("verify", tmp_path / "p.json", model).code) == (0, 0)

    def test_other_weights_are_the_same_model(self, run: Call, plan_file: Path, model: Path, tmp_path: Path) -> None:
        proto = onnx.load(str(model))
        proto.graph.initializer[0].raw_data = b"\x01" * len(proto.graph.initializer[0].raw_data)
        onnx.save(proto, str(tmp_path / "trained.onnx"))
        done = run("verify", plan_file, tmp_path / "trained.onnx")
        assert (done.code, "weights" in done.out) == (0, True)

    @pytest.mark.parametrize("options", [{"layers": 3}, {"width": 16}, {"op": "Sigmoid"}])
    def test_another_model_is_code_7(self, run: Call, plan_file: Path, tmp_path: Path, options: dict[str, Any]) -> None:
        done = run("verify", plan_file, write_perceptron(tmp_path / "other.onnx", **options))
        assert (done.code, bool(done.error), done.out) == (7, True, "")

    def test_a_model_that_does_not_take_the_options_is_code_7(self, run: Call, plan_file: Path, tmp_path: Path) -> None:
        proto = helper.make_model(
            helper.make_graph(
                [helper.make_node("Relu", ["a"], ["b"])],
                "other",
                [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", 3])],
                [helper.make_tensor_value_info("b", TensorProto.FLOAT, ["n", 3])],
            )
        )
        onnx.save(proto, str(tmp_path / "other.onnx"))
        assert run("verify", plan_file, tmp_path / "other.onnx").code == 7

    def test_json(self, run: Call, plan_file: Path, model: Path) -> None:
        data = json.loads(run("verify", plan_file, model, "--format", "json").out)
        assert (data["verified"], data["model"]["sha256_equal"]) == (True, True)

    def test_quiet_says_nothing(self, run: Call, plan_file: Path) -> None:
        done = run("verify", plan_file, "-q")
        assert (done.code, done.out, done.err) == (0, "", "")

    def test_both_from_stdin_is_refused(self, run: Call) -> None:
        assert run("verify", "-", "-").code == 2

    def test_a_plan_in_place_of_the_model_is_refused(self, run: Call, plan_file: Path) -> None:
        assert run("verify", plan_file, plan_file).code == 2


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_annotated(tmp_path_factory.mktemp("annotated") / "network.onnx")


class TestAnnotations:
    GREEDY = ("--budget", "70%", "--strategy", "greedy")
    SOURCE = re.compile(r"^annotations +torch 2.13.0 on cpu$", re.MULTILINE)

    @pytest.mark.parametrize("words", [GREEDY, ("compare", "--budget", "70%"), ("show",)])
    def test_every_report_says_where_the_graph_comes_from(self, run: Call, annotated: Path, words: Any) -> None:
        done = run(*words, annotated)
        assert (done.code, bool(self.SOURCE.search(done.out))) == (0, True)

    @pytest.mark.parametrize("words", [GREEDY, ("compare", "--budget", "70%"), ("show",)])
    def test_annotations_can_be_ignored(self, run: Call, annotated: Path, words: Any) -> None:
        done = run(*words, annotated, "--ignore-annotations")
        assert (done.code, "annotations" in done.out) == (0, False)

    def test_nothing_is_claimed_that_only_the_bare_file_tells(self, run: Call, annotated: Path) -> None:
        out = run("show", annotated, "-v").out
        assert [w for w in ("saved by the op", "outputs", "elements", "inference form", " type") if w in out] == []

    def test_verbose_lists_what_keep_and_recompute_match(self, run: Call, annotated: Path) -> None:
        out = run("show", annotated, "-v").out
        assert [name for name in ("product1", "product1.view", "mask1", "statistics") if f"  {name}\n" not in out] == []

    def test_json_names_the_source_and_says_null_where_it_does_not_know(self, run: Call, annotated: Path) -> None:
        data = json.loads(run("show", annotated, "--format", "json", "-v").out)
        unknown = [data[key] for key in ("inputs", "outputs", "dims", "tensors")]
        unknown.append(data["largest_storages"][0]["type"])
        assert (data["annotations"], unknown) == ({"framework": "torch 2.13.0", "device": "cpu"}, [None] * 5)

    @pytest.mark.parametrize("option", [("--dim", "n=4"), ("--batch", "4"), ("--input", "x=4x64"), ("--frozen", "w*")])
    @pytest.mark.parametrize("command", [GREEDY, ("show",), ("compare",)])
    def test_options_that_would_change_the_graph_are_one_error_line(
        self, run: Call, annotated: Path, command: Any, option: tuple[str, str]
    ) -> None:
        done = run(*command, annotated, *option)
        assert (done.code, f"{option[0]} cannot change" in done.error, "--ignore" in done.err) == (2, True, True)

    def test_recomputing_what_must_run_once_is_one_error_line(self, run: Call, annotated: Path) -> None:
        done = run(annotated, *self.GREEDY, "--recompute", "normed")
        assert (done.code, "'normed'" in done.error) == (2, True)

    def test_a_file_changed_after_its_export_is_code_3(self, run: Call, annotated: Path, tmp_path: Path) -> None:
        proto = onnx.load(str(annotated), load_external_data=False)
        proto.graph.node[0].metadata_props[0].value = "ghost\x1b[31m"
        (tmp_path / "edited.onnx").write_bytes(proto.SerializeToString())
        done = run(tmp_path / "edited.onnx", *self.GREEDY)
        assert (done.code, "changed after its export" in done.error, "\x1b" in done.err) == (3, True, False)

    def test_a_budget_out_of_reach_does_not_advise_a_refused_option(self, run: Call, annotated: Path) -> None:
        assert "--batch" not in run(annotated, "--budget", "1%").err

    @pytest.mark.parametrize("ignored", [(), ("--ignore-annotations",)])
    def test_verify_reads_the_file_as_the_plan_was_made(
        self, run: Call, annotated: Path, tmp_path: Path, ignored: tuple[str, ...]
    ) -> None:
        run(annotated, *self.GREEDY, *ignored, "-q", "-o", tmp_path / "p.json")
        done = run("verify", tmp_path / "p.json", annotated)
        assert (done.code, "is annotated with" in done.out) == (0, not ignored)

    def test_verify_on_a_file_without_annotations_is_code_7(self, run: Call, annotated: Path, tmp_path: Path) -> None:
        proto = onnx.load(str(annotated), load_external_data=False)
        del proto.metadata_props[:]
        (tmp_path / "bare.onnx").write_bytes(proto.SerializeToString())
        run(annotated, *self.GREEDY, "-q", "-o", tmp_path / "p.json")
        done = run("verify", tmp_path / "p.json", tmp_path / "bare.onnx")
        assert (done.code, "made with annotations" in done.error) == (7, True)

    def test_a_plan_is_shown_with_its_source(self, run: Call, annotated: Path, tmp_path: Path) -> None:
        run(annotated, *self.GREEDY, "-q", "-o", tmp_path / "p.json")
        assert self.SOURCE.search(run("show", tmp_path / "p.json").out)

    def test_the_parts_at_the_peak_add_up_and_none_is_negative(self, run: Call, tmp_path: Path) -> None:
        network = residual_network()
        works = tuple(replace(work, backward_activation_workspace_nbytes=10**6) for work in network.works)
        path = write_annotated(tmp_path / "network.onnx", replace(network, works=works))
        data = json.loads(run(path, "--budget", "100%", "--strategy", "keep-all", "--format", "json").out)
        parts = data["at_total_peak_nbytes"]
        assert (sum(parts.values()), min(parts.values()) >= 0) == (data["peak"]["total_nbytes"], True)

    def test_names_in_annotations_cannot_break_the_report(self, run: Call, tmp_path: Path) -> None:
        network = residual_network()
        hostile = [replace(op, op_type=TestErrorLines.HOSTILE) for op in network.graph.ops]
        graph = replace(network.graph, ops=tuple(hostile))
        made = replace(network, graph=graph, framework=TestErrorLines.HOSTILE, device=TestErrorLines.HOSTILE)
        done = run("show", write_annotated(tmp_path / "hostile.onnx", made), "-v")
        assert (done.code, set(done.out) & set("\x1b\r\x00\u202e\u2028")) == (0, set())


class TestOptionTexts:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("30s", 30),
            ("30", 30),
            ("2m", 120),
            ("2min", 120),
            ("500ms", 0.5),
            ("1.5 s", 1.5),
            ("1h", 3600),
            (" .5S", 0.5),
        ],
    )
    def test_times(self, text: str, seconds: float) -> None:
        assert parse_duration(text) == pytest.approx(seconds)

    @pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "1e3", "0", "0ms", "nan", "inf", "1s1s", "٣s"])
    def test_what_is_no_time(self, text: str) -> None:
        with pytest.raises(UsageError, match="--time-limit"):
            parse_duration(text)

    def test_dims_may_contain_equal_signs(self) -> None:
        assert parse_dims(("a=b=3", "seq=512")) == {"a=b": 3, "seq": 512}

    @pytest.mark.parametrize("text", ["", "=", "=3", "a=", "a=-1", "a=1.5", "a=٣", "a=1e3", "a=" + "9" * 30])
    def test_what_is_no_dim(self, text: str) -> None:
        with pytest.raises(UsageError, match="--dim"):
            parse_dims((text,))

    def test_shapes(self) -> None:
        assert parse_inputs(("a/b:0=64x3x224x224", "c=8,16", "d=7")) == {
            "a/b:0": (64, 3, 224, 224),
            "c": (8, 16),
            "d": (7,),
        }

    @pytest.mark.parametrize("text", ["x", "x=", "x=3x", "x=x3", "x=3xx4", "x=-3", "x=0", "x=3x0", "x=(3,4)"])
    def test_what_is_no_shape(self, text: str) -> None:
        with pytest.raises(UsageError, match="--shape"):
            parse_inputs((text,))

    @pytest.mark.parametrize("read", [lambda t: parse_dims((t,)), lambda t: parse_inputs((t,)), parse_duration])
    @given(text=st.text(max_size=30))
    def test_any_text_is_read_or_refused(self, read: Callable[[str], Any], text: str) -> None:
        with contextlib.suppress(UsageError):
            assert read(text)

    def test_every_option_of_every_command_has_a_help_text(self) -> None:
        silent = [
            (name, parameter.name)
            for name, command in cli.commands.items()
            for parameter in command.params
            if isinstance(parameter, click.Option) and not parameter.help
        ]
        assert silent == []


class TestResNet50:
    def test_the_main_job(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        code = main(
            [str(RESNET50), "--batch", "64", "--budget", "60%", "-o", str(tmp_path / "p.json"), "--format", "json"]
        )
        data = json.loads(capsys.readouterr().out)
        assert (
            code,
            data["peak"]["activation_nbytes"] <= data["budget"]["nbytes"],
            data["time"]["overhead"] < 0.06,
        ) == (
            0,
            True,
            True,
        )

    def test_it_verifies_against_the_model(self, run: Call, tmp_path: Path) -> None:
        run(RESNET50, "--batch", "64", "--budget", "60%", "--strategy", "greedy", "-o", tmp_path / "p.json")
        assert run("verify", tmp_path / "p.json", RESNET50).code == 0
