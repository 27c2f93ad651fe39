"""Steps to be tried: what the planner saves and runs again, on the kernels of a step that has been lowered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import fx

from ...planner.problem import Scope, build_problem
from ...planner.schedule import StepKind, lower
from ...planner.solution import Decisions
from ...planner.solver import Solver
from .copies import Entry
from .joint_graph import JointGraph
from .kernel_graph import KernelGraph

_LIMITS = 16
"""So many limits are planned for, from the smallest peak of the planner up to that where nothing runs again."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A step to be lowered: what it saves, and how often its backward runs calls again.

    Attributes:
        entries: the backward of a plan, with a copy for each time that a call runs; empty for one copy of each.
        alone: cheap values are computed again for each part of the backward that reads them.
        work: operations that run again, random numbers among them.
        saved_nbytes: bytes of what it saves.
        planned_nbytes: the peak that the plan was made for; None for what is no plan.
    """

    saved: tuple[fx.Node, ...]
    entries: tuple[Entry, ...]
    alone: bool
    source: str = field(compare=False)
    work: int = field(compare=False)
    saved_nbytes: int = field(compare=False)
    planned_nbytes: int | None = field(compare=False)


class Plans:
    """The planner's steps for a joint graph, planned on the kernels of one of its steps."""

    def __init__(self, joint: JointGraph, kernels: KernelGraph, peak_nbytes: int) -> None:
        """``peak_nbytes`` is that of the step itself, as its code shows it."""
        self._joint, self._kernels, self._peak_nbytes = joint, kernels, peak_nbytes

    def proposals(self, proposal: Callable[..., Proposal], name: str) -> Iterator[Proposal]:
        """Steps for each plan: its smallest cuts, and the plan itself; ``proposal`` makes them."""
        solver, graph = Solver(effort="fast"), self._kernels.graph
        problem = solver.prepared(build_problem(graph, self._kernels.costs, Scope.TOTAL))
        lowest, met = solver.smallest_peak(problem), set[tuple[int, ...]]()
        inside = sum(max(cost.forward_workspace_nbytes, cost.backward_workspace_nbytes) for cost in self._kernels.costs)
        most = solver.solve(problem, graph.sizes_nbytes + inside).peak_nbytes
        for i in range(_LIMITS):
            limit = lowest + (most - lowest) * i // _LIMITS
            plan = solver.solve(problem, limit).decisions
            assert plan is not None  # no limit is below the smallest peak
            if plan.sequence in met:
                continue
            met.add(plan.sequence)
            for cut in self._smallest_cuts(plan):
                yield proposal(cut, f"{name}, smallest", alone=True)
            if self._again(plan):
                saved = [node for storage in self._stored(plan) for node in self._kernels.held[storage]]
                planned = limit - most + self._peak_nbytes  # what the planner sees otherwise than the code
                yield proposal(saved, f"{name}, copies", self._entries(plan), planned_nbytes=planned)

    def _smallest_cuts(self, plan: Decisions) -> list[list[fx.Node]]:
        """The smallest cuts that run the costly calls of a plan's recomputations again, each once.

        They may save values inside of kernels, and what fuses runs again for nothing. What the plan saves stays saved,
        if the plan computes it again later too.
        """
        stored, again = self._stored(plan), self._again(plan)
        ops = [entry for entry in again if not stored & set(self._kernels.graph.ops[entry].writes)]
        nodes = {node for entry in ops for node in self._kernels.origins[entry]}
        return self._joint.cuts_for(nodes & self._joint.costly)

    def _entries(self, decisions: Decisions) -> list[Entry]:
        """The backward of a plan in the names of the graph."""
        kernels, begun = self._kernels, False
        entries: list[Entry] = []
        to_come = set(kernels.backward)
        waiting: dict[int, Entry] = {}  # storages that the plan has freed and a backward to come reads late
        for step in lower(kernels.graph, decisions):
            begun = begun or step.kind is StepKind.BACKWARD
            if not begun:
                continue
            if step.kind is StepKind.BACKWARD:
                entries.append(Entry("backward", kernels.backward[step.index]))
                to_come.discard(step.index)
                over = [storage for storage in waiting if not kernels.late[storage] & to_come]
                entries += [waiting.pop(storage) for storage in over]
            elif step.kind is StepKind.FREE:
                drop = Entry("drop", frozenset(node.name for node in kernels.held[step.index]))
                if kernels.late.get(step.index, frozenset()) & to_come:
                    waiting[step.index] = drop
                else:
                    entries.append(drop)
            else:
                written = kernels.graph.ops[step.index].writes
                kept = frozenset(node.name for storage in written for node in kernels.held[storage])
                entries.append(Entry("again", kept, kept))
        return entries

    def _again(self, plan: Decisions) -> set[int]:
        """The ops that a plan runs again."""
        return {entry for entry in plan.sequence[_begin(plan.sequence) :] if entry >= 0}

    def _stored(self, plan: Decisions) -> set[int]:
        """The storages that are alive when a plan's backward begins."""
        graph, live = self._kernels.graph, set[int]()
        for entry in reversed(plan.sequence[_begin(plan.sequence) :]):
            if entry >= 0:
                live -= set(graph.ops[entry].writes)
                live |= set(graph.ops[entry].reads)
            else:
                backward = graph.ops[~entry].backward
                assert backward is not None
                live |= set(backward.reads)
        return live


def _begin(sequence: tuple[int, ...]) -> int:
    """Where the backward of a plan begins."""
    return next((position for position, entry in enumerate(sequence) if entry < 0), len(sequence))
