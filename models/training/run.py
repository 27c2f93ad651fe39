"""The command line of a tutorial's training: every way of it from one start, compared bit by bit, and a report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from ogc_plan.adapters.pytorch import plan_of
from ogc_plan.planner.errors import OgcPlanError, UsageError

from models.reporting.command_line import INTERRUPTED, add_output, command_parser
from models.reporting.option_values import count, rate
from models.reporting.result_record import publish
from models.training.images import generated
from models.training.loop import Course, Run, train
from models.training.recipe import Recipe, Way, trainable
from models.training.report import page, unequal

LEAST_HELD_OUT = 64
HELD_OUT_SHARE = 5
"""Beside so many images to train on one is held out."""
Section = Callable[[], tuple[str, Sequence[Any]]]
"""Makes a part of the report that needs no training, and the dataclasses of its rows."""


def tell(what: str) -> None:
    """Say how it stands."""
    print(what, file=sys.stderr, flush=True)


def run(
    recipe: Recipe, described: str, arguments: Sequence[str] | None = None, *, section: Section | None = None
) -> int:
    """Train as the command line asks, print the report and write results.

    The exit code is 1 where a way of training leaves other bits than plain training or a step is above its budget,
    2 where the command line cannot be followed, the exit code of the error where there is no plan.
    """
    parser = command_parser(recipe.script, described)
    parser.add_argument("--batch", type=count, default=recipe.batch, help="images a step (default %(default)s)")
    parser.add_argument("--size", type=count, default=recipe.size, help="side in pixels (default %(default)s)")
    parser.add_argument("--epochs", type=count, default=recipe.epochs, help="default %(default)s")
    parser.add_argument("--images-per-epoch", type=count, default=recipe.images_per_epoch, help="default %(default)s")
    parser.add_argument("--rate", type=rate, default=recipe.learning_rate, help="of SGD (default %(default)s)")
    add_output(parser)
    options = parser.parse_args(arguments)
    if options.size < recipe.least_size:
        parser.error(f"--size {options.size}: {recipe.name} takes images of {recipe.least_size} pixels a side or more")
    try:
        return _trained(replace(recipe, learning_rate=options.rate), options, arguments, section)
    except OgcPlanError as error:
        tell(f"{recipe.script}: error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        tell(f"{recipe.script}: interrupted; nothing was kept")
        return INTERRUPTED


def _trained(
    recipe: Recipe, options: argparse.Namespace, arguments: Sequence[str] | None, section: Section | None
) -> int:
    """Train each way from the same weights on the same batches, and publish."""
    course = Course(options.epochs, options.batch, options.images_per_epoch)
    if course.batch > course.images_per_epoch:
        raise UsageError(
            f"{course.images_per_epoch} images do not fill one batch of {course.batch}",
            remedy="ask for a smaller --batch or more images",
        )
    held_out = max(LEAST_HELD_OUT, course.images_per_epoch // HELD_OUT_SHARE)
    images = generated(recipe.classes, course.images_per_epoch, held_out, options.size, course.seed)
    example = images.train.batch(range(course.batch))
    runs: dict[Way, Run] = {}
    for way in recipe.ways:
        module = trainable(recipe, way, example, seed=course.seed)
        optimizer = torch.optim.SGD(
            module.parameters(), recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
        runs[way] = train(module, optimizer, images, course, lambda how, way=way: tell(f"{way}: {how}"))
    plan = plan_of(module)  # the last way is the planned one
    record: dict[str, Any] = {
        "images": images.source,
        "course": asdict(course),
        "size": options.size,
        "rate": recipe.learning_rate,
        "budget": recipe.budget,
        "budget_nbytes": plan.budget.nbytes,
        "predicted_overhead": plan.time.overhead,
        "recomputed_ops": len(plan.recomputed),
        "runs": {way: asdict(found) for way, found in runs.items()},
        "unequal_to_plain": unequal(runs),
    }
    shown, memory = section() if section is not None else ("", ())
    publish(
        f"{page(recipe, record)}\n\n{shown}".rstrip(),
        options.output,
        script=recipe.script,
        arguments=arguments,
        device="cpu",
        quantity="losses, accuracy on held-out images, and peaks of one training step in bytes",
        memory=[asdict(held) for held in memory],
        **record,
    )
    limit = plan.budget.nbytes
    above = limit is not None and any(epoch.activation_nbytes > limit for epoch in runs["planned"].epochs)
    return int(above or any(record["unequal_to_plain"].values()))
