"""Ctrl-C: the first ends a search and writes its plan, the second ends the program; elsewhere nothing changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ogc_plan.cli.main import main
from ogc_plan.cli.options import ModelOptions
from ogc_plan.planner import frontier, load_model, pipeline
from ogc_plan.planner.display.interrupt import stoppable
from ogc_plan.planner.errors import SearchStoppedError
from ogc_plan.planner.limits import Limits
from ogc_plan.planner.plan_file.record import Plan

from models.light import light_path
from tests.cli.calls import Call, raising
from tests.files.onnx_files import write_perceptron

SEARCH = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from ogc_plan.planner.display import terminal
from ogc_plan.cli.main import main
from ogc_plan.cli.options import ModelOptions
from ogc_plan.planner.limits import Limits

def limits(self, store_all_ns, prefix="", stop=None, keeps=""):
    waits = [stop] if sys.argv[1] == "once" else [stop, lambda: False]

    def show(doing, best_ns, bound_ns):
        while best_ns is not None and waits:
            print("waiting", file=sys.stderr, flush=True)
            ends = waits.pop(0)
            while not ends():
                time.sleep(0.01)

    return Limits(progress=show, stop=stop)

terminal.Activity.limits = limits
sys.exit(main(sys.argv[2:]))
"""
"""The command line whose search waits for a Ctrl-C as soon as it has a plan, or then for a second one."""


class Interrupted:
    """A run of `SEARCH` that got ``presses`` times Ctrl-C, each while the search was waiting for it."""

    def __init__(self, folder: Path, presses: int) -> None:
        self.target = folder / "plan.json"
        words = [str(light_path("squeezenet")), "--batch", "8", "--budget", "60%", "--effort", "high"]
        command = [sys.executable, "-c", SEARCH, "once" if presses == 1 else "twice", *words, "-o", str(self.target)]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert running.stderr is not None
        for _ in range(presses):
            assert running.stderr.readline() == "waiting\n"
            running.send_signal(signal.SIGINT)
        self.out, self.err = running.communicate(timeout=300)
        self.code = running.returncode


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    return Interrupted(tmp_path_factory.mktemp("once"), 1)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    return Interrupted(tmp_path_factory.mktemp("twice"), 2)


def test_the_first_ctrl_c_is_success_where_a_plan_was_found(once: Interrupted) -> None:
    assert (once.code, once.err) == (0, "")


def test_the_plan_so_far_is_written_and_verifies(once: Interrupted) -> None:
    assert main(["verify", str(once.target), str(light_path("squeezenet"))]) == 0


def test_the_plan_says_that_its_search_was_stopped_on_request(once: Interrupted) -> None:
    certificate = json.loads(once.target.read_text())["certificate"]
    assert (certificate["stopped_early"], certificate["notes"]) == (True, ["effort high", "stopped on request"])


def test_the_report_says_so_too(once: Interrupted) -> None:
    assert "Ctrl-C ended it early: another run may find a better plan" in " ".join(once.out.split())


def test_the_second_ctrl_c_ends_the_program_without_a_plan(twice: Interrupted) -> None:
    assert (twice.code, twice.err.splitlines()[0], twice.target.exists()) == (
        130,
        "error: interrupted, no plan was written",
        False,
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("fit", "{}", "--memory", "1GB"), ["error: interrupted, no plan was written", "help: pass --time-limit 30s"]),
        (("show", "{}"), ["error: interrupted"]),
    ],
)
def test_only_a_command_that_takes_a_time_limit_offers_one(
    run: Call, model: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: list[str]
) -> None:
    monkeypatch.setattr(ModelOptions, "load", raising(KeyboardInterrupt()))
    lines = run(*(word.format(model) for word in words)).err.splitlines()
    assert [line[: len(start)] for line, start in zip(lines, told, strict=True)] == told


def test_a_stopped_search_without_a_plan_is_code_130_and_no_word_on_feasibility(tmp_path: Path) -> None:
    model = load_model(write_perceptron(tmp_path / "model.onnx"), dims={"batch": 4096})
    floor = model.problem(pipeline.Scope.ACTIVATIONS).floor_nbytes
    with pytest.raises(SearchStoppedError, match="before the search was stopped") as raised:
        pipeline.plan(model, f"{floor}B", scope=pipeline.Scope.ACTIVATIONS, limits=Limits(stop=lambda: True))
    assert raised.value.exit_code == 130


def test_after_ctrl_c_a_frontier_still_has_a_plan_for_every_mild_budget() -> None:
    model = load_model(light_path("squeezenet"), batch=8)
    plans = frontier(model, ("90%", "70%"), limits=Limits(stop=lambda: True))
    assert [isinstance(plan, Plan) and plan.certificate.stopped_early for plan in plans] == [True, True]


@pytest.mark.usefixtures("usual_interrupts")
def test_the_usual_handler_is_back_after_the_search() -> None:
    with stoppable():
        taken = signal.getsignal(signal.SIGINT)
    assert taken is not signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("usual_interrupts")
def test_only_the_second_ctrl_c_raises() -> None:
    with stoppable() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        asked = stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert asked


@pytest.mark.usefixtures("usual_interrupts")
def test_an_ignored_ctrl_c_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stoppable() as stop:
        os.kill(os.getpid(), signal.SIGINT)
    assert (stop(), signal.getsignal(signal.SIGINT)) == (False, signal.SIG_IGN)
