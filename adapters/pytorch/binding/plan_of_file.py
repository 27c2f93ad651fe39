"""A plan of a bare ONNX file, on the step that PyTorch runs of the file's module."""

from __future__ import annotations

from json import dumps as quoted

from ....planner.errors import PlanMismatchError
from ....planner.infeasible import Asked
from ....planner.model import from_annotation
from ....planner.pipeline import peak_of, replays_of, resolve_budget
from ....planner.plan_file.record import TAKEN_OVER_NOTES, Plan
from ....planner.replan.into_budget import into_budget
from ....planner.replan.kept_decisions import by_decisions, decisions_of
from ....planner.replan.other_ops import on_other_ops
from ....planner.schedule import lower
from ....planner.simulate import simulate
from ....planner.solver import Solver
from ....planner.units import counted, format_both, parse_budget
from ..capture.module_scopes import file_call_of
from ..onnx_module.module import OnnxModule
from ..step.annotate import Annotated


def on_calls(plan: Plan, module: OnnxModule, annotated: Annotated) -> Plan:
    """The plan of PyTorch's own calls with the decisions of a ``plan`` of the bare file.

    Each call does what the op of the file does that it computes, in the order that the plan gives. Peaks are predicted
    again on the calls, and held to the same budget: by the headroom of the plan, else by a few more recomputations.
    Times are measured. No bound is known.

    Raises:
        PlanMismatchError: the plan is of another file, or of other sizes; it freezes what the module trains; or its
            peak on the calls is above its budget.
    """
    about = plan.model
    if about.fingerprint != module.onnx_fingerprint:
        raise PlanMismatchError(
            f"the plan was made from the bare file {quoted(about.file)} with graph {about.fingerprint[:12]}, the "
            f"module was built from {quoted(module.onnx_file.name)} with graph {module.onnx_fingerprint[:12]}",
            remedy="build it by from_onnx from that file, with the batch, dims and inputs of the plan",
        )
    _refuse_thawed(plan, module)
    model = from_annotation(
        annotated.annotation,
        name=type(module).__name__,
        optimizer=plan.budget.optimizer,
        grad_accumulation=plan.budget.grad_accumulation,
    )
    graph = model.training
    ops = {op.name: index for index, op in enumerate(plan.graph.ops)}
    parts = [None if op.node is None else ops.get(file_call_of(op.node)) for op in annotated.step.ops]
    taken_over = on_other_ops(graph, parts, decisions_of(plan))
    limit, scope = resolve_budget(parse_budget(plan.budget.text), plan.budget.scope, model.store_all())
    fitting = taken_over if limit is None else into_budget(model, taken_over, scope, limit)
    decisions = fitting or taken_over
    schedule = lower(graph, decisions)
    timeline = simulate(graph, model.costs, schedule)
    peak = peak_of(timeline, scope)
    if limit is not None and fitting is None:
        raise PlanMismatchError(
            f"the plan of {quoted(about.file)} has a peak of {format_both(peak)} in PyTorch, whose calls and kernels "
            f"are others, above its budget of {format_both(limit)}",
            remedy=f"plan PyTorch's own calls: within_budget(module, args, budget={quoted(plan.budget.text)}), or plan "
            "the file with --headroom",
        )
    added = len(decisions.sequence) - len(taken_over.sequence)
    more = [f"{counted(added, 'more recomputation')}, for the workspace of PyTorch's kernels"] if added else []
    notes = (f"{TAKEN_OVER_NOTES[0]}of the file {about.file}, graph {about.fingerprint[:12]}", *more)
    known = {**replays_of(model), decisions: (schedule, timeline)}
    solver = Solver(plan.certificate.strategy, seed=plan.certificate.seed)
    asked = Asked(plan.budget.text, limit, 0)
    return by_decisions(model, model.problem(scope), asked, decisions, solver, known, notes)


def _refuse_thawed(plan: Plan, module: OnnxModule) -> None:
    """Raise PlanMismatchError where the module trains a parameter that the plan froze."""
    if not plan.budget.frozen or plan.graph.execution is None:
        return
    pairs = zip(plan.graph.gradients, plan.graph.execution.gradients, strict=True)
    trained = {tensor for gradient, tensor in pairs if gradient.parameter}
    for path, parameter in module.named_parameters():
        if parameter.requires_grad and module.onnx_names[path] not in trained:
            raise PlanMismatchError(
                f"the plan gives no gradient to {quoted(module.onnx_names[path])}, which the module trains",
                remedy=f"call get_parameter({quoted(path)}).requires_grad_(False) first, or plan without --frozen",
            )
