"""A schedule becomes intervals: one life for each allocation of a step, from the moment it is made to its release.

Moments are finer than steps. A backward has one for its kernels and one for each sum of gradients after them; every
other step has one. At each moment the lives that count as activations add up to what the replay (simulate.py) counts;
the most of a step is the plan's timeline. The two share no code.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from ..plan_file.record import Plan
from ..schedule import Schedule, StepKind
from ..training_graph import BackwardOp, GradientEdge, OpCost, TrainingGraph
from .interval import Interval


class LifeKind(Enum):
    """What an allocation holds; GENERATOR_STATE is that of a random op which is recomputed."""

    STORAGE = "storage"
    GRADIENT = "gradient"
    WORKSPACE = "workspace"
    GENERATOR_STATE = "generator state"


@dataclass(frozen=True, slots=True)
class Life:
    """One allocation from the moment ``begin`` to just before the moment ``end``.

    Attributes:
        kind: What the allocation holds.
        names: Tensors, or the gradients that share it one after the other, or the op.
        nbytes: Its size.
        begin: The moment it is made.
        end: The moment after the last at which it is alive.
        first_step: The step of the schedule that makes it.
        last_step: The last step of the schedule during which it is alive.
        activation: Whether a budget on activations counts it: all but the final gradients of parameters.
        escapes: Whether it is alive after the step: outputs, and gradients that no backward releases.
    """

    kind: LifeKind
    names: tuple[str, ...]
    nbytes: int
    begin: int
    end: int
    first_step: int
    last_step: int
    activation: bool = True
    escapes: bool = False

    @property
    def interval(self) -> Interval:
        """The item to place."""
        return Interval(self.nbytes, self.begin, self.end)


@dataclass(frozen=True, slots=True)
class StepLives:
    """All lives of a step, by begin, and for each step of the schedule its first moment."""

    lives: tuple[Life, ...]
    first_moment: tuple[int, ...]
    moments: int


@dataclass(slots=True)
class _Open:
    """An allocation while the schedule is walked; ``end`` is -1 while it is alive."""

    kind: LifeKind
    names: list[str]
    nbytes: int
    begin: int
    first_step: int
    activation: bool = True
    references: int = 1
    end: int = -1
    last_step: int = -1


@dataclass(slots=True)
class _Walk:
    """The state of a walk: what is alive, by storage, by gradient and by op."""

    graph: TrainingGraph
    costs: tuple[OpCost, ...]
    moment: int = 0
    step: int = 0
    made: list[_Open] = field(default_factory=list)
    storages: dict[int, _Open] = field(default_factory=dict)
    gradients: dict[int, _Open] = field(default_factory=dict)
    states: dict[int, _Open] = field(default_factory=dict)
    to_come: Counter[int] = field(default_factory=Counter)
    to_use: Counter[int] = field(default_factory=Counter)
    to_touch: Counter[int] = field(default_factory=Counter)

    def begin(self, kind: LifeKind, names: list[str], nbytes: int) -> _Open:
        life = _Open(kind, names, nbytes, self.moment, self.step)
        self.made.append(life)
        return life

    def release(self, life: _Open) -> None:
        """Give one reference back; the last one ends the life with this moment."""
        life.references -= 1
        if not life.references:
            life.end, life.last_step = self.moment + 1, self.step

    def passing(self, kind: LifeKind, names: list[str], nbytes: int) -> None:
        """An allocation that lives during this moment only."""
        self.release(self.begin(kind, names, nbytes))

    # --- forward ------------------------------------------------------------------------------------------------

    def run_forward(self, op_index: int, keeps_state: bool) -> None:
        op = self.graph.ops[op_index]
        if keeps_state:
            self.states[op_index] = self.begin(LifeKind.GENERATOR_STATE, [op.name], op.random_state_nbytes)
        for storage in op.writes:
            life = self.begin(LifeKind.STORAGE, self.names_of(storage), self.graph.storages[storage].nbytes)
            if storage in self.storages:  # a duplicate of what is alive
                self.release(life)
            else:
                self.storages[storage] = life
        self.passing(LifeKind.WORKSPACE, [op.name], self.costs[op_index].forward_workspace_nbytes)

    def names_of(self, storage: int) -> list[str]:
        shared = self.graph.aliases[storage] if self.graph.aliases else ()
        return list(shared or (self.graph.storages[storage].name,))

    # --- backward -----------------------------------------------------------------------------------------------

    def count_uses(self) -> None:
        """How many contributions, uses and, for gradients that backwards end, backwards are to come."""
        backwards = [op.backward for op in self.graph.ops if op.backward is not None]
        ended = {gradient for backward in backwards for gradient in backward.ends}
        for backward in backwards:
            self.to_come.update(edge.gradient for edge in backward.gives)
            self.to_come.update(total.result for total in backward.sums)
            self.to_use.update(backward.takes)
            self.to_use.update(gradient for total in backward.sums for gradient in total.operands)
            self.to_touch.update(_touched(backward) & ended)

    def new_gradient(self, gradient: int) -> _Open:
        named = self.graph.gradients[gradient]
        return self.begin(LifeKind.GRADIENT, [named.name], named.nbytes)

    def run_backward(self, op_index: int, backward: BackwardOp) -> None:
        given = [self.contribution(edge) for edge in backward.gives]
        cost, name = self.costs[op_index], self.graph.ops[op_index].name
        workspace = cost.backward_activation_workspace_nbytes
        self.passing(LifeKind.WORKSPACE, [name], cost.backward_workspace_nbytes if workspace is None else workspace)
        left = Counter(edge.gradient for edge in backward.gives)
        for edge, life in zip(backward.gives, given, strict=True):
            self.mark_final(edge.gradient, life, left[edge.gradient] == 1 and edge.gradient not in self.gradients)
        for gradient in backward.takes:
            self.use(gradient)
        for edge, life in zip(backward.gives, given, strict=True):
            left[edge.gradient] -= 1
            before = self.gradients.get(edge.gradient)
            if before is None:
                self.gradients[edge.gradient] = life
                continue
            self.moment += 1
            total = self.new_gradient(edge.gradient)
            self.mark_final(edge.gradient, total, not left[edge.gradient])
            self.release(life)
            self.release(before)
            self.gradients[edge.gradient] = total
        for summed in backward.sums:
            self.moment += 1
            self.to_come[summed.result] -= 1
            total = self.gradients[summed.result] = self.new_gradient(summed.result)
            self.mark_final(summed.result, total, True)
            for gradient in summed.operands:
                self.use(gradient)
        for gradient in sorted(_touched(backward) & self.to_touch.keys()):
            self.to_touch[gradient] -= 1
            if not self.to_touch[gradient] and gradient in self.gradients:
                self.release(self.gradients.pop(gradient))

    def contribution(self, edge: GradientEdge) -> _Open:
        """The allocation of a contribution: its own, or that of a gradient which the backward takes."""
        self.to_come[edge.gradient] -= 1
        shared = None if edge.alias_of is None else self.gradients.get(edge.alias_of)
        if shared is None:
            return self.new_gradient(edge.gradient)
        shared.references += 1
        name = self.graph.gradients[edge.gradient].name
        if name not in shared.names:
            shared.names.append(name)
        return shared

    def mark_final(self, gradient: int, life: _Open, complete: bool) -> None:
        """The final gradient of a parameter is no activation."""
        if self.graph.gradients[gradient].parameter and complete and not self.to_come[gradient]:
            life.activation = False

    def use(self, gradient: int) -> None:
        """Count a take or a sum; the last one releases a gradient that is not a parameter's."""
        self.to_use[gradient] -= 1
        if not self.to_use[gradient] and gradient in self.gradients and not self.graph.gradients[gradient].parameter:
            self.release(self.gradients.pop(gradient))


