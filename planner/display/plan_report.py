"""The report on a plan: budget, peaks and their parts, timeline, time and proof."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ..annotations import Source
from ..autodiff.derive import states_nbytes
from ..errors import in_python
from ..model import DEFAULT_DEVICE
from ..peak_bounds.step_floor import Floor
from ..pipeline import checked
from ..plan_file.record import Certificate, Plan
from ..problem import Scope
from ..schedule import Schedule
from ..simulate import Timeline
from ..solver import CERTIFIED, DEFAULT_EFFORT
from ..training_graph import TrainingGraph
from ..units import counted, format_both, format_nbytes, format_ns, percent
from .layout import LABEL, field, listed, path_of, plain_table
from .terminal import console, one_line
from .timeline import axis, backward_start, phase_widths, row

if TYPE_CHECKING:
    from rich.console import Console

FOLDED = "folded into"
"""Words of an assumption on batch norms that a file lacks."""
_WITHOUT_GRADIENT = ("no rule", "charged as asked")
"""Words of an assumption on ops that nothing is known of."""
_WIDE = 0.005
"""The gap, as a share of a step, from which more effort is advised."""


def source_line(source: Source) -> str:
    """The framework and device that annotations are valid for."""
    return f"{one_line(source.framework, 60)} on {one_line(source.device, 60)}"


def timed_by(source: str) -> str:
    """The source of times; those of a roofline are estimated, by default for a device that nobody named."""
    if not source.startswith("roofline"):
        return one_line(source, 90)
    usual = source == f"roofline:{DEFAULT_DEVICE}"
    others = f" for an {DEFAULT_DEVICE.upper()}; --device NAME for another one"
    return f"{one_line(source, 60)}, estimated" + others * usual


def trained_by(plan: Plan) -> str:
    """What can train the step of a bare file; nothing for an annotated file, whose plan its framework takes."""
    if plan.model.annotations is not None:
        return ""
    if any(mark in sentence for sentence in plan.model.assumed for mark in _WITHOUT_GRADIENT):
        return "nothing here: it has ops without a gradient rule; other runtimes may read the plan file"
    return "ogc-plan emit PLAN MODEL --to onnx, for ONNX Runtime; in PyTorch bind(from_onnx(MODEL), PLAN, args)"


def parts_at_peak(plan: Plan, timeline: Timeline) -> dict[str, int]:
    """Bytes by kind at the total peak; they add up to it."""
    fixed = plan.graph.stationary
    at = max(range(len(timeline.total_nbytes)), key=lambda i: timeline.total_nbytes[i])
    moving = timeline.total_nbytes[at] - fixed.total_nbytes
    activations = min(moving, timeline.activation_nbytes[at])  # the two peaks may be at different moments of the step
    gradients = moving - activations
    return {
        "parameters": fixed.parameter_nbytes,
        "parameter gradients": gradients + fixed.accumulated_gradient_nbytes,
        "optimizer": fixed.optimizer_nbytes,
        "inputs + buffers": fixed.input_nbytes + fixed.buffer_nbytes,
        "activations": activations,
    }


def print_warnings(out: Console, assumed: Iterable[str]) -> None:
    """What makes the peaks of a model too small, of all that was assumed about it."""
    for sentence in assumed:
        if FOLDED in sentence:
            field(out, "warning", one_line(sentence, 300), style="yellow")


def part_label(part: str) -> str:
    """The label of one of `parts_at_peak`; of what differs at other moments it says when."""
    return part if part in ("parameters", "optimizer", "inputs + buffers") else f"{part} at the peak"


def not_covered(graph: TrainingGraph, optimizer: str | None) -> list[str]:
    """Memory of a training step that a budget does not cover."""
    missing = []
    if any(graph.gradients[seed].nbytes > 8 for seed in graph.seeds):
        missing.append("a loss computed outside the model")
    if optimizer is None:
        adamw = format_nbytes(states_nbytes("adamw", graph.parameter_gradient_nbytes))
        missing.append(f"optimizer states, {adamw} for AdamW (no --optimizer given)")
    if optimizer == "none":
        missing.append("optimizer states")
    missing.append("temporaries of optimizer.step()")
    return missing


SCOPES = {Scope.TOTAL.value: "total peak", Scope.ACTIVATIONS.value: "activation peak"}


def budget_line(plan: Plan) -> str:
    """The budget as written and in both units."""
    budget, what = plan.budget, SCOPES[plan.budget.scope]
    line = f"{budget.text} = {format_both(budget.nbytes + budget.headroom_nbytes)}, bounds the {what}"
    if budget.headroom_nbytes:
        line += f"; {format_nbytes(budget.headroom_nbytes)} of it kept free as headroom"
    return line


def _peak_table(plan: Plan, store_all: Timeline) -> Table:
    table = plain_table("", "plan", "store-all", "floor", "of all")
    peak = plan.peak
    ours, whole = parts_at_peak(plan, plan.timeline), parts_at_peak(plan, store_all)

    def add(label: str, mine: int, theirs: int, floor: int | None, style: str = "") -> None:
        share = percent(mine / theirs) if theirs else ""
        cells = [format_nbytes(mine), format_nbytes(theirs), "" if floor is None else format_nbytes(floor), share]
        table.add_row(Text(label), *cells, style=style)

    add(
        "activation peak",
        peak.activation_nbytes,
        peak.store_all_activation_nbytes,
        peak.floor_activation_nbytes,
        "bold",
    )
    add("total peak, of which", peak.total_nbytes, peak.store_all_total_nbytes, peak.floor_total_nbytes, "bold")
    for label, nbytes in ours.items():
        constant = part_label(label) == label
        shown = [format_nbytes(nbytes), format_nbytes(whole[label]), format_nbytes(nbytes) if constant else "", ""]
        table.add_row(Text(f"  {part_label(label)}"), *shown, style="dim" if not nbytes and not whole[label] else "")
    time = plan.time
    table.add_row(
        Text("step time"), format_ns(time.store_all_ns + time.recompute_ns), format_ns(time.store_all_ns), "",
        f"+{percent(time.overhead)}", style="bold",
    )  # fmt: skip
    return table


def proof_lines(plan: Plan) -> tuple[str, ...]:
    """What is proven about the recomputation time, and the orders that it is proven for."""
    certificate, whole = plan.certificate, max(1, plan.time.store_all_ns)
    if plan.time.recompute_ns == 0:
        return ("nothing is recomputed: no plan is faster",)
    if not certificate.bound_class and certificate.taken_over:
        return ("none: it was not searched for; where its decisions come from is in the notes",)
    if not certificate.bound_class:
        return (f"strategy {certificate.strategy} proves nothing about other plans",)
    order, _, rest = one_line(certificate.bound_class, 200).partition("; ")
    gap = f"gap {percent(plan.gap)} of a step" if plan.gap > 0 else "optimal there" if rest else "proven optimal"
    searched = certificate.strategy == CERTIFIED and not certificate.stopped_early
    if plan.gap > _WIDE and searched and certificate.effort != "high":
        gap += f" (--effort {'default' if certificate.effort == 'fast' else 'high'} looks further)"
    by = "on request" if certificate.stopped_on_request else "by the time limit"
    early = f"; search stopped {by}" if certificate.stopped_early else ""
    bound = f"at least +{percent(certificate.bound_ns / whole)}"
    if not rest:  # a class of all orders
        return f"{bound}, {gap}{early}", f"(holds for {order})"
    return f"{bound} in {order}, {gap}{early}", f"({rest})"


def search_line(certificate: Certificate) -> str:
    """How the plan was searched, and whether the search ended early."""
    effort = f", effort {one_line(certificate.effort, 20)}" if certificate.strategy == CERTIFIED else ""
    line = f"{one_line(certificate.strategy, 60)}{effort}, seed {certificate.seed}, {one_line(certificate.solver, 60)}"
    if not certificate.stopped_early:
        return line
    by = "Ctrl-C" if certificate.stopped_on_request else "the time limit"
    return f"{line}; {by} ended it early: another run may find a better plan"


def _timeline_lines(plan: Plan, store_all: Timeline, schedule: Schedule, width: int) -> list[Text]:
    label, room = LABEL, 10
    columns = max(16, width - label - room - 1)
    start, whole_start = backward_start(plan.schedule), backward_start(schedule)
    widths = phase_widths(len(plan.schedule), start, columns)
    top = max(store_all.peak_activation_nbytes, plan.peak.activation_nbytes)
    lines = []
    for name, values, at, peak, style in (
        ("store-all", store_all.activation_nbytes, whole_start, store_all.peak_activation_nbytes, "yellow"),
        ("plan", plan.timeline.activation_nbytes, start, plan.peak.activation_nbytes, "green"),
    ):
        lines.append(
            Text.assemble(
                f"{name:<{label}}", (row(values, at, widths, top), style), " ", f"{format_nbytes(peak):>{room}}"
            )
        )
    lines.append(Text(" " * label + axis(widths), style="dim"))
    return lines


def text_of(plan: Plan, *, verbose: bool) -> str:
    """The report as text without colours. Raises PlanMismatchError for a plan that does not keep what it promises."""
    text, found = StringIO(), checked(plan.graph, plan.costs, plan)
    print_plan(console(text), plan, found.store_all, found.floors, verbose=verbose, written="")
    return in_python(text.getvalue()).replace("(-v)", "(verbose=True)")


def print_plan(
    out: Console,
    plan: Plan,
    replayed: tuple[Schedule, Timeline],
    floors: dict[Scope, Floor],
    *,
    verbose: bool,
    written: str,
    notes: Iterable[str] = (),
) -> None:
    """The whole report.

    ``replayed`` are the schedule that recomputes nothing and its replay. ``written`` is where the plan is; ``notes``
    are sentences beside the plan's own.
    """
    (schedule, store_all), model = replayed, plan.model
    shaped = [f"{name}={value}" for name, value in model.dims]
    shaped += [f"{name}={'x'.join(map(str, shape))}" for name, shape in model.inputs]
    shaped += [f"batch={model.batch}"] if model.batch is not None else []
    field(
        out, "model", ", ".join([path_of(model.file, out), counted(len(plan.graph.ops), "op"), *map(one_line, shaped)])
    )
    if model.annotations is not None:
        field(out, "annotations", source_line(model.annotations))
    field(out, "budget", budget_line(plan))
    field(out, "covers", plan.covers)
    print_warnings(out, model.assumed)
    out.print()
    out.print(_peak_table(plan, store_all))
    out.print()
    for line in _timeline_lines(plan, store_all, schedule, out.width):
        out.print(line, no_wrap=True, overflow="crop")
    out.print()
    field(out, "plan", plan.choices)
    for label, proven in zip(("proof", ""), proof_lines(plan), strict=False):
        field(out, label, proven)
    field(out, "floor set by", one_line(floors[Scope(plan.budget.scope)].describe(), 300))
    field(out, "timed by", timed_by(plan.time.source))
    if trained_by(plan):
        field(out, "trained by", trained_by(plan))
    field(out, "not covered", "; ".join(not_covered(plan.graph, plan.budget.optimizer)))
    assumed = [sentence for sentence in model.assumed if FOLDED not in sentence]
    if assumed:
        field(out, "assumed", listed(assumed, verbose))
    told = plan.certificate.effort != DEFAULT_EFFORT or plan.certificate.stopped_early
    if told and not verbose:
        field(out, "search", search_line(plan.certificate))
    for note in (*plan.certificate.other_notes, *notes):
        field(out, "note", one_line(note, 300))
    if verbose:
        _print_details(out, plan)
    if written:
        field(out, "written", written)


def _print_details(out: Console, plan: Plan) -> None:
    """How the plan was searched, and the names of what is kept and recomputed."""
    field(out, "search", search_line(plan.certificate))
    field(out, "kept", ", ".join(one_line(name, 80) for name in plan.kept) or "nothing")
    runs = [one_line(name, 80) + (f" x{count}" if count > 1 else "") for name, count in plan.recomputed.items()]
    field(out, "recomputed", ", ".join(runs) or "nothing")
