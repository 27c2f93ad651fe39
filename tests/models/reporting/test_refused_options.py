"""Command lines that cannot be followed are refused in one line, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from models.architectures.__main__ import main as architectures
from models.benchmark.__main__ import main as benchmark
from models.fidelity.__main__ import main as fidelity
from models.plan_benchmark.__main__ import main as plan_benchmark
from models.published_files.__main__ import main as published_files
from models.training.deep_resnet import main as deep_resnet
from models.training.executor_benchmark import main as executor_benchmark
from models.training.train_vgg16 import main as train_vgg16
from tests.cli.refused_lines import refused

NO_COUNT = "is no whole number from 1 on"
A_FILE = "is a file, not a folder; name another place"
REFUSED: list[tuple[Callable[..., object], str, str]] = [
    (architectures, "foo", "no network is called 'foo'; choose from bert, "),
    (benchmark, "--device cuda:9", "--device: invalid choice: 'cuda:9' (choose from"),
    (benchmark, "--parts {}", A_FILE),
    (deep_resnet, "--memory much", "--memory: budget 'much' is not a size"),
    (deep_resnet, "--memory 50%", "--memory '50%' is no size; write for example 16GB"),
    (deep_resnet, "--blocks x", f"--blocks: 'x' {NO_COUNT}"),
    (executor_benchmark, "--rounds 0", f"--rounds: '0' {NO_COUNT}"),
    (fidelity, "cap -o {}/x.json", A_FILE),
    (fidelity, "step foo", "no network is called 'foo'; choose from alexnet, "),
    (plan_benchmark, "--jobs 0", f"--jobs: '0' {NO_COUNT}"),
    (published_files, "foo", "no file is called 'foo'; choose from "),
    (train_vgg16, "--rate -1", "--rate: '-1' is no number above 0"),
    (train_vgg16, "--size 8", "--size 8: vgg16 takes images of 32 pixels a side or more"),
    (train_vgg16, "-o {}/x.json", A_FILE),
    (train_vgg16, "-o .", "is a folder; name a file in it"),
    (train_vgg16, "-o x.md", "a .md is written next to the file; name it .json"),
]


@pytest.mark.parametrize(
    ("main", "given", "said"), REFUSED, ids=[f"{main.__module__}: {given}" for main, given, _ in REFUSED]
)
def test_a_value_that_makes_no_sense_is_refused_in_one_line(
    main: Callable[..., object],
    given: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, line = refused(main, given.split(), tmp_path, capsys)
    assert (code, said in line) == (2, True)
