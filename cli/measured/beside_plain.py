"""`ogc-plan verify --run`: a step by the plan beside a plain one, and the report on it."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from ...planner.display.layout import field, plain_table
from ...planner.display.terminal import one_line
from ...planner.errors import PlanMismatchError, UsageError
from ...planner.plan_file.record import Plan
from ...planner.units import counted, format_nbytes, format_ns

if TYPE_CHECKING:
    from rich.console import Console

    from ...adapters.pytorch.beside_plain import BesidePlain, Difference, Taken

FROM_FILE = "onnx"
"""The value of --run that takes the module from the file."""
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def trained(plan: Plan, model: str, target: str, *, snapshot: bool, now: Callable[[str], None]) -> BesidePlain:
    """Train what ``target`` names by a plan that has been verified against the file ``model``.

    Raises UsageError for a target that gives no module, and what `train_beside_plain` raises.
    """
    now("importing torch")
    from ...adapters.pytorch.beside_plain import train_beside_plain
    from ...adapters.pytorch.training_target import from_file, from_function

    now(f"building {target}")
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):  # standard output is for the report alone
        warnings.showwarning = _warn
        built = from_file(plan, model) if target == FROM_FILE else from_function(target)
        return train_beside_plain(plan, *built, snapshot=snapshot, now=now)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"warning: {one_line(str(message), 400)}", err=True)


def check_run(target: str | None, snapshot: str | None, model: str | None) -> None:
    """Raise UsageError for options that cannot be used together, before any work is done."""
    if target is None:
        if snapshot is not None:
            raise UsageError("--snapshot is of a step that --run trains", remedy="pass --run pkg.mod:build, too")
        return
    if model is None:
        raise UsageError(
            "--run trains a model, and none is given", remedy="ogc-plan verify PLAN MODEL --run pkg.mod:build"
        )
    if target != FROM_FILE and not _TARGET.fullmatch(target):
        raise UsageError(
            f"--run {target!r} is neither pkg.mod:build nor {FROM_FILE}",
            remedy=f"name the function that builds the module, as --run train:build, or pass --run {FROM_FILE}",
        )


def differing(found: BesidePlain) -> PlanMismatchError | None:
    """The error of a planned step whose bits are not those of plain steps, which have the same ones each time."""
    if found.equal or not found.repeats:
        return None
    kind, worst = max(found.differences.items(), key=lambda entry: entry[1].largest)
    return PlanMismatchError(
        f"the planned step has other {kind} than plain training: {_told(worst)}",
        remedy="compare with the known exceptions: the page of the PyTorch adapter, Limits",
    )


def as_data(found: BesidePlain) -> dict[str, Any]:
    """The report as JSON data: bytes and seconds."""
    return {
        "module": found.module,
        "device": found.device,
        "planned_anew": found.planned_anew,
        "predicted_peak_nbytes": found.predicted_nbytes,
        "equal": found.equal and found.plain is not None,
        "plain_repeats": found.repeats,
        "differences": {
            kind: {"tensors": one.count, "largest": one.largest, "at": one.where}
            for kind, one in found.differences.items()
        },
        "planned": _taken_data(found.planned),
        "plain": None if found.plain is None else _taken_data(found.plain),
    }


def _taken_data(taken: Taken) -> dict[str, Any]:
    return {"peak_nbytes": taken.peak_nbytes, "seconds": taken.seconds}


def print_trained(out: Console, found: BesidePlain, plan: Plan) -> None:
    """The report as text."""
    field(out, "trained", f"a step of {found.module} on {found.device}, with the plan and without it")
    if found.planned_anew:
        share = f"within {plan.budget.text}, here {format_nbytes(found.plan.budget.nbytes)}"
        field(out, "planned anew", f"{share}: the plan of the file needs more with the kernels of PyTorch")
    out.print()
    table = plain_table("", "plain", "planned", "", left=(0, 3))
    for kind, difference in found.differences.items():
        style = "green" if difference.largest == 0 else "yellow"
        table.add_row(kind, "", counted(difference.count, "tensor"), Text(_told(difference), style=style))
    here, plain, before = found.planned, found.plain, found.plan.time
    table.add_row("peak, predicted", "", format_nbytes(found.predicted_nbytes), "")
    least = "out of memory" if plain is None else format_nbytes(plain.peak_nbytes)
    table.add_row("peak, measured", least, format_nbytes(here.peak_nbytes), "")
    predicted = (before.store_all_ns, before.store_all_ns + before.recompute_ns)
    table.add_row("time, predicted", *map(format_ns, predicted), f"{100 * before.overhead:+.2f}%")
    ratio = "" if plain is None else f"{100 * (here.seconds / plain.seconds - 1):+.2f}%"
    measured = ("" if way is None else format_ns(round(1e9 * way.seconds)) for way in (plain, here))
    table.add_row("time, measured", *measured, ratio)
    out.print(table)
    if not found.repeats:
        out.print()
        field(out, "note", "plain training does not give the same gradients each time here, so bits say nothing")


def _told(difference: Difference) -> str:
    if difference.largest == 0:
        return "equal to the bit"
    return f"differ by at most {difference.largest:.1e}, of {difference.scale:.1e} in {difference.where!r}"
