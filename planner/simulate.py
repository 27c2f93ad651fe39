"""The simulator: replays a schedule step by step and counts bytes.

It shares no code with the strategies, with `Problem` or with `lower`. Live storages are a set, gradients are
reference-counted allocations, and every step is checked before it runs. README.md, "What is counted", has the rules in
words.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .errors import PlanMismatchError
from .schedule import Schedule, Step, StepKind
from .training_graph import BackwardOp, GradientSum, OpCost, TrainingGraph


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bytes of every step: the peak *during* it (total and activations), and what is live *after* it.

    ``time_ns`` is the time of the whole training step, ``recompute_ns`` the part that recomputation adds.
    """

    total_nbytes: tuple[int, ...]
    activation_nbytes: tuple[int, ...]
    after_nbytes: tuple[int, ...]
    time_ns: int
    recompute_ns: int

    @property
    def peak_total_nbytes(self) -> int:
        """Peak of everything."""
        return max(self.total_nbytes)

    @property
    def peak_activation_nbytes(self) -> int:
        """Peak without stationary memory and parameter gradients."""
        return max(self.activation_nbytes)


@dataclass(slots=True)
class _Allocation:
    """The memory of a gradient: its size, its references, and whether it is a parameter's final gradient."""

    nbytes: int
    references: int = 0
    finished: bool = False


