"""The choice of the saved values: candidates of torch and of the planner, each judged by the code that it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from ...planner.problem import Scope, build_problem
from ...planner.schedule import StepKind, lower
from ...planner.solution import Decisions
from ...planner.solver import Solver
from .copies import Entry, read_alone, with_copies
from .joint_graph import JointGraph
from .kernel_graph import KernelGraph, kernel_graph
from .lowering import Lowered, lower_step
from .peak import StepPeak, step_peak
from .work import node_flops, rounds, step_ns
from .workspace import WorkspaceMeter

PLAIN = "torch"
"""The step that torch compiles without a budget."""

BASE = "cut"
"""The step that runs nothing costly again."""

_SHARES = (0.5, 0.4, 0.2)
"""The values of ``activation_memory_budget`` whose cuts are tried, where they run fewer operations again."""

_ROUNDS = 4
"""So many steps of plans are lowered for a budget."""

_PLANS = 10
"""So many plans are made for a budget; several can become the same step."""

_CLOSE = 0.99
"""A plan that takes so much of the budget is not replaced by one that takes more."""

_NEAR_SMALLEST = (0.0, 0.1, 0.25)
"""The planner's smallest peak is not the code's: plans are tried so far above it, as a share of the way up."""


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
        self._kept = set[fx.Node]()  # saved by each step but the plain one
        self._tried: dict[tuple[frozenset[fx.Node], tuple[Entry, ...], bool], Candidate] = {}

    @property
    def lowerings(self) -> int:
        """How many steps were lowered."""
        return len(self._tried)

    def plain(self) -> Candidate:
        """The step that torch compiles without a budget."""
        return self.tried(self.joint.by_torch(1.0), PLAIN)

    def within(self, limit_nbytes: int) -> Candidate | None:
        """The cheapest candidate found within a limit, None if there is none."""
        if self.plain().peak.nbytes <= limit_nbytes:
            return self.plain()
        for base in (self._fused.base, self._fused.base_alone()):
            if base.peak.nbytes <= limit_nbytes:
                return base
        self._fused.search(limit_nbytes)
        best = self._best(limit_nbytes)
        if best is None:
            best = next((step for step in self._small() if step.peak.nbytes <= limit_nbytes), None)
        if best is not None:
            list(self._by_torch(best.recomputed_flops))
        return self._best(limit_nbytes)

    def smallest(self) -> Candidate:
        """The candidate with the smallest peak of those tried for any budget: it is found again under each."""
        return min(self._small(), key=lambda candidate: (candidate.peak.nbytes, candidate.ns))

    def _small(self) -> Iterator[Candidate]:
        """Candidates with small peaks, the same ones in the same order under every budget."""
        yield from (self.plain(), self._fused.base, self._fused.base_alone())
        yield from self._fused.near_smallest()
        yield from self._by_torch(None)

    def _by_torch(self, below_flops: int | None) -> Iterator[Candidate]:
        """Torch's own cuts; with ``below_flops`` those that run fewer operations again."""
        for share in _SHARES:
            saved = self.joint.by_torch(share)
            if below_flops is None or sum(map(node_flops, self.joint.again(saved))) < below_flops:
                yield self.tried(saved, f"torch {share}", alone=True)

    def _best(self, limit_nbytes: int) -> Candidate | None:
        held = [candidate for candidate in self._tried.values() if candidate.peak.nbytes <= limit_nbytes]
        return min(held, key=lambda found: (found.recomputed_flops, found.ns, found.peak.nbytes), default=None)

    @cached_property
    def _fused(self) -> _Planned:
        return _Planned(self, self.joint.cut_for(()), BASE)

    def tried(
        self, saved: Iterable[fx.Node], source: str, entries: Sequence[Entry] = (), *, alone: bool = False
    ) -> Candidate:
        """The candidate of a saved set; with ``entries`` its backward runs calls again as often as they say.

        With ``alone`` it computes cheap values again for each part that reads them.
        """
        nodes = self.joint.with_random_values([*saved, *(() if source == PLAIN else self._kept)])
        key = frozenset(nodes), tuple(entries), alone
        if key not in self._tried:
            forward, backward = self.joint.cut(nodes, as_torch=source == PLAIN)
            again = self.joint.again(nodes)
            names, given = [node.name for node in again], entries
            if alone:
                entries = read_alone(backward, frozenset(names), {node.name for node in self.joint.costly})
            if entries:
                backward, names = with_copies(backward, names, entries)
                again = [self.joint.node_named[name] for name in names]
            ahead, back = lower_step(forward, backward, self.joint.outputs, self.joint.static)
            if source != PLAIN and (otherwise := self._rounded_otherwise(again, back)):
                if source == BASE:
                    self._kept |= otherwise
                self._tried[key] = self.tried([*nodes, *otherwise], source, given, alone=alone)
                return self._tried[key]
            self._workspace.measure((ahead, back))
            peak = step_peak(self.joint, forward, ahead, back, self._workspace)
            self._tried[key] = Candidate(
                tuple(nodes), forward, backward, ahead, back, peak,
                sum(map(node_flops, again)), step_ns(again, ahead, back), source,
            )  # fmt: skip
        return self._tried[key]

    def _rounded_otherwise(self, again: Iterable[fx.Node], back: Lowered) -> set[fx.Node]:
        """The calls that run again in vectors where the plain step runs them in scalars, or the other way round."""
        plain = self.plain()
        in_backward = set(self.joint.again(plain.saved))

        def in_scalars(node: fx.Node) -> bool:
            return node.name in (plain.back if node in in_backward else plain.ahead).scalar

        return {node for node in again if rounds(node) and (node.name in back.scalar) != in_scalars(node)}


