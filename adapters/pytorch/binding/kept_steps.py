"""What planning another step of a module takes over from the steps that it has plans for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....planner.plan_file.record import Plan
from ....planner.replan.structure import distance, same_structure, scaled
from ..execution.executor import Executor
from ..memory.workspace_meter import WorkspaceMeter
from ..step.annotate import Annotated, device_of
from ..step.step_graph import TracedStep

SCALED_NOTE = "times scaled from those of graph "
"""Prefix of the note of a plan whose times were not measured."""


def of_same_structure(step: TracedStep, kept: Sequence[Executor]) -> list[Executor]:
    """The executors whose plans are of a step that differs from this one in sizes alone, the nearest in size first.

    Of many sizes only those whose decisions are their own are looked at.
    """
    own = [executor for executor in kept if not executor.plan.certificate.taken_over] or kept
    like = [executor for executor in own if same_structure(step.graph, executor.plan.graph)]
    return sorted(like, key=lambda executor: distance(step.graph, executor.plan.graph))


def meter_with(step: TracedStep, kept: Sequence[Executor]) -> WorkspaceMeter:
    """A meter for the calls of a step that knows those which are measured already for other plans."""
    meters = (executor.meter_now() for executor in kept)
    return WorkspaceMeter(device_of(step), step.reuse.calls, known=[meter for meter in meters if meter is not None])


def with_times_of(known: Executor, annotated: Annotated) -> Annotated:
    """A step with the times of a ``known`` one of the same structure, scaled by its work."""
    annotation = annotated.annotation
    works = scaled(annotation.works, known.works, known.plan.costs)
    return replace(annotated, annotation=replace(annotation, works=works))


def noted(plan: Plan, note: str) -> Plan:
    """The plan with one more note."""
    return replace(plan, certificate=replace(plan.certificate, notes=(*plan.certificate.notes, note)))
