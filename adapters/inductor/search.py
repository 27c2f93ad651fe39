"""The choice of the saved values: candidates of torch and of the planner, each judged by the code that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from ...planner.problem import Scope, build_problem
from ...planner.schedule import StepKind, lower
from ...planner.solution import Decisions
from ...planner.solver import Solver
from .copies import Entry, with_copies
from .joint_graph import JointGraph
from .kernel_graph import KernelGraph, kernel_graph
from .lowering import Lowered, lower_step
from .peak import StepPeak, step_peak
from .work import node_flops, step_ns
from .workspace import WorkspaceMeter

_LIGHT = 0.8
"""The ``activation_memory_budget`` under which torch runs again what fuses, and nothing else."""

_SHARES = (0.5, 0.4, 0.2, 0.0)
"""The values of ``activation_memory_budget`` whose cuts are tried, where they run fewer operations again."""

_ROUNDS = 3
"""How often the planner's limit is moved by what a plan's code takes more or less than the budget."""

_CLOSE = 0.99
"""A plan that takes so much of the budget is not replaced by one that takes more."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step that has been lowered: what it saves, its code's peak, the calls that run again, time to compare by."""

    saved: tuple[fx.Node, ...]
    forward: fx.GraphModule
    backward: fx.GraphModule
    ahead: Lowered
    back: Lowered
    peak: StepPeak
    recomputed_flops: int
    ns: int
    source: str


class Search:
    """Lowers steps of one joint graph, each saved set once."""

    def __init__(self, joint: JointGraph, workspace: WorkspaceMeter) -> None:
        self.joint = joint
        self._workspace = workspace
        self._tried: dict[tuple[frozenset[fx.Node], tuple[Entry, ...]], Candidate] = {}

    @property
    def lowerings(self) -> int:
        """How many steps were lowered."""
        return len(self._tried)

    def plain(self) -> Candidate:
        """The step that torch compiles without a budget."""
        return self.tried(self.joint.by_torch(1.0), "torch 1.0")

    def within(self, limit_nbytes: int) -> Candidate | None:
        """The cheapest candidate found within a limit, None if there is none; `smallest` knows what was reached."""
        if self.plain().peak.nbytes <= limit_nbytes:
            return self.plain()
        light = self.tried(self.joint.by_torch(_LIGHT), f"torch {_LIGHT}")
        if light.peak.nbytes <= limit_nbytes and not light.recomputed_flops:
            return light
        fused = _Planned(self, self.joint.cut_for(()), "cut")
        fused.search(limit_nbytes, fused.with_smallest_cut)
        stored = _Planned(self, self.joint.read_later(), "copies")
        stored.search(limit_nbytes, stored.with_copies)
        for share in _SHARES:
            best = self._best(limit_nbytes)
            saved = self.joint.by_torch(share)
            if best is None or sum(map(node_flops, self.joint.again(saved))) < best.recomputed_flops:
                self.tried(saved, f"torch {share}")
        return self._best(limit_nbytes)

    def _best(self, limit_nbytes: int) -> Candidate | None:
        held = [candidate for candidate in self._tried.values() if candidate.peak.nbytes <= limit_nbytes]
        return min(held, key=lambda candidate: (candidate.ns, candidate.peak.nbytes), default=None)

    def smallest(self) -> Candidate:
        """The candidate with the smallest peak of those that were lowered."""
        return min(self._tried.values(), key=lambda candidate: (candidate.peak.nbytes, candidate.ns))

    def tried(self, saved: Iterable[fx.Node], source: str, entries: Sequence[Entry] = ()) -> Candidate:
        """The candidate of a saved set; with ``entries`` its backward runs calls again as often as they say."""
        nodes = self.joint.with_random_values(saved)
        key = frozenset(nodes), tuple(entries)
        if key not in self._tried:
            forward, backward = self.joint.cut(nodes)
            again = self.joint.again(nodes)
            if entries:
                backward, names = with_copies(backward, [node.name for node in again], entries)
                again = [self.joint.node_named[name] for name in names]
            ahead, back = lower_step(forward, backward, self.joint.outputs, self.joint.static)
            self._workspace.measure((ahead, back))
            peak = step_peak(self.joint, forward, ahead, back, self._workspace)
            self._tried[key] = Candidate(
                tuple(nodes), forward, backward, ahead, back, peak,
                sum(map(node_flops, again)), step_ns(again, ahead, back), source,
            )  # fmt: skip
        return self._tried[key]


class _Planned:
    """Candidates of the planner, which plans on the kernels of the step that saves ``saved``."""

    def __init__(self, search: Search, saved: Iterable[fx.Node], name: str) -> None:
        self._search, self._joint, self._name = search, search.joint, name
        base = search.tried(saved, name)
        self._kernels: KernelGraph = kernel_graph(
            self._joint, base.forward, base.ahead, base.back, search._workspace
        )  # fmt: skip
        self._solver = Solver(effort="fast")
        self._problem = self._solver.prepared(build_problem(self._kernels.graph, self._kernels.costs, Scope.TOTAL))

    def search(self, limit_nbytes: int, step: Callable[[Decisions, str], Candidate]) -> None:
        """Try plans until the ``step`` of one comes close to the limit.

        What its code takes more or less than the budget moves the planner's limit.
        """
        planned_nbytes, lowest = limit_nbytes, False
        for number in range(_ROUNDS):
            solution = self._solver.solve(self._problem, planned_nbytes)
            if solution.decisions is None:
                if lowest:
                    return
                lowest, planned_nbytes = True, self._solver.smallest_peak(self._problem)
                solution = self._solver.solve(self._problem, planned_nbytes)
                assert solution.decisions is not None
            found = step(solution.decisions, f"{self._name}, plan {number}").peak.nbytes
            if _CLOSE * limit_nbytes <= found <= limit_nbytes or (lowest and found > limit_nbytes):
                return
            planned_nbytes += limit_nbytes - found

    def with_smallest_cut(self, decisions: Decisions, name: str) -> Candidate:
        """The smallest cut that runs the costly calls of a plan's recomputations again, each once.

        It may save values inside of kernels, and what fuses runs again for nothing.
        """
        sequence = decisions.sequence
        again = {node for entry in sequence[_begin(sequence) :] if entry >= 0 for node in self._kernels.origins[entry]}
        return self._search.tried(self._joint.cut_for(again & self._joint.costly), name)

    def with_copies(self, decisions: Decisions, name: str) -> Candidate:
        """The plan's own cut, with a copy for each time that the plan runs a call."""
        return self._search.tried(self._stored(decisions.sequence), name, self._entries(decisions))

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
                names = frozenset(node.name for node in kernels.origins[step.index])
                written = kernels.graph.ops[step.index].writes
                kept = frozenset(node.name for storage in written for node in kernels.held[storage])
                entries.append(Entry("again", names, kept))
        return entries

    def _stored(self, sequence: tuple[int, ...]) -> list[fx.Node]:
        """The nodes of the storages that are alive when a plan's backward begins."""
        graph, live = self._kernels.graph, set[int]()
        for entry in reversed(sequence[_begin(sequence) :]):
            if entry >= 0:
                live -= set(graph.ops[entry].writes)
                live |= set(graph.ops[entry].reads)
            else:
                backward = graph.ops[~entry].backward
                assert backward is not None
                live |= set(backward.reads)
        return [node for storage in live for node in self._kernels.held[storage]]


def _begin(sequence: tuple[int, ...]) -> int:
    """Where the backward of a plan begins."""
    return next((position for position, entry in enumerate(sequence) if entry < 0), len(sequence))
