"""The choice of the saved values: proposals in the order of what they run again, judged by the code they become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from .copies import Entry, read_alone, with_copies
from .forms import Form, Forms
from .joint_graph import JointGraph, lay_inputs_out
from .kernel_graph import kernel_graph
from .lowering import Lowered, lower_step
from .peak import StepPeak, step_peak
from .proposals import Plans, Proposal
from .scheduling import compute_as
from .work import node_flops, node_work, rounds
from .workspace import WorkspaceMeter

PLAIN = "torch"
"""The step that torch compiles without a budget."""

BASE = "cut"
"""The step that runs nothing costly again."""

STORED = "stored"
"""The step that runs nothing again."""

_SHARES = (0.5, 0.4, 0.2)
"""The values of ``activation_memory_budget`` whose cuts are proposed."""

_NEARLY = 0.97
"""A plan's code rarely holds less than this share of what is expected."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step that has been lowered: what it saves, its code and its peak, the floating-point operations run again.

    ``as_plain``: functions, sums, and library calls round as the plain step's do.
    """

    saved: tuple[fx.Node, ...]
    forward: fx.GraphModule
    backward: fx.GraphModule
    ahead: Lowered
    back: Lowered
    peak: StepPeak
    recomputed_flops: int
    source: str
    as_plain: bool

    @property
    def kernels(self) -> int:
        """The number of kernels of forward and backward."""
        return len(self.ahead.kernels) + len(self.back.kernels)


class Search:
    """Lowers steps of one joint graph, each once."""

    def __init__(self, joint: JointGraph, workspace: WorkspaceMeter) -> None:
        self.joint = joint
        self._workspace = workspace
        self._kept = set[fx.Node]()  # saved by each step but the plain one
        self._tried: dict[Proposal, Candidate] = {}
        self._missed: dict[str, int] = {}

    @property
    def lowerings(self) -> int:
        """How many steps were lowered."""
        return len(self._tried)

    @cached_property
    def plain(self) -> Candidate:
        """The step that torch compiles without a budget."""
        return self._lowered(self._proposal(self.joint.by_torch(1.0), PLAIN))

    def within(self, limit_nbytes: int) -> Candidate | None:
        """The first of the plain step and the proposals that holds a limit, None if none is found.

        The order is the same under every limit, so that a smaller limit runs no fewer operations again.
        """
        if self.plain.peak.nbytes <= limit_nbytes:
            return self.plain
        for proposal in self._proposals:
            if self._least_nbytes(proposal) <= limit_nbytes:
                step = self._lowered(proposal)
                if step.peak.nbytes <= limit_nbytes and step.as_plain:
                    return step
        return self.smallest() if self.smallest().peak.nbytes <= limit_nbytes else None

    def smallest(self) -> Candidate:
        """The candidate with the smallest peak found: the same one under every limit."""
        best = self.plain
        for proposal in sorted(self._proposals, key=self._least_nbytes):
            if self._least_nbytes(proposal) >= best.peak.nbytes:
                break
            step = self._lowered(proposal)
            if step.as_plain:
                best = min(best, step, key=lambda step: step.peak.nbytes)
        return best

    def _least_nbytes(self, proposal: Proposal) -> int:
        """The least bytes that a step is expected to hold: it is not lowered for a limit below.

        A plan of a family holds as much more or less than it was planned for as the one in the middle does, nearly.
        Other steps hold what they save, and at least what the step that computes cheap values for each reader holds
        beside what it saves.
        """
        if proposal.planned_nbytes is not None:
            return int(_NEARLY * (proposal.planned_nbytes + self._missed_nbytes(proposal.source)))
        return proposal.saved_nbytes + self._beside_nbytes

    def _missed_nbytes(self, source: str) -> int:
        """By how much the plan in the middle of a family misses what it was planned for."""
        if source not in self._missed:
            family = [other for other in self._proposals if other.source == source]
            middle = sorted(family, key=lambda other: other.planned_nbytes or 0)[len(family) // 2]
            self._missed[source] = self._lowered(middle).peak.nbytes - (middle.planned_nbytes or 0)
        return self._missed[source]

    @cached_property
    def _beside_nbytes(self) -> int:
        return self._alone.peak.nbytes - self._proposal(self._alone.saved, BASE).saved_nbytes

    @cached_property
    def _cuts(self) -> list[list[fx.Node]]:
        """The smallest sets of saved values for which nothing costly runs again."""
        return self.joint.cuts_for(())

    @cached_property
    def _base(self) -> Candidate:
        return self._lowered(self._proposal(self._cuts[0], BASE))

    @cached_property
    def _alone(self) -> Candidate:
        return self._lowered(self._proposal(self._base.saved, BASE, alone=True))

    @cached_property
    def _proposals(self) -> list[Proposal]:
        """Every proposal once: those first that run the fewest operations again, of these those that save most."""
        stored = self._lowered(self._proposal(self.joint.read_later(), STORED))
        found = [self._proposal(step.saved, step.source) for step in (stored, self._base)]
        found.append(self._proposal(self._base.saved, BASE, alone=True))
        found += [self._proposal(cut, BASE, alone=alone) for cut in self._cuts[1:] for alone in (False, True)]
        found += [self._proposal(self.joint.by_torch(share), f"torch {share}", alone=True) for share in _SHARES]
        for step in (self._base, stored):
            kernels = kernel_graph(self.joint, step.forward, step.ahead, step.back, self._workspace)
            found += Plans(self.joint, kernels, step.peak.nbytes).proposals(self._proposal, step.source)
        return sorted(dict.fromkeys(found), key=lambda proposal: (proposal.work, -proposal.saved_nbytes))

    def _proposal(
        self,
        saved: Iterable[fx.Node],
        source: str,
        entries: Sequence[Entry] = (),
        *,
        alone: bool = False,
        planned_nbytes: int | None = None,
    ) -> Proposal:
        nodes = list(saved) if source == PLAIN else self.joint.with_sums([*saved, *self._kept])
        again = [node.name for node in self.joint.again(nodes)]
        if entries:
            _, again = with_copies(self.joint.cut(nodes)[1], again, entries)
        work = sum(node_work(self.joint.node_named[name]) for name in again)
        return Proposal(tuple(nodes), tuple(entries), alone, source, work, self.joint.nbytes(nodes), planned_nbytes)

    def _lowered(self, proposal: Proposal) -> Candidate:
        """The step that a proposal becomes, with what would round otherwise saved too."""
        if proposal in self._tried:
            return self._tried[proposal]
        saved, source, entries = proposal.saved, proposal.source, proposal.entries
        forward, backward = self.joint.cut(saved, as_torch=source == PLAIN)
        names = [node.name for node in self.joint.again(saved)]
        if proposal.alone:
            entries = tuple(read_alone(backward, frozenset(names), {node.name for node in self.joint.costly}))
        if entries:
            backward, names = with_copies(backward, names, entries)
        if source != PLAIN:
            lay_inputs_out(forward, backward, self._forms)
            compute_as(forward, self.plain.ahead.forms)
            compute_as(backward, self._forms)
        ahead, back = lower_step(forward, backward, self.joint.outputs, self.joint.static)
        again = [self.joint.node_named[name] for name in names]
        if source != PLAIN and (otherwise := self._rounded_otherwise(again, back)):
            if source == BASE:
                self._kept |= otherwise
            mended = self._proposal([*saved, *otherwise], source, proposal.entries, alone=proposal.alone)
            self._tried[proposal] = self._lowered(mended)
            return self._tried[proposal]
        self._workspace.measure((ahead, back))
        peak = step_peak(self.joint, forward, ahead, back, self._workspace)
        made = Candidate(
            saved, forward, backward, ahead, back, peak, sum(map(node_flops, again)), source,
            source == PLAIN or self._as_plain(ahead, back),
        )  # fmt: skip
        self._tried[proposal] = made
        return made

    def _as_plain(self, ahead: Lowered, back: Lowered) -> bool:
        """Whether each function, sum, and library call is computed as in the plain step.

        A value that the plain step computes otherwise in its backward than in its forward may be saved all the same.
        """
        forms = self._forms
        return all(_within(found, self.plain.ahead.forms.get(name)) for name, found in ahead.forms.items()) and all(
            _within(found, forms.get(name)) for name, found in back.forms.items()
        )

    @cached_property
    def _forms(self) -> Forms:
        """How the plain step computes what its backward reads."""
        return {**self.plain.ahead.forms, **self.plain.back.forms}

    def _rounded_otherwise(self, again: Iterable[fx.Node], back: Lowered) -> set[fx.Node]:
        """The functions that run again in another form than the plain step's."""
        return {
            node
            for node in again
            if rounds(node) and not _within(back.forms.get(node.name), self._forms.get(node.name))
        }


def _within(forms: frozenset[Form] | None, plain: frozenset[Form] | None) -> bool:
    return forms is None or plain is None or forms <= plain
