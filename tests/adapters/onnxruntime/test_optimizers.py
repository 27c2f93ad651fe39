"""The optimizers: torch's numbers, and which of their own may change while one trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ogc_plan.adapters.onnxruntime import SGD, AdamW, Trainer
from ogc_plan.adapters.onnxruntime.optimizers import optimizer_graph
from ogc_plan.adapters.onnxruntime.session import CPU, open_session
from ogc_plan.adapters.pytorch import from_onnx
from ogc_plan.planner.errors import UsageError

from tests.adapters.onnxruntime.test_trainer import batches
from tests.adapters.onnxruntime.test_trainer import step as step

pytestmark = pytest.mark.values


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (SGD(0.1, 0.9, 0.01), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)),
        (AdamW(0.01), lambda p: torch.optim.AdamW(p, 0.01)),
    ],
    ids=["sgd", "momentum", "adamw"],
)
def test_losses_are_those_of_torchs_optimizer(mine: Any, theirs: Callable[[Any], Any], step: Path) -> None:
    module, trainer = from_onnx(step.with_name("model.onnx"), batch=4), Trainer(step, mine)
    optimizer = theirs(module.parameters())
    for feed in batches(8):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(feed["x"])), torch.from_numpy(feed["target"]))
        loss.backward()
        optimizer.step()
        assert trainer.step(feed) == pytest.approx(loss.item(), rel=1e-5)


def test_decay_leaves_an_infinite_weight_infinite() -> None:
    """A mask that is added to scores is one, where it is stored among the weights."""
    update = optimizer_graph(AdamW(), [("p", "g", (1,), "float32")])
    session = open_session(update, "update", CPU, {}, 1)
    feed = {entry.name: np.full(entry.shape, 0 if entry.shape else 0.5, np.float32) for entry in session.get_inputs()}
    assert session.run(["new p"], {**feed, "p": np.array([-np.inf], np.float32)})[0] == -np.inf


@pytest.mark.parametrize(
    "change", [{"momentum": 0.5}, {"weight_decay": 0.1}, {"lr": 0.5, "momentum": 0.0}], ids=["one", "other", "both"]
)
def test_an_optimizer_that_differs_in_more_than_its_rate_is_refused(change: dict[str, float], step: Path) -> None:
    trainer = Trainer(step, SGD(0.1, 0.9))
    with pytest.raises(UsageError, match="in more than lr"):
        trainer.optimizer = replace(trainer.optimizer, **change)


def test_an_optimizer_of_another_kind_is_refused(step: Path) -> None:
    trainer = Trainer(step, SGD(0.1))
    with pytest.raises(UsageError, match="in more than lr"):
        trainer.optimizer = AdamW(0.1)


def test_another_rate_is_that_of_the_next_step(step: Path) -> None:
    trainer = Trainer(step, SGD(0.1))
    trainer.optimizer = replace(trainer.optimizer, lr=0.0)
    before = trainer.parameters
    trainer.step(batches(1)[0])
    assert all(np.array_equal(before[name], array) for name, array in trainer.parameters.items())


def test_numbers_of_numpy_are_saved(step: Path, tmp_path: Path) -> None:
    number = np.float32(0.9)
    Trainer(step, SGD(number, number)).save(tmp_path / "c")  # type: ignore[arg-type]
    trainer = Trainer(step, SGD(0.1, float(number)))
    trainer.load(tmp_path / "c")
    assert trainer.steps_done == 0
