"""The tutorials' training, at a size of seconds: curves equal to the bit, learning that is real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models.networks.cifar_resnet import CifarResNet
from models.networks.vgg import VGG
from models.training import run as training
from models.training.images import generated
from models.training.recipe import Recipe, Way, trainable
from models.training.run import run
from models.training.train_resnet110 import RESNET110
from models.training.train_vgg16 import VGG16, parts, started
from models.training.vgg16_memory import Held, steps_held


def small_vgg(classes: int) -> VGG:
    network = started(VGG((6, 1, 1, 1, 1), classes, widths=(8, 8, 16, 16, 16), hidden=32))
    for layer in network.classifier:
        if isinstance(layer, nn.Linear):  # so narrow a head needs larger weights than that of VGG16
            nn.init.kaiming_normal_(layer.weight)
    return network


SMALL_VGG = replace(
    VGG16, build=small_vgg, batch=16, size=32, epochs=2, images_per_epoch=128, learning_rate=0.03, budget="70%"
)
SMALL_RESNET = replace(
    RESNET110, build=lambda classes: CifarResNet(14, classes), batch=16, epochs=2, images_per_epoch=128, budget="50%"
)
RECIPES = {"vgg16": SMALL_VGG, "resnet110": SMALL_RESNET}


def trained(recipe: Recipe, folder: Path, *given: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the results of a run whose results are in ``folder``."""
    output = folder / "results.json"
    code = run(recipe, "", [*given, "-o", str(output)])
    return code, json.loads(output.read_text())


Whole = tuple[Recipe, Path, int, dict[str, Any]]


@pytest.fixture(scope="module", params=RECIPES)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A recipe trained every way, with the folder it left, its exit code and its results."""
    recipe, folder = RECIPES[request.param], tmp_path_factory.mktemp("runs")
    return recipe, folder, *trained(recipe, folder)


def test_every_way_of_training_is_plain_training_in_every_bit(whole: Whole) -> None:
    recipe, _, code, results = whole
    assert (code, results["unequal_to_plain"]) == (0, {way: [] for way in recipe.ways[1:]})


def test_the_loss_of_each_step_falls_and_held_out_images_are_classified_far_better_than_by_chance(whole: Whole) -> None:
    recipe, epochs = whole[0], whole[3]["runs"]["planned"]["epochs"]
    assert [len(epoch["losses"]) for epoch in epochs] == [recipe.images_per_epoch // recipe.batch] * recipe.epochs
    assert sum(epochs[-1]["losses"]) < 0.9 * sum(epochs[0]["losses"])
    assert epochs[-1]["accuracy"] > 1.6 / recipe.classes


def test_planned_steps_stay_within_the_budget_and_hold_less_than_plain_ones(whole: Whole) -> None:
    plain, planned = (whole[3]["runs"][way]["epochs"] for way in ("plain", "planned"))
    assert max(epoch["activation_nbytes"] for epoch in planned) <= whole[3]["budget_nbytes"]
    assert planned[-1]["total_nbytes"] < plain[-1]["total_nbytes"]


def test_the_report_says_that_the_tutorials_images_are_not_included(whole: Whole) -> None:
    assert "data set is not included" in (whole[1] / "results.md").read_text()


def test_other_bits_are_seen_and_end_the_run_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(recipe: Recipe, way: Way, *given: Any, **named: Any) -> nn.Module:
        module = trainable(recipe, way, *given, **named)
        with torch.no_grad():
            module.network.classifier[6].bias[0] += 1e-7 * (way == "planned")
        return module

    monkeypatch.setattr(training, "trainable", off)
    code, results = trained(SMALL_VGG, tmp_path, "--epochs", "1", "--images-per-epoch", "16")
    assert (code, "parameters" in results["unequal_to_plain"]["planned"]) == (1, True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"batch": 64, "images_per_epoch": 32}, "32 images do not fill one batch of 64"), ({"budget": "1%"}, "floor")],
)
def test_what_cannot_be_trained_is_refused_in_one_line(
    changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(replace(SMALL_VGG, **{"epochs": 1, "images_per_epoch": 16, **changes}), "", [])
    lines = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert (code > 1, len(lines), said in lines[0]) == (True, 1, True)


def test_an_interrupted_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(classes: int) -> nn.Module:
        raise KeyboardInterrupt

    code = run(replace(SMALL_VGG, build=interrupted, images_per_epoch=16), "", [])
    assert (code, "interrupted; nothing was kept" in capsys.readouterr().err) == (130, True)


def test_generated_images_are_those_of_the_seed() -> None:
    first, again, other = (generated(2, 4, 4, 32, seed).train.draw(3) for seed in (0, 0, 1))
    assert (torch.equal(first, again), torch.equal(first, other)) == (True, False)


def test_held_out_images_are_not_trained_on() -> None:
    images = generated(2, 8, 8, 32, 0)
    pairs = [(a, b) for a in range(8) for b in range(8)]
    assert not any(torch.equal(images.train.draw(a), images.held_out.draw(b)) for a, b in pairs)


@pytest.fixture(scope="module")
def held() -> dict[str, Held]:
    """One step of VGG16 at the tutorial's own size, by name."""
    return {row.way: row for row in steps_held(VGG16, parts, ("60%",))}


def test_checkpoint_sequential_as_written_saves_nothing(held: dict[str, Held]) -> None:
    plain, written = held["plain"], held["checkpoint_sequential, 2 segments, as written"]
    assert (written.total_nbytes, written.flops > 1.3 * plain.flops) == (plain.total_nbytes, True)


def test_reentrant_checkpointing_does_not_train_the_trunk(held: dict[str, Held]) -> None:
    trunk = held["plain"].parameters_with_gradient - held["the same, reentrant"].parameters_with_gradient
    assert trunk == 14_714_688


def test_the_plan_holds_less_at_the_tutorials_size_for_less_work(held: dict[str, Held]) -> None:
    planned, written = held["planned, budget 60%"], held["checkpoint_sequential, 2 segments, as written"]
    assert (planned.total_nbytes < 0.75 * written.total_nbytes, planned.flops < written.flops) == (True, True)
