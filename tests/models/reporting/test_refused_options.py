"""Command lines that cannot be followed are refused in one line, before anything runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from models.architectures.__main__ import main as architectures
from models.benchmark.__main__ import main as benchmark
from models.benchmark.network import device
from models.fidelity.__main__ import main as fidelity
from models.plan_benchmark.__main__ import main as plan_benchmark
from models.published_files.__main__ import main as published_files
from models.reporting.option_values import counts
from models.training.deep_resnet import main as deep_resnet
from models.training.executor_benchmark import main as executor_benchmark
from models.training.train_vgg16 import main as train_vgg16
from tests.cli.refused_lines import refused

NO_COUNT = "is no whole number from 1 on"
NO_GPU = "'cuda:0': torch finds no GPU; write fake, cpu"
A_FILE = "is a file, not a folder; name another place"
REFUSED: list[tuple[Callable[..., object], str, str]] = [
    (architectures, "foo", "no network is called 'foo'; choose from bert, "),
    (benchmark, "--device cuda:0", f"--device: {NO_GPU}"),
    (benchmark, "--device banana", "--device: 'banana' is no device; write fake, cpu"),
    (benchmark, "--steps 1", "--steps 1 leaves none to time after --warm-up 30; write --steps 31 or more"),
    (benchmark, "--warm-up -1", "--warm-up: '-1' is no whole number from 0 on"),
    (benchmark, "--effort foo", "--effort: invalid choice: 'foo'"),
    (benchmark, "--parts {}", A_FILE),
    (deep_resnet, "--memory much", "--memory: budget 'much' is not a size"),
    (deep_resnet, "--memory 50%", "--memory '50%' is no size; write for example 16GB"),
    (deep_resnet, "--blocks x", f"--blocks: 'x' {NO_COUNT}"),
    (deep_resnet, "--blocks 8..2", "--blocks: '8..2' ends before it begins; write for example 1..200"),
    (executor_benchmark, "--rounds 0", f"--rounds: '0' {NO_COUNT}"),
    (fidelity, "cap -o {}/x.json", A_FILE),
    (fidelity, "step foo", "no network is called 'foo'; choose from alexnet, "),
    (plan_benchmark, "--jobs 0", f"--jobs: '0' {NO_COUNT}"),
    (published_files, "foo", "no file is called 'foo'; choose from "),
    (train_vgg16, "--rate -1", "--rate: '-1' is no number above 0"),
    (train_vgg16, "--seed -1", "--seed: '-1' is no whole number from 0 to 4294967295"),
    (train_vgg16, "--size 8", "--size 8: vgg16 takes images of 32 pixels a side or more"),
    (train_vgg16, "--budget much", "--budget: budget 'much' is not a size"),
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, line = refused(main, given.split(), tmp_path, capsys)
    assert (code, said in line) == (2, True)


@pytest.mark.parametrize(("given", "said"), [("cuda:1", "torch finds 1 GPUs"), ("cuda:0", None), ("cuda", None)])
def test_a_gpu_that_is_not_there_is_refused(given: str, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with nullcontext() if said is None else pytest.raises(argparse.ArgumentTypeError, match=said):
        assert device(given) == given


@pytest.mark.parametrize(
    ("text", "numbers"), [("1..200", (1, 2, 4, 8, 16, 32, 64, 128, 200)), ("3..3,5", (3, 5)), ("2..8", (2, 4, 8))]
)
def test_a_range_is_its_ends_and_the_doubles_between(text: str, numbers: tuple[int, ...]) -> None:
    assert counts(text) == numbers
