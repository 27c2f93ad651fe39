"""The command line of a tutorial's training: every way of it from one start, compared bit by bit, and a report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from models.meters.repeatable import repeatable  # first: it sets what torch reads when it loads

# isort: split
import torch
from ogc_plan.adapters.pytorch import plan_of
from ogc_plan.planner.errors import OgcPlanError, UsageError
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.units import parse_budget
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from models.reporting.command_line import INTERRUPTED, add_output, command_parser
from models.reporting.option_values import count, rate, seed
from models.reporting.result_record import publish
from models.training.images import HELD_OUT_SHARE, Images, generated, in_folder
from models.training.loop import Course, Run, train
from models.training.recipe import Recipe, Way, trainable
from models.training.report import page, unequal

LEAST_HELD_OUT = 64
Section = Callable[[argparse.Namespace, Console], tuple[str, Sequence[Any]]]
"""Makes a part of the report that needs no training, and the dataclasses of its rows."""


def parser_of(recipe: Recipe, described: str) -> argparse.ArgumentParser:
    """The options that both tutorials have."""
    parser = command_parser(recipe.script, described)
    parser.add_argument("--only", choices=recipe.ways, help="train one way only (default: all, and compare)")
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder with one sub-folder of images per class")
    parser.add_argument("--batch", type=count, default=recipe.batch, help="images a step (default %(default)s)")
    parser.add_argument("--size", type=count, default=recipe.size, help="side in pixels (default %(default)s)")
    parser.add_argument("--epochs", type=count, default=recipe.epochs, help="default %(default)s")
    parser.add_argument(
        "--images-per-epoch", type=count, help=f"default {recipe.images_per_epoch}, of a folder all of them"
    )
    parser.add_argument("--budget", default=recipe.budget, help="of activations, 60%%, 2GB, min (default %(default)s)")
    parser.add_argument(
        "--rate", type=rate, default=recipe.learning_rate, help="of stochastic gradient descent (default %(default)s)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--seed", type=seed, default=0, help="of weights, images and dropout (default %(default)s)")
    add_output(parser)
    return parser


def images_of(recipe: Recipe, options: argparse.Namespace) -> Images:
    """What the command line asks to train on. Raises UsageError."""
    if options.images is not None:
        return in_folder(options.images, options.size)
    count = options.images_per_epoch or recipe.images_per_epoch
    held_out = max(LEAST_HELD_OUT, count // HELD_OUT_SHARE)
    return generated(recipe.classes, count, held_out, options.size, options.seed)


def run(
    recipe: Recipe, described: str, arguments: Sequence[str] | None = None, *, section: Section | None = None
) -> int:
    """Train as the command line asks, print the report and write results.

    The exit code is 1 where a way of training leaves other bits than plain training or a step is above its budget,
    2 where the command line cannot be followed, the exit code of the error where there is no plan.
    """
    parser = parser_of(recipe, described)
    if section is not None:
        parser.add_argument("--memory", action="store_true", help="print the table of memory alone, train nothing")
    options = parser.parse_args(arguments)
    _checked(parser, recipe, options)
    recipe = replace(recipe, learning_rate=options.rate)
    console = Console(stderr=True)
    try:
        if section is not None and options.memory:
            print(section(options, console)[0])
            return 0
        return _trained(recipe, options, arguments, console, section)
    except OgcPlanError as error:
        print(f"{recipe.script}: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{recipe.script}: interrupted; nothing was kept", file=sys.stderr)
        return INTERRUPTED


def _checked(parser: argparse.ArgumentParser, recipe: Recipe, options: argparse.Namespace) -> None:
    """End with a line about options that cannot be followed, or not together, before anything is trained."""
    if options.size < recipe.least_size:
        parser.error(f"--size {options.size}: {recipe.name} takes images of {recipe.least_size} pixels a side or more")
    try:
        parse_budget(options.budget)
    except OgcPlanError as error:
        parser.error(f"--budget: {error}")


def _trained(
    recipe: Recipe,
    options: argparse.Namespace,
    arguments: Sequence[str] | None,
    console: Console,
    section: Section | None,
) -> int:
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU", remedy="train with --device cpu")
    repeatable(device)
    images = images_of(recipe, options)
    per_epoch = options.images_per_epoch or len(images.train)
    course = Course(options.epochs, options.batch, per_epoch, options.seed, device)
    if not course.steps(images.train):
        raise UsageError(
            f"{min(per_epoch, len(images.train))} images do not fill one batch of {options.batch}",
            remedy="ask for a smaller --batch or more images",
        )
    ways = (options.only,) if options.only else recipe.ways
    runs, plan = compared(recipe, ways, images, course, options, console)
    parts = [page(recipe, runs, plan, images, course, options.size)]
    memory: Sequence[Any] = ()
    if section is not None and not options.only:
        shown, memory = section(options, console)
        parts.append(shown)
    text = "\n\n".join(parts)
    differing = unequal(runs)
    publish(
        text,
        options.output,
        script=recipe.script,
        arguments=arguments,
        device=device,
        quantity="losses, accuracy on held-out images, and peaks of one training step in bytes",
        images=images.source,
        course=asdict(course),
        size=options.size,
        budget_nbytes=None if plan is None else plan.budget.nbytes,
        predicted_overhead=None if plan is None else plan.time.overhead,
        recomputed_ops=None if plan is None else len(plan.recomputed),
        runs={way: asdict(found) for way, found in runs.items()},
        unequal_to_plain=differing,
        memory=[asdict(held) for held in memory],
    )
    return int(any(differing.values()) or _above_budget(runs, plan))


def compared(
    recipe: Recipe,
    ways: Sequence[Way],
    images: Images,
    course: Course,
    options: argparse.Namespace,
    console: Console,
) -> tuple[dict[Way, Run], Plan | None]:
    """Train each of ``ways`` from the same weights on the same batches; the plan where one of them is planned."""
    example = images.train.batch(range(course.batch), course.device)
    runs: dict[Way, Run] = {}
    plan: Plan | None = None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        total = course.epochs * course.steps(images.train)
        for way in ways:
            line = progress.add_task(f"{way}: planning" if way == "planned" else way, total=total)
            module = trainable(recipe, way, images.classes, example, budget=options.budget, seed=course.seed)
            plan = plan_of(module) if way == "planned" else plan

            def tell(done: int, how: str, way: Way = way, line: object = line) -> None:
                progress.update(line, completed=done, description=f"{way}: {how}")  # type: ignore[arg-type]

            runs[way] = train(module, optimizer_of(recipe, module), images, course, tell)
    return runs, plan


def optimizer_of(recipe: Recipe, module: nn.Module) -> torch.optim.Optimizer:
    """The tutorial's optimizer of the module's parameters."""
    return torch.optim.SGD(
        module.parameters(), recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )


def _above_budget(runs: dict[Way, Run], plan: Plan | None) -> bool:
    if plan is None or plan.budget.nbytes is None:
        return False
    peaks = [epoch.activation_nbytes for epoch in runs["planned"].epochs]
    return any(peak is not None and peak > plan.budget.nbytes for peak in peaks)