def step_lives(graph: TrainingGraph, costs: tuple[OpCost, ...], schedule: Schedule) -> StepLives:
    """The lives of a schedule that the replay accepts; legality is not checked again."""
    walk = _Walk(graph, costs)
    walk.count_uses()
    recomputed = {step.index for step in schedule if step.kind is StepKind.RECOMPUTE}
    last_forward = max((n for n, step in enumerate(schedule) if step.kind is StepKind.FORWARD), default=-1)
    seeds, first_moment = list(graph.seeds), []
    for number, step in enumerate(schedule):
        walk.step = number
        first_moment.append(walk.moment)
        if number > last_forward and step.kind is not StepKind.FREE:
            while seeds:  # the caller hands them in once the forward has ended
                gradient = seeds.pop(0)
                walk.gradients[gradient] = walk.new_gradient(gradient)
        if step.kind is StepKind.FREE:
            walk.release((walk.states if step.random_state else walk.storages).pop(step.index))
        elif step.kind is StepKind.BACKWARD:
            backward = graph.ops[step.index].backward
            assert backward is not None
            walk.run_backward(step.index, backward)
        else:
            keeps_state = step.kind is StepKind.FORWARD and step.index in recomputed
            walk.run_forward(step.index, keeps_state and graph.ops[step.index].random_state_nbytes > 0)
        walk.moment += 1
    outputs = {id(walk.storages[storage]) for storage in graph.outputs if storage in walk.storages}
    lives = (_closed(life, walk.moment, len(schedule), id(life) in outputs) for life in walk.made if life.nbytes)
    return StepLives(tuple(lives), tuple(first_moment), walk.moment)


def step_intervals(plan: Plan, *, escaping: bool = True) -> tuple[Life, ...]:
    """The lives of a plan's step, in the order in which they begin.

    Without ``escaping``, those that are alive after the step are left out: outputs, and gradients that nothing
    releases. Whoever allocates the arena again for each step allocates these elsewhere.
    """
    lives = step_lives(plan.graph, plan.costs, plan.schedule).lives
    return lives if escaping else tuple(life for life in lives if not life.escapes)


def _closed(life: _Open, moments: int, steps: int, output: bool) -> Life:
    open_ended = life.end < 0
    return Life(
        life.kind,
        tuple(life.names),
        life.nbytes,
        life.begin,
        moments if open_ended else life.end,
        life.first_step,
        steps - 1 if open_ended else life.last_step,
        life.activation,
        open_ended and (output or life.kind is LifeKind.GRADIENT),
    )


def _touched(backward: BackwardOp) -> set[int]:
    """The gradients that a backward makes, uses or ends."""
    summed = (gradient for total in backward.sums for gradient in (total.result, *total.operands))
    return {*(edge.gradient for edge in backward.gives), *backward.takes, *summed, *backward.ends}