class _Planned:
    """Candidates of the planner, which plans on the kernels of the step that saves ``saved``."""

    def __init__(self, search: Search, saved: Iterable[fx.Node], name: str) -> None:
        self._search, self._joint, self._name = search, search.joint, name
        self._saved = list(saved)
        self.base = search.tried(self._saved, name)
        self._kernels: KernelGraph = kernel_graph(
            self._joint, self.base.forward, self.base.ahead, self.base.back, search._workspace
        )  # fmt: skip
        self._solver = Solver(effort="fast")
        self._problem = self._solver.prepared(build_problem(self._kernels.graph, self._kernels.costs, Scope.TOTAL))

    def base_alone(self) -> Candidate:
        """The same step, with cheap values computed again for each part that reads them."""
        return self._search.tried(self._saved, self._name, alone=True)

    @cached_property
    def _stored_peak(self) -> int:
        """The peak that the planner sees where nothing runs again."""
        return self._solver.solve(self._problem, self._kernels.graph.sizes_nbytes).peak_nbytes

    def search(self, limit_nbytes: int) -> None:
        """Lower steps of plans until one comes close to the limit.

        What a step takes more or less than the limit moves the planner's limit, between those known to be too low and
        too high.
        """
        low = lowest = self._solver.smallest_peak(self._problem)
        high = self._stored_peak
        planned, made = limit_nbytes - self.base.peak.nbytes + high, set[int]()
        for _ in range(_PLANS):
            planned = max(lowest, planned if low < planned < high else (low + high) // 2)
            step = self._by_smallest_cut(self._decided(planned))
            made.add(id(step))
            over = step.peak.nbytes - limit_nbytes
            low, high = (low, planned) if over > 0 else (planned, high)
            close = over <= 0 and step.peak.nbytes >= _CLOSE * limit_nbytes
            if close or len(made) == _ROUNDS or high - low <= (1 - _CLOSE) * limit_nbytes:
                return
            planned -= over

    def near_smallest(self) -> Iterator[Candidate]:
        """The steps of plans near the planner's smallest peak."""
        lowest = self._solver.smallest_peak(self._problem)
        way = self._stored_peak - lowest
        for share in _NEAR_SMALLEST:
            plan = self._decided(lowest + int(share * way))
            yield self._by_smallest_cut(plan)
            if self._again(plan):
                yield self._by_copies(plan)

    def _decided(self, limit_nbytes: int) -> Decisions:
        decisions = self._solver.solve(self._problem, limit_nbytes).decisions
        assert decisions is not None  # the planner has reached this limit
        return decisions

    def _by_smallest_cut(self, plan: Decisions) -> Candidate:
        """The smallest cut that runs the costly calls of a plan's recomputations again, each once.

        It may save values inside of kernels, and what fuses runs again for nothing. What the plan saves stays saved,
        if the plan computes it again later too.
        """
        stored, again = self._stored(plan), self._again(plan)
        ops = [entry for entry in again if not stored & set(self._kernels.graph.ops[entry].writes)]
        nodes = {node for entry in ops for node in self._kernels.origins[entry]}
        return self._search.tried(
            self._joint.cut_for(nodes & self._joint.costly), f"{self._name}, smallest", alone=True
        )

    def _by_copies(self, plan: Decisions) -> Candidate:
        """The plan's own cut, with a copy for each time that it runs a call."""
        saved = [node for storage in self._stored(plan) for node in self._kernels.held[storage]]
        return self._search.tried(saved, f"{self._name}, copies", self._entries(plan))

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
