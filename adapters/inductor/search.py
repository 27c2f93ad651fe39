"""The choice of the saved values: candidates of torch and of the planner, each judged by the code that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import fx

from ...planner.problem import Scope, build_problem
from ...planner.solver import Solver
from .joint_graph import JointGraph
from .kernel_graph import KernelGraph, kernel_graph
from .lowering import Lowered, lower_step
from .peak import StepPeak, step_peak
from .work import node_flops, step_ns
from .workspace import WorkspaceMeter

_SHARES = (0.8, 0.5, 0.2, 0.0)
"""The values of ``activation_memory_budget`` that give candidates."""

_ROUNDS = 4
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
        self._tried: dict[frozenset[fx.Node], Candidate] = {}

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
        for candidate in self._candidates(limit_nbytes):
            if candidate.peak.nbytes <= limit_nbytes and candidate.ns <= self.plain().ns:
                break
        held = [candidate for candidate in self._tried.values() if candidate.peak.nbytes <= limit_nbytes]
        return min(held, key=lambda candidate: (candidate.ns, candidate.peak.nbytes), default=None)

    def smallest(self) -> Candidate:
        """The candidate with the smallest peak of those that were lowered."""
        return min(self._tried.values(), key=lambda candidate: (candidate.peak.nbytes, candidate.ns))

    def tried(self, saved: Iterable[fx.Node], source: str) -> Candidate:
        """The candidate of a saved set."""
        nodes = self.joint.with_random_values(saved)
        key = frozenset(nodes)
        if key not in self._tried:
            forward, backward = self.joint.cut(nodes)
            ahead, back = lower_step(forward, backward, self.joint.outputs, self.joint.static)
            self._workspace.measure((ahead, back))
            peak = step_peak(self.joint, forward, ahead, back, self._workspace)
            again = self.joint.again(nodes)
            self._tried[key] = Candidate(
                tuple(nodes), forward, backward, ahead, back, peak,
                sum(map(node_flops, again)), step_ns(again, ahead, back), source,
            )  # fmt: skip
        return self._tried[key]

    def _candidates(self, limit_nbytes: int) -> Iterator[Candidate]:
        for share in _SHARES:
            yield self.tried(self.joint.by_torch(share), f"torch {share}")
        yield from _Planned(self).candidates(limit_nbytes)


class _Planned:
    """Candidates of the planner, which plans on the kernels of a step that runs nothing costly again."""

    def __init__(self, search: Search) -> None:
        self._search, self._joint = search, search.joint
        base = search.tried(self._joint.cut_for(()), "nothing costly again")
        self._kernels: KernelGraph = kernel_graph(
            self._joint, base.forward, base.ahead, base.back, search._workspace
        )  # fmt: skip
        self._solver = Solver(effort="fast")
        self._problem = self._solver.prepared(build_problem(self._kernels.graph, self._kernels.costs, Scope.TOTAL))

    def candidates(self, limit_nbytes: int) -> Iterator[Candidate]:
        """Both steps of each plan: with its own cut, and with the smallest cut that runs the same calls again."""
        planned_nbytes, lowest = limit_nbytes, False
        for number in range(_ROUNDS):
            solution = self._solver.solve(self._problem, planned_nbytes)
            if solution.decisions is None:
                if lowest:
                    return
                lowest, planned_nbytes = True, self._solver.smallest_peak(self._problem)
                solution = self._solver.solve(self._problem, planned_nbytes)
                assert solution.decisions is not None
            sequence = solution.decisions.sequence
            made = [self._search.tried(self._stored(sequence), f"plan {number}")]
            yield made[0]
            made.append(self._search.tried(self._cut(sequence), f"plan {number}, smallest cut"))
            yield made[1]
            nearest = min(candidate.peak.nbytes for candidate in made)
            if _CLOSE * limit_nbytes <= nearest <= limit_nbytes or (lowest and nearest > limit_nbytes):
                return
            planned_nbytes += limit_nbytes - nearest

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

    def _cut(self, sequence: tuple[int, ...]) -> list[fx.Node]:
        """The smallest cut that runs the costly calls of a plan's recomputations again."""
        again = {node for entry in sequence[_begin(sequence) :] if entry >= 0 for node in self._kernels.origins[entry]}
        return self._joint.cut_for(again & self._joint.costly)


def _begin(sequence: tuple[int, ...]) -> int:
    """Where the backward of a plan begins."""
    return next((position for position, entry in enumerate(sequence) if entry < 0), len(sequence))


Tell = Callable[[str], None]
