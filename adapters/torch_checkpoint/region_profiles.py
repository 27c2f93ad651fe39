"""The cost and memory of each way to wrap a module, apart from the rest of the step.

A search over sets of modules needs these numbers once for each module: the bytes held before and during the backward of
a region are sums over earlier ops, whatever is wrapped there, except for storages that cross a region's border. The
chosen set is replayed exactly afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...planner.problem import Problem, build_problem
from ...planner.schedule import StepKind
from .eager_step import EagerStep
from .region_recompute import Wrapped, lowered, nested, region_entries, wrapped_with
from .regions import Region

MOST_SAVED = 8
DEEPEST = 2
LEAST_RECOMPUTED = 2
"""The most sets of saved ops that a region is offered with, the most levels of regions inside it, and the fewest ops
that such an inner region must recompute to be worth a second recomputation.
"""

SAVABLE = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "convolution", "native_layer_norm", "native_group_norm", "gelu", "_softmax",
    "_scaled_dot_product_flash_attention_for_cpu",
})  # fmt: skip
"""Ops of which eager PyTorch makes the same calls, in the same order, as the trace.

They are worth saving, and none has a form that writes in place: torch's policy would save the result of such a call and
not repeat its writing. Nor may one draw random numbers: a dropout that runs again after it would draw what the saved
call drew. Attention on a card may, for its own dropout, and its plan does not tell (random states of a card take none
of its bytes).
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """A way to wrap a region: its cost, and the memory it adds.

    ``kept_nbytes`` stay alive from the forward to the region's backward; ``during_nbytes`` is the peak of the region's
    own recomputation and backwards, gradients included, above what was kept before the region.
    """

    wrapped: Wrapped
    cost_ns: int
    kept_nbytes: int
    during_nbytes: int


class Profiler:
    """Profiles of the regions of one step.

    ``bare_nbytes[i]`` is what op ``i`` adds to all that is kept if it is not wrapped: the storages whose last backward
    reader it is.
    """

    def __init__(self, step: EagerStep) -> None:
        self.step = step
        self.problem: Problem = build_problem(step.graph, step.costs, step.scope)
        self.position = {op: k for k, op in enumerate(self.problem.backward_order)}
        self.nbytes = [storage.nbytes for storage in step.graph.storages]
        self.producer = step.graph.producer
        self.pinned = frozenset(step.graph.outputs)
        self.pinned_nbytes = self.problem.pinned_nbytes
        self.readers: list[list[int]] = [[] for _ in self.nbytes]  # ops whose backward reads a storage
        for index, op in enumerate(step.graph.ops):
            if op.backward is not None:
                for storage in op.backward.reads:
                    self.readers[storage].append(index)
        self.bare_nbytes = [0] * len(step.graph.ops)
        for storage, readers in enumerate(self.readers):
            if readers and storage not in self.pinned:
                self.bare_nbytes[readers[0]] += self.nbytes[storage]

    def backward_nbytes(self, index: int) -> int:
        """Gradients, workspace and outputs during the backward of an op; 0 if it has none."""
        return (
            int(self.problem.during_nbytes[self.position[index]]) + self.pinned_nbytes if index in self.position else 0
        )

    def profile(self, wrapped: Wrapped) -> Profile:
        """The profile of one way to wrap a region."""
        region, ops = wrapped.region, self.step.graph.ops
        entering = sum(self.nbytes[s] for s in region.inputs if s not in self.pinned and self._is_new(s, region))
        leaving = 0
        saved = {s for index in wrapped.saved for s in ops[index].writes}
        for index in region.ops:
            for storage in ops[index].writes:
                outside = any(reader > region.last for reader in self.readers[storage])
                inside = any(reader <= region.last for reader in self.readers[storage])
                if storage not in self.pinned and ((outside and inside) or (storage in saved and not outside)):
                    leaving += self.nbytes[storage]
        state = self.step.state_nbytes * sum(1 for _ in wrapped.all())
        again = (i for call in wrapped.all() for i in call.region.recomputed if i not in call.saved)
        cost = sum(self.step.costs[index].forward_ns for index in again)
        return Profile(wrapped, cost, entering + leaving + state, self._during(wrapped, saved) + entering + state)

    def _is_new(self, storage: int, region: Region) -> bool:
        """Whether `bare_nbytes` counts a storage that a region reads only from the region on."""
        readers = self.readers[storage]
        return not readers or readers[0] >= region.first

    def _during(self, wrapped: Wrapped, saved: set[int]) -> int:
        """The peak, during the region's backward, of gradients and of storages that the region makes."""
        region, ops = wrapped.region, self.step.graph.ops
        made = {s for index in region.ops for s in ops[index].writes}
        live = sum(self.nbytes[s] for s in saved - self.pinned)
        alive = set(saved)
        at = peak = 0
        steps = lowered(region_entries(self.step, wrapped, {}), frozenset())
        following: list[int] = []  # for each step the position of the next backward
        for step in reversed(steps.steps):
            at = self.position[step.index] if step.kind is StepKind.BACKWARD else at
            following.append(at)
        for step, at in zip(steps, reversed(following), strict=True):
            if step.kind is StepKind.FREE:
                if step.index in alive:
                    alive.discard(step.index)
                    live -= self.nbytes[step.index]
                continue
            if step.kind is StepKind.BACKWARD:
                peak = max(peak, live + self.backward_nbytes(step.index))
                continue
            fresh = [s for s in ops[step.index].writes if s in made and s not in alive]
            alive.update(fresh)
            live += sum(self.nbytes[s] for s in fresh)
            more = self.step.costs[step.index].forward_workspace_nbytes + self.step.state_nbytes
            peak = max(peak, live + more + int(self.problem.between_nbytes[at]) + self.pinned_nbytes)
        return peak

    def savable(self, region: Region) -> list[int]:
        """Ops of a region that can be saved with benefit, most time per byte first."""
        ops = self.step.graph.ops
        found = []
        for index in region.recomputed:
            op = ops[index]
            needed = bool(op.writes) and bool(self.readers[op.writes[0]])
            if op.op_type in SAVABLE and needed and not op.random_state_nbytes and not op.once:
                found.append(index)
        cost = self.step.costs
        return sorted(
            found,
            key=lambda i: (-cost[i].forward_ns / max(1, sum(self.nbytes[s] for s in ops[i].writes)), i),
        )

    def profiles(self, region: Region, inside: Sequence[Region], *, selective: bool) -> list[Profile]:
        """The ways to wrap a region that a search chooses from.

        Nothing saved; growing sets of saved ops; or the regions ``inside`` it checkpointed too: the largest, and then
        those in them. Not both: torch's policies do not nest.
        """
        ways = [Wrapped(region), *self._nested(region, inside)]
        if selective:
            order = self.savable(region)
            stride = max(1, -(-len(order) // MOST_SAVED))
            ways += [Wrapped(region, frozenset(order[:count])) for count in range(stride, len(order) + 1, stride)]
        return [self.profile(way) for way in ways]

    def _nested(self, region: Region, inside: Sequence[Region]) -> list[Wrapped]:
        """The region with the regions inside it checkpointed, to one level and to more."""
        ways: list[Wrapped] = []
        chosen: list[Region] = []
        for _ in range(DEEPEST):
            largest: list[Region] = []
            for candidate in inside:  # outer ones come first
                taken = candidate in chosen or (largest and candidate.first <= largest[-1].last)
                if not taken and len(candidate.recomputed) >= LEAST_RECOMPUTED:
                    largest.append(candidate)
            if not largest:
                break
            chosen += largest
            ways.append(wrapped_with(self.step, region, nested(self.step, chosen)))
        return ways
