"""A plan: a schedule, everything that is promised about it, and the graph that it was made for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..annotations import Source
from ..schedule import Schedule, StepKind
from ..simulate import Timeline
from ..training_graph import OpCost, TrainingGraph

FORMAT = "ogc-plan"
VERSION = 1
RANDOM_STATE_SUFFIX = "#random_state"
EFFORT_NOTE = "effort "
"""Prefix of the note that names an effort other than the default one."""
STOPPED_NOTE = "stopped on request"
"""The note of a plan whose search the user stopped."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The model of a plan: file name (without folder), hash, graph fingerprint and what was assumed.

    ``annotations`` is given if an adapter derived the graph; no training rules were applied then, and ``rules_version``
    is 0.
    """

    file: str
    sha256: str
    fingerprint: str
    producer: str
    opset: int
    dims: tuple[tuple[str, int], ...]
    batch: int | None
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    assumed: tuple[str, ...]
    rules_version: int
    annotations: Source | None = None


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """The budget: ``nbytes`` bounds the peak of ``scope`` and excludes ``headroom_nbytes``."""

    text: str
    nbytes: int
    scope: str
    headroom_nbytes: int
    optimizer: str | None
    grad_accumulation: bool
    frozen: tuple[str, ...]
    device: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """Total and activation peaks in bytes: of the plan, of store-all, and the proven floor of each."""

    total_nbytes: int
    activation_nbytes: int
    store_all_total_nbytes: int
    store_all_activation_nbytes: int
    floor_total_nbytes: int
    floor_activation_nbytes: int


@dataclass(frozen=True, slots=True)
class Times:
    """Recomputation and store-all step time in ns; ``source`` names where the times come from."""

    recompute_ns: int
    store_all_ns: int
    source: str

    @property
    def overhead(self) -> float:
        """Recomputation time as a share of a store-all step."""
        return self.recompute_ns / self.store_all_ns if self.store_all_ns else 0.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """How good the plan is proven to be: no plan of ``bound_class`` recomputes for less than ``bound_ns``."""

    status: str
    bound_ns: int
    bound_class: str
    strategy: str
    seed: int
    stopped_early: bool
    solver: str
    notes: tuple[str, ...] = ()

    @property
    def effort(self) -> str:
        """The effort of the search: fast, default or high."""
        named = [note.removeprefix(EFFORT_NOTE) for note in self.notes if note.startswith(EFFORT_NOTE)]
        return named[0] if named else "default"

    @property
    def stopped_on_request(self) -> bool:
        """Whether the user, not a time limit, stopped the search."""
        return STOPPED_NOTE in self.notes


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule with everything that is promised about it."""

    model: ModelRecord
    budget: BudgetRecord
    graph: TrainingGraph
    costs: tuple[OpCost, ...]
    schedule: Schedule
    timeline: Timeline
    peak: Peaks
    time: Times
    certificate: Certificate
    modules: tuple[tuple[str, str], ...] = ()

    @property
    def gap(self) -> float:
        """(recomputation - bound) / store-all step time."""
        return (self.time.recompute_ns - self.certificate.bound_ns) / max(1, self.time.store_all_ns)

    @property
    def recomputed(self) -> dict[str, int]:
        """How often each op is recomputed, by name, in forward order."""
        runs = Counter(step.index for step in self.schedule if step.kind is StepKind.RECOMPUTE)
        return {self.graph.ops[index].name: runs[index] for index in sorted(runs)}

    @property
    def kept(self) -> tuple[str, ...]:
        """Storages that stay alive from their forward into the backward."""
        live: set[int] = set()
        for step in self.schedule:
            if step.kind is StepKind.BACKWARD:
                break
            if step.kind is StepKind.FORWARD:
                live.update(self.graph.ops[step.index].writes)
            elif step.kind is StepKind.FREE and not step.random_state:
                live.discard(step.index)
        return tuple(self.graph.storages[s].name for s in sorted(live))
