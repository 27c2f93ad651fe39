"""The folder of compiled kernels: one for each version of the sources, removed once no run uses it any more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ogc_plan.planner.strategies.kernels.cache_folder import UNUSED_S, cache_folder, remove_unused

from tests.cli.calls import raising

OLD = time.time() - UNUSED_S - 60


def folder(place: Path, used: float) -> Path:
    """A folder of compiled kernels, last used at that time."""
    (place / "strategies").mkdir(parents=True)
    (place / "strategies" / "kernel.nbi").touch()
    os.utime(place, (used, used))
    return place


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of all versions lie; the user's cache is empty."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ogc-plan"


def test_another_versions_folder_goes_once_it_is_unused_for_long(cache: Path) -> None:
    folder(cache / "kernels-0123456789abcdef", OLD)
    own = cache_folder()
    assert [str(left) for left in cache.iterdir()] == [own]


def test_another_versions_folder_stays_while_it_is_used(cache: Path) -> None:
    other = folder(cache / "kernels-0123456789abcdef", time.time())
    cache_folder()
    assert (other / "strategies" / "kernel.nbi").exists()


def test_each_run_counts_as_a_use(cache: Path) -> None:
    own = Path(cache_folder())
    os.utime(own, (OLD, OLD))
    cache_folder()
    assert own.stat().st_mtime > OLD + UNUSED_S


def test_what_is_no_folder_of_kernels_stays(cache: Path) -> None:
    other = folder(cache / "notes", OLD)
    cache_folder()
    assert other.exists()


def test_a_removal_that_was_cut_short_is_completed(cache: Path) -> None:
    left = folder(cache / "removed-kernels-0123456789abcdef-1", OLD)
    cache_folder()
    assert not left.exists()


def test_a_folder_that_another_process_removes_meanwhile_is_no_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(cache / "kernels-0123456789abcdef", OLD)
    monkeypatch.setattr(Path, "rename", raising(FileNotFoundError()))
    remove_unused(cache / "kernels-own")
    assert [left.name for left in cache.iterdir()] == ["kernels-0123456789abcdef"]


def test_many_processes_at_once_remove_it_without_an_error(cache: Path) -> None:
    for number in range(50):
        folder(cache / f"kernels-{number}", OLD)
    home = "ogc_plan.planner.strategies.kernels.cache_folder"
    program = f"from {home} import remove_unused as r; from pathlib import Path; r(Path({str(cache / 'own')!r}))"
    running = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(3)]
    assert ([process.communicate()[1] for process in running], [*cache.iterdir()]) == ([b""] * 3, [])


def test_a_temporary_folder_does_not_outlive_its_process(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # in place of the cache folder
    program = "from ogc_plan.planner.strategies.kernels.jit import sum_of; import numpy; sum_of(numpy.ones(2, int))"
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path), "HOME": str(tmp_path / "file")}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert [left.name for left in tmp_path.iterdir()] == ["file"]
