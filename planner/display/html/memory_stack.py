"""Memory over a step by kind: every computation of a schedule at the moment when it holds the most."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...arena.step_intervals import Life, LifeKind, step_lives
from ...problem import Scope
from ...schedule import Schedule, StepKind
from ...training_graph import OpCost, TrainingGraph


class Kind(Enum):
    """What memory holds, in the order in which it is stacked."""

    PARAMETER = "parameters"
    FIXED = "inputs and buffers"
    OPTIMIZER = "optimizer states"
    PARAMETER_GRADIENT = "parameter gradients"
    KEPT = "kept activations"
    PASSING = "activations freed in the forward"
    RECOMPUTED = "recomputed activations"
    GRADIENT = "activation gradients"
    WORKSPACE = "workspace"


KINDS = tuple(Kind)
ACTIVATIONS = (Kind.KEPT, Kind.PASSING, Kind.RECOMPUTED, Kind.GRADIENT, Kind.WORKSPACE)
"""The kinds that a budget on activations counts."""
_AT = {kind: position for position, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class Stack:
    """Bytes by kind for each computation, at the moment when it holds the most.

    Attributes:
        kinds: The kinds that are counted.
        steps: The steps of the schedule that compute; frees come between them and never hold more.
        moments: For each of them the moment of `step_lives`.
        nbytes: For each of them the bytes of each kind. They add up to the replay's.
    """

    kinds: tuple[Kind, ...]
    steps: tuple[int, ...]
    moments: tuple[int, ...]
    nbytes: tuple[tuple[int, ...], ...]

    @property
    def peak(self) -> int:
        """The position of the first computation that holds the most."""
        return max(range(len(self.nbytes)), key=lambda i: sum(self.nbytes[i]))

    @property
    def peak_nbytes(self) -> int:
        """The most that a computation holds."""
        return sum(self.nbytes[self.peak])


class StepMemory:
    """A schedule with the life of every allocation, from which stacks are made."""

    def __init__(self, graph: TrainingGraph, costs: tuple[OpCost, ...], schedule: Schedule) -> None:
        self.graph, self.costs, self.schedule = graph, costs, schedule
        self.lives = step_lives(graph, costs, schedule)
        self.backward_at = next(
            (n for n, step in enumerate(schedule) if step.kind is StepKind.BACKWARD), len(schedule.steps)
        )
        self._by_moment = self._held()

    def kind_of(self, life: Life) -> Kind:
        """The kind of an allocation; the state of a random generator counts with what is kept."""
        if life.kind is LifeKind.WORKSPACE:
            return Kind.WORKSPACE
        if life.kind is LifeKind.GRADIENT:
            return Kind.GRADIENT if life.activation else Kind.PARAMETER_GRADIENT
        if self.schedule.steps[life.first_step].kind is StepKind.RECOMPUTE:
            return Kind.RECOMPUTED
        return Kind.KEPT if life.last_step >= self.backward_at else Kind.PASSING

    def fixed(self) -> dict[Kind, int]:
        """What lives through the whole step."""
        held = self.graph.stationary
        return {
            Kind.PARAMETER: held.parameter_nbytes,
            Kind.FIXED: held.input_nbytes + held.buffer_nbytes,
            Kind.OPTIMIZER: held.optimizer_nbytes,
            Kind.PARAMETER_GRADIENT: held.accumulated_gradient_nbytes,
        }

    def stack(self, scope: Scope) -> Stack:
        """The bytes that a budget of ``scope`` counts."""
        kinds = KINDS if scope is Scope.TOTAL else ACTIVATIONS
        taken, workspace = [_AT[kind] for kind in kinds], kinds.index(Kind.WORKSPACE)
        ends = (*self.lives.first_moment[1:], self.lives.moments)
        steps, moments, nbytes = [], [], []
        for number, step in enumerate(self.schedule):
            if step.kind is StepKind.FREE:
                continue
            first = self.lives.first_moment[number]
            rows = [[self._by_moment[moment][at] for at in taken] for moment in range(first, ends[number])]
            cost = self.costs[step.index]
            if step.kind is StepKind.BACKWARD and scope is Scope.TOTAL:
                rows[0][workspace] = cost.backward_workspace_nbytes  # the lives have the part that activations count
            most = max(range(len(rows)), key=lambda i: sum(rows[i]))
            steps.append(number)
            moments.append(first + most)
            nbytes.append(tuple(rows[most]))
        return Stack(kinds, tuple(steps), tuple(moments), tuple(nbytes))

    def _held(self) -> list[list[int]]:
        """For each moment the bytes of each kind."""
        changes: list[list[tuple[int, int]]] = [[] for _ in range(self.lives.moments + 1)]
        for life in self.lives.lives:
            at = _AT[self.kind_of(life)]
            changes[life.begin].append((at, life.nbytes))
            changes[life.end].append((at, -life.nbytes))
        fixed = self.fixed()
        held, rows = [fixed.get(kind, 0) for kind in KINDS], []
        for change in changes[:-1]:
            for at, nbytes in change:
                held[at] += nbytes
            rows.append(list(held))
        return rows


def binned(stack: Stack, most: int) -> tuple[range, ...]:
    """The computations in at most ``most`` equal ranges."""
    count = len(stack.steps)
    width = min(count, most)
    return tuple(range(i * count // width, (i + 1) * count // width) for i in range(width))


def highest(stack: Stack, within: range) -> int:
    """The computation of a range that holds the most: no peak is lost."""
    return max(within, key=lambda i: sum(stack.nbytes[i]))
