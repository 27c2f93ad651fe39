"""Faults of the world around: killed and competing writers, full disks, odd environments, clocks that jump."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from shutil import which
from types import SimpleNamespace

import onnx
import pytest
from ogc_plan.cli import files
from ogc_plan.cli.files import read_model
from ogc_plan.planner.errors import StorageError
from ogc_plan.planner.model import load_model
from ogc_plan.planner.pipeline import plan
from ogc_plan.planner.plan_file.writer import dumps, write_plan

from tests.cli.calls import GREEDY, Call, process
from tests.cli.killed_writers import killed, plans, write_forever

OPENED = """
import sys
from ogc_plan.planner import load_model
load_model(sys.argv[1], batch=8)  # imports all that is needed
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
load_model(sys.argv[2], batch=8)
print(*opened, sep="\\n")
"""

READ_APART = """
import os
from ogc_plan.cli.files import read_model
read_model(sys.argv[1], batch=8)
os.path.exists("/traced")
read_model(sys.argv[2], batch=8)
os.path.exists("/traced")
os._exit(0)
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_plan(tmp_path: Path) -> None:
    assert [killed(tmp_path, seed) for seed in range(10)] == ["whole"] * 10


def test_two_writers_of_one_file_leave_one_whole_plan(tmp_path: Path) -> None:
    target, texts = tmp_path / "plan.json", [dumps(made) for made in plans()]
    writers = [get_context("fork").Process(target=write_forever, args=(target,), daemon=True) for _ in range(2)]
    for writer in writers:
        writer.start()
    while not target.exists():
        time.sleep(0.001)
    found = {target.read_text(encoding="utf-8") in texts for _ in range(200)}
    for writer in writers:
        writer.kill()
        writer.join()
    assert found == {True}


def test_a_disk_that_fills_up_leaves_the_old_plan_and_no_other_file(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "plan.json"
    target.parent.mkdir()
    target.write_text("old plan")
    least = (2_000, resource.RLIM_INFINITY)
    words = (model, "--dim", "batch=8", "--budget", "100%", "--strategy", "keep-all", "-o", target)
    process(*words[:-2])  # compiles kernels into their cache, which takes files too
    done = process(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, least))
    left = target.read_text(), os.listdir(target.parent)
    assert (done.returncode, done.stderr.count("error: cannot write"), *left) == (8, 1, "old plan", ["plan.json"])


def test_a_folder_that_takes_no_files_is_refused_even_for_root() -> None:
    with pytest.raises(StorageError, match="cannot write plan '/proc/plan"):
        write_plan(plans()[0], "/proc/plan.json")


@pytest.mark.parametrize(
    "changed",
    [
        {"HOME": "/nowhere", "XDG_CACHE_HOME": ""},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["no home", "a locale that is not UTF-8"],
)
def test_an_odd_environment_changes_no_plan(model: Path, tmp_path: Path, changed: dict[str, str]) -> None:
    odd = tmp_path / "modèle.onnx"
    odd.write_bytes(model.read_bytes())
    for name, environment in (("usual", {}), ("odd", changed)):
        words = (odd, "--dim", "batch=8", "--budget", "100%", "--strategy", "keep-all", "-q")
        done = process(*words, "-o", tmp_path / name, env={**os.environ, **environment})
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "usual").read_bytes() == (tmp_path / "odd").read_bytes()


def test_a_clock_that_jumps_ends_no_search(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter(range(10**9, 10**15, 10**6))
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    made = plan(load_model(model, dims={"batch": 64}), "70%", time_limit_s=600, effort="fast")
    assert not made.certificate.stopped_early


@pytest.mark.parametrize("location", ["../weights.bin", "weights.bin"])
def test_no_file_but_the_model_is_opened(model: Path, tmp_path: Path, location: str) -> None:
    """The weights are in a pipe that nobody fills: whoever opened it would wait forever, in C++ code too."""
    external = tmp_path / "folder" / "model.onnx"
    external.parent.mkdir()
    proto = onnx.load(model)
    for tensor in proto.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = tensor.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    external.write_bytes(proto.SerializeToString())
    os.mkfifo(external.parent / location)
    words = [sys.executable, "-c", OPENED, str(model), str(external)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == [str(external)]


@pytest.mark.skipif(which("strace") is None, reason="system calls are traced with strace")
def test_the_system_sees_no_other_file_opened(model: Path, tmp_path: Path) -> None:
    """Every system call that takes a path, of all threads and processes, from the moment that /traced is asked for."""
    script = OPENED.partition("opened = []")[0] + READ_APART
    split, log = tmp_path / "split.onnx", tmp_path / "log"
    onnx.save(onnx.load(model), split, save_as_external_data=True, size_threshold=0, location="weights")
    tracer = ["strace", "-f", "-qq", "-e", "trace=%file", "-e", "signal=none", "-o", str(log)]
    subprocess.run([*tracer, sys.executable, "-c", script, str(model), str(split)], timeout=120, check=True)
    traced = log.read_text(encoding="utf-8").partition('"/traced"')[2]
    opened = set(re.findall(r'open(?:at|at2)?\((?:AT_FDCWD, )?"([^"]+)"', traced))
    opened = {path for path in opened if not path.startswith((sys.prefix, sys.base_prefix))}  # modules
    assert opened == {str(split), "/proc/self/statm", os.devnull}


def test_a_model_from_another_process_is_the_same(model: Path) -> None:
    assert read_model(str(model), batch=8) == load_model(str(model), batch=8)


def test_the_time_limit_holds_for_reading(model: Path, tmp_path: Path) -> None:
    words = (model, "--dim", "batch=8", "--budget", "100%", "-o", tmp_path / "plan.json", "--time-limit", "1ms")
    done = process(*words)
    said = "longer than the time limit of 0.001 s" in done.stderr.splitlines()[0]
    assert (done.returncode, said, os.listdir(tmp_path)) == (6, True, [])


def test_a_file_without_end_on_standard_input_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_NBYTES", 2**21)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read=lambda size: bytes(size))))
    with files.readable("-") as path:
        assert os.path.getsize(path) == 3 * 2**20


def test_weights_beside_the_model_are_no_target(run: Call, model: Path, tmp_path: Path) -> None:
    split = tmp_path / "split.onnx"
    onnx.save(onnx.load(model), split, save_as_external_data=True, size_threshold=0, location="weights")
    before = (tmp_path / "weights").read_bytes()
    made = run(split, *GREEDY, "-o", tmp_path / "weights")
    refused = made.code, "would overwrite weights of the model" in made.error
    assert (*refused, (tmp_path / "weights").read_bytes() == before) == (2, True, True)