class _Replay:
    def __init__(self, graph: TrainingGraph, costs: tuple[OpCost, ...], schedule: Schedule) -> None:
        self.graph, self.costs = graph, costs
        self.live: set[int] = set()
        self.states: set[int] = set()
        self.pinned = frozenset(graph.outputs)
        self.ran: set[int] = set()
        self.done: set[int] = set()
        self.recomputed = {step.index for step in schedule if step.kind is StepKind.RECOMPUTE}
        self.held = graph.stationary.total_nbytes
        self.finished_nbytes = 0  # parameter gradients
        self.stationary = graph.stationary.total_nbytes
        self.allocations: dict[int, _Allocation] = {}
        self.missing = [0] * len(graph.gradients)  # contributions still to come
        self.takers = [0] * len(graph.gradients)  # takes and sums still to come
        for backward in (op.backward for op in graph.ops if op.backward):
            for gradient in (*(e.gradient for e in backward.gives), *(total.result for total in backward.sums)):
                self.missing[gradient] += 1
            for gradient in (*backward.takes, *(g for total in backward.sums for g in total.operands)):
                self.takers[gradient] += 1
        ended = {gradient for op in graph.ops if op.backward for gradient in op.backward.ends}
        self.touched = [_touched(op.backward) & ended if op.backward else set[int]() for op in graph.ops]
        self.unfinished = Counter(gradient for touched in self.touched for gradient in touched)
        self.seeded = False
        self.peak = 0
        self.activation_peak = 0

    def mark(self, extra: int = 0, activation_extra: int | None = None) -> None:
        """Record the bytes of this moment; ``extra`` are freed at once. None: the same extra for activations."""
        self.peak = max(self.peak, self.held + extra)
        activations = self.held - self.stationary - self.finished_nbytes
        self.activation_peak = max(
            self.activation_peak, activations + (extra if activation_extra is None else activation_extra)
        )

    def fail(self, position: int, what: str, step: Step) -> PlanMismatchError:
        named = self.graph.storages if step.kind is StepKind.FREE and not step.random_state else self.graph.ops
        name = named[step.index].name
        return PlanMismatchError(
            f"step {position} ({step.kind.value} {name!r}) {what}",
            remedy="make the plan again for this model",
        )

    def forward(self, position: int, step: Step) -> int:
        op, cost = self.graph.ops[step.index], self.costs[step.index]
        first = step.kind is StepKind.FORWARD
        if first == (step.index in self.ran):
            raise self.fail(position, "is a repeated forward" if first else "recomputes an op that has not run", step)
        if op.once and not first:
            raise self.fail(position, "recomputes an op that must run only once", step)
        for storage in op.reads:
            if storage not in self.live:
                raise self.fail(position, f"reads {self.graph.storages[storage].name!r}, which is not alive", step)
        if first and step.index in self.recomputed and op.random_state_nbytes:
            self.states.add(step.index)
            self.held += op.random_state_nbytes
        elif not first and op.random_state_nbytes and step.index not in self.states:
            raise self.fail(position, "needs a generator state that was freed", step)
        self.ran.add(step.index)
        # A recomputation allocates every output; a duplicate of a live storage is freed at the end of the step.
        duplicates = sum(self.graph.storages[s].nbytes for s in op.writes if s in self.live)
        fresh = [s for s in op.writes if s not in self.live]
        self.live.update(fresh)
        self.held += sum(self.graph.storages[s].nbytes for s in fresh)
        self.mark(duplicates + cost.forward_workspace_nbytes)
        return cost.forward_ns

    def backward(self, position: int, step: Step) -> int:
        op, cost = self.graph.ops[step.index], self.costs[step.index]
        backward = op.backward
        if backward is None or step.index in self.done:
            raise self.fail(position, "has no backward left to run", step)
        self.start_backward(position, step)
        for storage in backward.reads:
            if storage not in self.live:
                raise self.fail(position, f"reads {self.graph.storages[storage].name!r}, which is not alive", step)
        for gradient in backward.takes:
            if self.missing[gradient]:
                raise self.fail(position, f"runs before {self.graph.gradients[gradient].name!r} is complete", step)
        contributions: list[tuple[int, _Allocation]] = []
        for edge in backward.gives:
            self.missing[edge.gradient] -= 1
            shared = self.allocations.get(edge.alias_of) if edge.alias_of is not None else None
            if shared is None:
                shared = self.allocation(edge.gradient)
            shared.references += 1
            contributions.append((edge.gradient, shared))
        to_come = Counter(gradient for gradient, _ in contributions)
        self.finish(contributions, to_come)
        self.mark(cost.backward_workspace_nbytes, cost.backward_activation_workspace_nbytes)
        for gradient in backward.takes:
            self.release(gradient)
        for gradient, contribution in contributions:
            to_come[gradient] -= 1
            present = self.allocations.get(gradient)
            if present is None:
                self.allocations[gradient] = contribution
                continue
            total = self.allocation(gradient)  # a fan-in sum holds both operands and the result for a moment
            total.references += 1
            last = not self.missing[gradient] and not to_come[gradient]
            if last and self.graph.gradients[gradient].parameter:
                self.finished(total)
            self.mark()
            self.drop(contribution)
            self.drop(present)
            self.allocations[gradient] = total
        for summed in backward.sums:
            self.add_up(position, step, summed)
        self.end(step.index)
        self.done.add(step.index)
        return cost.backward_ns

    def add_up(self, position: int, step: Step, summed: GradientSum) -> None:
        """Run a sum that the graph spells out: for a moment, its operands and its result are alive."""
        for operand in summed.operands:
            if self.missing[operand] or operand not in self.allocations:
                raise self.fail(position, f"sums {self.graph.gradients[operand].name!r} before it is complete", step)
        self.missing[summed.result] -= 1
        total = self.allocations[summed.result] = self.allocation(summed.result)
        total.references = 1
        if self.graph.gradients[summed.result].parameter:
            self.finished(total)
        self.mark()
        for operand in summed.operands:
            self.release(operand)

    def start_backward(self, position: int, step: Step) -> None:
        """Hand in the output gradients; every forward must have run and every output must be alive."""
        if self.seeded:
            return
        if len(self.ran) < len(self.graph.ops):
            missing = next(op.name for i, op in enumerate(self.graph.ops) if i not in self.ran)
            raise self.fail(position, f"starts the backward before op {missing!r} has run", step)
        self.seeded = True
        self.seed()

    def seed(self) -> None:
        for gradient in self.graph.seeds:
            allocation = self.allocation(gradient)
            allocation.references = 1
            self.allocations[gradient] = allocation

    def allocation(self, gradient: int) -> _Allocation:
        nbytes = self.graph.gradients[gradient].nbytes
        self.held += nbytes
        return _Allocation(nbytes)

    def finish(self, contributions: list[tuple[int, _Allocation]], counts: Counter[int]) -> None:
        """Mark parameter gradients that have a single contribution: they are final as soon as they exist."""
        for gradient, allocation in contributions:
            alone = counts[gradient] == 1 and gradient not in self.allocations
            if self.graph.gradients[gradient].parameter and alone and not self.missing[gradient]:
                self.finished(allocation)

    def finished(self, allocation: _Allocation) -> None:
        allocation.finished = True
        self.finished_nbytes += allocation.nbytes

    def end(self, index: int) -> None:
        """Release the gradients of parameters that waited for this backward alone: they have been accumulated."""
        for gradient in self.touched[index]:
            self.unfinished[gradient] -= 1
            if not self.unfinished[gradient] and gradient in self.allocations:
                self.drop(self.allocations.pop(gradient))

    def release(self, gradient: int) -> None:
        """Count one user of a gradient; the last one frees it, unless it is a parameter's."""
        self.takers[gradient] -= 1
        if not self.takers[gradient] and gradient in self.allocations and not self.graph.gradients[gradient].parameter:
            self.drop(self.allocations.pop(gradient))

    def drop(self, allocation: _Allocation) -> None:
        allocation.references -= 1
        if allocation.references == 0:
            self.held -= allocation.nbytes
            self.finished_nbytes -= allocation.nbytes if allocation.finished else 0

    def free(self, position: int, step: Step) -> None:
        if step.random_state:
            if step.index not in self.states:
                raise self.fail(position, "frees a generator state twice", step)
            self.states.discard(step.index)
            self.held -= self.graph.ops[step.index].random_state_nbytes
            return
        if step.index not in self.live:
            raise self.fail(position, "frees a storage that is not alive", step)
        if step.index in self.pinned:
            raise self.fail(position, "frees a model output, which the caller still holds", step)
        self.live.discard(step.index)
        self.held -= self.graph.storages[step.index].nbytes


