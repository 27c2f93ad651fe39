"""What goes to which stream and to a terminal, and errors as one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.planner.display.terminal import MAX_LINE, one_line

from tests.cli.calls import GREEDY, HOSTILE, Call
from tests.cli.terminals import on_terminal


class TestErrorLines:
    @given(st.text(max_size=3000))
    def test_any_text_becomes_one_short_printable_line(self, text: str) -> None:
        line = one_line(text)
        printable = all(c.isprintable() or c.isspace() for c in line)
        assert (len(line) <= MAX_LINE, len(line.splitlines()) <= 1, printable) == (True, True, True)

    def test_names_from_a_file_cannot_break_the_line(self, run: Call, plan_file: Path) -> None:
        data = json.loads(plan_file.read_text())
        data["schedule"][0][1] = HOSTILE
        plan_file.write_text(json.dumps(data))
        done = run("verify", plan_file)
        assert (done.code, len(done.error) <= MAX_LINE + 10, "\x1b" in done.err) == (7, True, False)

    def test_names_from_a_file_cannot_break_the_report(self, run: Call, plan_file: Path) -> None:
        name = json.loads(plan_file.read_text())["ops"][0]["name"]
        plan_file.write_text(plan_file.read_text().replace(json.dumps(name), json.dumps(HOSTILE)))
        done = run("show", plan_file, "-v")
        assert (done.code, set(done.out) & set("\x1b\r\x00\u202e\u2028")) == (0, set())

    def test_a_file_name_cannot_break_the_line(self, run: Call) -> None:
        assert "\x1b" not in run("a\x1b[31m\nb.onnx", "--budget", "60%").error


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

    def test_a_model_and_a_plan_come_through_pipes(self, model: Path) -> None:
        words = [sys.executable, "-m", "ogc_plan.cli.main"]
        made = subprocess.run(
            [*words, "-", *GREEDY, "-q", "-o", "-"], input=model.read_bytes(), capture_output=True, check=True
        )
        done = subprocess.run([*words, "verify", "-"], input=made.stdout, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")

    def test_a_closed_pipe_ends_it_silently(self, model: Path) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "-m", "ogc_plan.cli.main", "show", str(model), "--dim", "batch=64", "-v"]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
        os.close(writing)
        assert (done.returncode, done.stderr) == (141, b"")

    def test_a_closed_stdout_is_code_8(self, model: Path) -> None:
        words = f"{sys.executable} -m ogc_plan.cli.main show {model} --dim batch=64 >&-"
        done = subprocess.run(["sh", "-c", words], stderr=subprocess.PIPE, text=True, check=False)
        told = "error: cannot read or write: standard output is closed"
        assert (done.returncode, done.stderr.splitlines()[0]) == (8, told)

    @pytest.mark.parametrize("words", ["- --budget 60%", "show -", "verify -"])
    def test_a_closed_stdin_is_code_8(self, words: str) -> None:
        line = f"{sys.executable} -m ogc_plan.cli.main {words} <&-"
        done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
        told = "error: cannot read from -: standard input is closed"
        assert (done.returncode, done.stderr.splitlines()[0]) == (8, told)

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


COMMAND = ("-m", "ogc_plan.cli.main")


class TestTerminal:
    COLOUR = re.compile(r"\x1b\[[0-9;]*m")

    def test_a_terminal_gets_colour_and_progress(self, model: Path) -> None:
        shown = on_terminal(*COMMAND, model, *GREEDY)
        assert (bool(self.COLOUR.search(shown)), "reading" in shown) == (True, True)

    def test_no_color_takes_the_colour_away(self, model: Path) -> None:
        assert not self.COLOUR.search(on_terminal(*COMMAND, model, *GREEDY, NO_COLOR="1"))

    def test_quiet_takes_the_progress_away(self, model: Path) -> None:
        assert on_terminal(*COMMAND, model, *GREEDY, "-q") == ""

    def test_no_colour_in_a_pipe(self, run: Call, model: Path) -> None:
        assert "\x1b" not in run(model, *GREEDY).out
