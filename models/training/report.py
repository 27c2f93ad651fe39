"""The report of a comparison of ways to train: memory, time, curves, and what is equal in every bit."""

from __future__ import annotations

from collections.abc import Mapping

from ogc_plan.planner.plan_file.record import Plan

from models.reporting.result_table import megabytes, table
from models.training.images import Images
from models.training.loop import Course, Run
from models.training.recipe import Recipe, Way


def unequal(runs: Mapping[Way, Run]) -> dict[str, list[str]]:
    """What each way left behind that plain training did not, by the name of the way; empty without plain."""
    plain = runs.get("plain")
    if plain is None:
        return {}
    found: dict[str, list[str]] = {}
    for way, run in runs.items():
        if way == "plain":
            continue
        curves = {
            "losses": [epoch.losses for epoch in run.epochs] == [epoch.losses for epoch in plain.epochs],
            "accuracy": [epoch.accuracy for epoch in run.epochs] == [epoch.accuracy for epoch in plain.epochs],
        }
        same = curves | {name: digest == plain.digests[name] for name, digest in run.digests.items()}
        found[way] = [name for name, equal in same.items() if not equal]
    return found


def page(recipe: Recipe, runs: Mapping[Way, Run], plan: Plan | None, images: Images, course: Course, size: int) -> str:
    """Everything as Markdown."""
    where = (
        f"{recipe.name}, batch {course.batch}, images {size}x{size}, {course.epochs} epochs of "
        f"{course.steps(images.train)} steps, {images.source}; SGD of rate {recipe.learning_rate:g}, momentum "
        f"{recipe.momentum:g}, weight decay {recipe.weight_decay:g}. The tutorial's own data set is not included: "
        f"train on a folder of it with --images DIR. {recipe.published}"
    )
    parts = [where, _ways(runs, images.classes), _curves(runs, course)]
    if plan is not None:
        bound = "" if plan.budget.nbytes is None else f", {megabytes(plan.budget.nbytes)} MB with kernels' workspace"
        parts.append(
            f"Plan: budget {plan.budget.text}{bound}, {len(plan.recomputed)} ops recomputed, "
            f"{plan.time.overhead:.1%} more time predicted."
        )
    verdict = _verdict(runs)
    return "\n\n".join([*parts, verdict] if verdict else parts)


def _ways(runs: Mapping[Way, Run], classes: int) -> str:
    """One line a way: the greatest peaks of any epoch, seconds, and where training ended."""
    differing = unequal(runs)
    on_cuda = any(epoch.reserved_nbytes is not None for run in runs.values() for epoch in run.epochs)
    header = ["way", "activations MB", "everything MB", *(["reserved MB"] if on_cuda else [])]
    header += ["s per epoch", "loss, first and last epoch", f"held-out accuracy (chance {1 / classes:.0%})"]
    rows = []
    for way, run in runs.items():
        epochs = run.epochs
        activations = [epoch.activation_nbytes for epoch in epochs if epoch.activation_nbytes is not None]
        reserved = [epoch.reserved_nbytes for epoch in epochs if epoch.reserved_nbytes is not None]
        row = [way, megabytes(max(activations)) if activations else "-"]
        row.append(megabytes(max(epoch.total_nbytes for epoch in epochs)))
        row += [megabytes(max(reserved)) if reserved else "-"] if on_cuda else []
        row += [f"{sum(epoch.seconds for epoch in epochs) / len(epochs):.1f}"]
        row += [f"{epochs[0].loss:.4f}, {epochs[-1].loss:.4f}", f"{epochs[-1].accuracy:.1%}"]
        if differing:
            row.append("-" if way == "plain" else ", ".join(f"not {part}" for part in differing[way]) or "all")
        rows.append(row)
    lines = table([*header, *(["bits equal to plain"] if differing else [])], rows)
    counted = "the CUDA allocator's" if on_cuda else "counted tensor by tensor, without what kernels take and give back"
    return (
        f"{lines}\n\nPeaks of the first step of an epoch, {counted}. Everything: parameters, momentum, buffers, "
        "images, gradients, activations; activations are all that a step makes but finished parameter gradients. "
        "Seconds are of the clock, one way after the other: what else the machine does shows in them."
    )


def _curves(runs: Mapping[Way, Run], course: Course) -> str:
    """The mean loss and the accuracy after each epoch, a pair of columns for each way."""
    header = ["epoch", *(f"{way}: loss, accuracy" for way in runs)]
    rows = [
        [
            str(number + 1),
            *(f"{run.epochs[number].loss:.6f}, {run.epochs[number].accuracy:.2%}" for run in runs.values()),
        ]
        for number in range(course.epochs)
    ]
    return table(header, rows)


def _verdict(runs: Mapping[Way, Run]) -> str:
    differing = unequal(runs)
    steps = sum(len(epoch.losses) for epoch in next(iter(runs.values())).epochs)
    said = []
    for way, parts in differing.items():
        if parts:
            said.append(f"{way} is NOT what plain training is: {', '.join(parts)} differ.")
        else:
            said.append(
                f"{way} and plain training are equal in every bit: the loss of each of {steps} steps, the accuracy "
                "after each epoch, and the final parameters, buffers, momentum and generator states."
            )
    return "\n".join(said)
