"""What planning says: a line once a plan is made, and what a budget in bytes leaves out."""

from __future__ import annotations

import logging

from ....planner.autodiff.derive import states_nbytes
from ....planner.display.terminal import Activity
from ....planner.plan_file.record import Plan
from ....planner.problem import Scope
from ....planner.units import format_nbytes, parse_budget
from ..errors import warn
from .request import Request

_LOG = logging.getLogger("ogc_plan")


def tell(line: Activity, name: str, made: Plan, request: Request, took_s: float) -> None:
    """One line on a plan that was made: on a terminal or in a notebook, elsewhere as a record of the log."""
    early = ", stopped by Ctrl-C" if made.certificate.stopped_on_request else ""
    text = f"{name} planned in {took_s:.1f} s{early}: {made.outcome}; the budget covers {made.covers}"
    memory = request.optimizer_memory
    if memory is not None and memory.temporaries_nbytes:
        kind = "foreach temporaries" if memory.foreach else "temporaries"
        text += f"; {memory.name}.step() takes {format_nbytes(memory.temporaries_nbytes)} of {kind} after the backward"
    if not line.tell(text):
        _LOG.info(text)


def warn_of_the_card(made: Plan, total_nbytes: int) -> None:
    """Warn where a step takes more than the memory of its GPU, ``total_nbytes``, before it runs out of it."""
    if made.peak.total_nbytes > total_nbytes:
        warn(
            f"the planned step takes {format_nbytes(made.peak.total_nbytes)}, and its GPU has "
            f"{format_nbytes(total_nbytes)}; pass budget={total_nbytes} or less, or a smaller batch"
        )


def warn_of_the_optimizer(made: Plan, request: Request) -> None:
    """Warn where a budget for all bytes leaves an optimizer's states out, or where its step goes beyond the budget."""
    if made.budget.scope != Scope.TOTAL.value or parse_budget(request.budget).nbytes is None:
        return
    trained = made.graph.parameter_gradient_nbytes
    if request.optimizer is None and trained:
        warn(
            f"the budget of {request.budget} leaves no room for the states of an optimizer, which for AdamW take "
            f"{format_nbytes(states_nbytes('adamw', trained))}; pass optimizer=... (the optimizer or a name) to count "
            'them, or optimizer="none"',
        )
    memory, fixed = request.optimizer_memory, made.graph.stationary
    temporaries = None if memory is None else memory.temporaries_nbytes
    if memory is None or temporaries is None:
        return
    held = fixed.total_nbytes - fixed.accumulated_gradient_nbytes + trained + temporaries
    if held > made.budget.nbytes:
        warn(
            f"{memory.name}.step() holds {format_nbytes(held)} at its peak, {format_nbytes(temporaries)} of it "
            f"temporaries: more than the budget of {request.budget}, which holds until it begins; pass "
            + ("fused=True or foreach=False to it" if memory.foreach else "fused=True to it, if it can")
            + ", or a smaller optimizer",
        )