def _touched(backward: BackwardOp) -> set[int]:
    """The gradients that a backward makes, uses or ends."""
    summed = (gradient for total in backward.sums for gradient in (total.result, *total.operands))
    return {*(edge.gradient for edge in backward.gives), *backward.takes, *summed, *backward.ends}


def simulate(graph: TrainingGraph, costs: tuple[OpCost, ...], schedule: Schedule) -> Timeline:
    """Replay ``schedule`` and return bytes per step and times.

    Raises PlanMismatchError, which names the step, for a step that reads a freed storage, frees one twice or runs an op
    out of order, and for a schedule that leaves something undone.
    """
    replay = _Replay(graph, costs, schedule)
    total, activations, after = [], [], []
    forward_ns = backward_ns = 0
    first_forward_ns = sum(cost.forward_ns for cost in costs)
    last_forward = max(
        (i for i, step in enumerate(schedule) if step.kind is StepKind.FORWARD), default=-1
    )  # the caller hands in its gradients once the forward has ended
    for position, step in enumerate(schedule):
        replay.peak, replay.activation_peak = replay.held, replay.held - replay.stationary - replay.finished_nbytes
        if position > last_forward and step.kind is not StepKind.FREE:
            replay.start_backward(position, step)
            replay.mark()
        if step.kind is StepKind.FREE:
            replay.free(position, step)
        elif step.kind is StepKind.BACKWARD:
            backward_ns += replay.backward(position, step)
        else:
            forward_ns += replay.forward(position, step)
        total.append(replay.peak)
        activations.append(replay.activation_peak)
        after.append(replay.held)
    undone = [op.name for i, op in enumerate(graph.ops) if op.backward and i not in replay.done]
    if undone or len(replay.ran) < len(graph.ops):
        never = undone or [op.name for i, op in enumerate(graph.ops) if i not in replay.ran]
        raise PlanMismatchError(
            f"the schedule ends without running {never[0]!r}", remedy="make the plan again for this model"
        )
    return Timeline(
        tuple(total), tuple(activations), tuple(after), forward_ns + backward_ns, forward_ns - first_forward_ns
    )
