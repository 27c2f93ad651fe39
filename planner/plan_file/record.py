"""A plan: a schedule, everything that is promised about it, and the graph that it was made for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib import import_module

from ..annotations import Source
from ..schedule import Schedule, StepKind
from ..simulate import Timeline
from ..training_graph import OpCost, TrainingGraph
from ..units import counted, format_nbytes, percent

FORMAT = "ogc-plan"
VERSION = 2
"""The version of plans that know the nodes of their file; others are written as version 1."""
RANDOM_STATE_SUFFIX = "#random_state"
EFFORT_NOTE = "effort "
"""Prefix of the note that names an effort other than the default one."""
STOPPED_NOTE = "stopped on request"
"""The note of a plan whose search the user stopped."""
TAKEN_OVER_NOTES = ("decisions of the plan ", "not searched: ")
"""How the note begins of a plan that was not searched for: nothing is proven about other plans."""


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

    @property
    def taken_over(self) -> bool:
        """Whether the decisions come from another plan, or from no search."""
        return any(note.startswith(TAKEN_OVER_NOTES) for note in self.notes)

    @property
    def other_notes(self) -> tuple[str, ...]:
        """The notes beside those on the search."""
        return tuple(note for note in self.notes if note != STOPPED_NOTE and not note.startswith(EFFORT_NOTE))


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """A schedule with everything that is promised about it: bytes in ``_nbytes``, nanoseconds in ``_ns``.

    Attributes:
        model: what was planned.
        budget: what was asked for.
        graph: the training step, whose ops and storages the schedule numbers.
        costs: time and workspace of each op.
        schedule: the steps, in order.
        timeline: the memory after and during each of them.
        peak: the peaks of the plan and of a step that stores everything, and their proven floors.
        time: the time of recomputations, and of a step that stores everything.
        certificate: what is proven about the plan, and how it was found.
        modules: the path of the module that each storage comes from.

    Example:
        >>> made = plan(load_model("model.onnx"), "80%")
        >>> made.peak.activation_nbytes <= made.budget.nbytes
        True
        >>> print(made.covers)
        activations and workspace
    """

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

    def __repr__(self) -> str:
        return f"Plan({self.outcome}\n     {self.choices})"

    def summary(self, *, verbose: bool = False) -> str:
        """The report on the plan, as ``ogc-plan show`` prints it.

        Args:
            verbose: whether to list all that was assumed, kept and recomputed.

        Returns:
            Lines of text without colours.

        Raises:
            PlanMismatchError: the plan does not keep what it promises.

        Example:
            >>> print(plan(load_model("model.onnx"), "80%").summary())  # doctest: +ELLIPSIS
            model        fixed.onnx, ...
        """
        # The report knows plans, and is loaded where one is asked for it.
        text: str = import_module("..display.plan_report", __package__).text_of(self, verbose=verbose)
        return text

    def _repr_html_(self) -> str:
        """The report as a notebook shows it. Raises PlanMismatchError as `summary` does."""
        frame: str = import_module("..display.html.page", __package__).frame_of(self)
        return frame

    @property
    def outcome(self) -> str:
        """One line: the budget, the peak that it bounds with that of a step that stores everything, overhead, gap."""
        total = self.budget.scope == "total"
        peak, whole = self.peak.activation_nbytes, self.peak.store_all_activation_nbytes
        if total:
            peak, whole = self.peak.total_nbytes, self.peak.store_all_total_nbytes
        gap = f"gap {percent(self.gap)}" if self.certificate.bound_class or not self.time.recompute_ns else "no bound"
        return (
            f"budget {self.budget.text}: {self.budget.scope.removesuffix('s')} peak {format_nbytes(peak)}, store-all "
            f"{format_nbytes(whole)}, overhead {percent(self.time.overhead)}, {gap}"
        )

    @property
    def choices(self) -> str:
        """One line: how much is kept and recomputed."""
        runs, ops = self.recomputed, counted(len(self.graph.ops), "op")
        again = f" in {sum(runs.values()):,} runs" if sum(runs.values()) != len(runs) else ""
        storages = counted(len(self.graph.storages), "activation storage")
        return f"{len(self.kept):,} of {storages} kept, {len(runs):,} of {ops}{again} recomputed"

    @property
    def covers(self) -> str:
        """One line: the memory that the budget bounds."""
        if self.budget.scope != "total":
            return "activations and workspace"
        states, named = self.graph.stationary.optimizer_nbytes, (self.budget.optimizer or "").partition(":")[0]
        held = ["parameters, gradients, buffers, arguments, activations, workspace"]
        held += [f"states of {named} ({format_nbytes(states)})"] if states else []
        source = self.model.annotations
        if source is not None and source.device.startswith("cuda") and not self.model.sha256:
            held += ["the CUDA context, what cuBLAS keeps and what the allocator reserves"]
        return ", ".join(held)

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
