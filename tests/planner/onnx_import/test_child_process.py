"""What ends the process that reads a file is one error in the process that asked for it."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest
from ogc_plan.planner.errors import InfeasibleBudgetError, InvalidModelError, NoPlanInTimeError
from ogc_plan.planner.onnx_import import child_process
from ogc_plan.planner.onnx_import.child_process import in_child

from tests.cli.calls import raising


def ended_by(number: int) -> Callable[[], None]:
    def end() -> None:
        faulthandler.disable()
        os.kill(os.getpid(), number)

    return end


ENDS = {
    "an access beyond its memory": (ended_by(signal.SIGSEGV), InvalidModelError, r"reading m ended .* \(SIGSEGV\)"),
    "too much processor time": (ended_by(signal.SIGXCPU), NoPlanInTimeError, "took more than 600 s of processor"),
    "the system, out of memory": (ended_by(signal.SIGKILL), MemoryError, None),
    "its own limit of memory": (lambda: len(bytearray(2**32)), MemoryError, None),
    "its own end": (lambda: os._exit(0), InvalidModelError, "no answer"),
}


@pytest.mark.parametrize("what", ENDS)
def test_the_end_of_the_process_is_an_error(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "BASE_NBYTES", 2**30)
    work, kind, message = ENDS[what]
    with pytest.raises(kind, match=message):
        in_child(work, "m", 0)


def test_the_result_is_that_of_the_work() -> None:
    assert in_child(lambda: (os.getppid(), "a"), "m", 0) == (os.getpid(), "a")


@pytest.mark.parametrize(
    "error",
    [InfeasibleBudgetError("a", remedy="b", smallest_known_nbytes=3, lower_bound_nbytes=2), KeyError("k")],
)
def test_an_error_comes_back_whole_with_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        in_child(raising(error), "m", 0)
    assert (vars(raised.value), raised.value.args, "raise error" in str(raised.value.__cause__)) == (
        vars(error),
        error.args,
        True,
    )


def test_work_beyond_its_time_is_ended(tmp_path: Path) -> None:
    def work() -> None:
        time.sleep(0.5)
        (tmp_path / "still running").touch()

    with pytest.raises(NoPlanInTimeError, match=r"reading m took longer than the time limit of 0\.05 s"):
        in_child(work, "m", 0, 0.05)
    time.sleep(0.6)
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("usual_interrupts")
def test_ctrl_c_ends_the_work() -> None:
    Timer(0.1, ended_by(signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        in_child(lambda: time.sleep(60), "m", 0, 50)


def test_work_whose_process_was_killed_ends() -> None:
    """The process that waits is killed; the one that works sees it within a second or two."""
    receiver, sender = os.pipe()
    waiting = os.fork()
    if waiting == 0:
        in_child(lambda: (os.write(sender, b"working"), time.sleep(30)), "m", 0)  # type: ignore[func-returns-value]
    os.close(sender)
    os.read(receiver, 7)
    os.kill(waiting, signal.SIGKILL)
    os.waitpid(waiting, 0)
    began = time.monotonic()
    os.read(receiver, 1)  # until the last holder of the other end is gone
    assert time.monotonic() - began < 10


def test_limits_that_are_set_already_are_not_raised() -> None:
    code = (
        "import resource; from ogc_plan.planner.onnx_import.child_process import in_child; "
        "resource.setrlimit(resource.RLIMIT_CPU, (500, resource.getrlimit(resource.RLIMIT_CPU)[1])); "
        "print(in_child(lambda: resource.getrlimit(resource.RLIMIT_CPU)[0], 'm', 0))"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(told) == 500


def test_without_fork_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "get_all_start_methods", lambda: ["spawn"])
    assert in_child(os.getpid, "m", 0) == os.getpid()
