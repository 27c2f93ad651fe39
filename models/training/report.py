"""The report of a comparison of ways to train: memory, time, losses, and what is equal in every bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.reporting.result_table import megabytes, table
from models.training.loop import Run
from models.training.recipe import Recipe, Way


def unequal(runs: Mapping[Way, Run]) -> dict[str, list[str]]:
    """What each other way left behind that plain training did not, by the name of the way."""
    plain = runs["plain"]
    found: dict[str, list[str]] = {}
    for way, run in runs.items():
        same = {
            "losses": [epoch.losses for epoch in run.epochs] == [epoch.losses for epoch in plain.epochs],
            "accuracy": [epoch.accuracy for epoch in run.epochs] == [epoch.accuracy for epoch in plain.epochs],
        } | {name: digest == plain.digests[name] for name, digest in run.digests.items()}
        found[way] = [name for name, equal in same.items() if not equal]
    return {way: parts for way, parts in found.items() if way != "plain"}


def ways(record: Mapping[str, Any]) -> str:
    """One line a way: the greatest peaks of any epoch, seconds, and where training began and ended."""
    header = ["way", "activations MB", "everything MB", "s per epoch", "loss, first and last epoch"]
    rows = []
    for way, run in record["runs"].items():
        epochs = run["epochs"]
        row = [way, *(megabytes(max(epoch[key] for epoch in epochs)) for key in ("activation_nbytes", "total_nbytes"))]
        row.append(f"{sum(epoch['seconds'] for epoch in epochs) / len(epochs):.1f}")
        row.append(", ".join(f"{sum(ends['losses']) / len(ends['losses']):.6f}" for ends in (epochs[0], epochs[-1])))
        differing = record["unequal_to_plain"].get(way)
        same = "-" if differing is None else ", ".join(f"not {part}" for part in differing) or "all"
        rows.append([*row, f"{epochs[-1]['accuracy']:.1%}", same])
    return table([*header, "held-out accuracy", "bits equal to plain"], rows)


def page(recipe: Recipe, record: Mapping[str, Any]) -> str:
    """Everything as Markdown."""
    course, size = record["course"], record["size"]
    return (
        f"{recipe.name}, batch {course['batch']}, images {size}x{size}, {course['epochs']} epochs of "
        f"{len(record['runs']['plain']['epochs'][0]['losses'])} steps, {record['images']}; SGD of rate "
        f"{record['rate']:g}, momentum {recipe.momentum:g}, weight decay {recipe.weight_decay:g}. The tutorial's own "
        f"data set is not included. {recipe.published}\n\n{ways(record)}\n\n"
        "Peaks of the first step of an epoch, counted tensor by tensor, without what kernels take and give back. "
        "Everything: parameters, momentum, buffers, images, gradients, activations; activations are all that a step "
        "makes but finished parameter gradients. Bits: the loss of each step, the accuracy after each epoch, and the "
        "final parameters, buffers, momentum and generator states. Seconds are of the clock, one way after the other: "
        "what else the machine does shows in them.\n\n"
        f"Plan: budget {record['budget']}, {record['recomputed_ops']} ops recomputed, "
        f"{record['predicted_overhead']:.1%} more time predicted."
    )
