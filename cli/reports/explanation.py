"""What `ogc-plan show MODEL` assumes about a model: sentences in groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...planner.autodiff import rule_table as backward_rules
from ...planner.autodiff.assumptions import Leaf, Parameters, parameters_of
from ...planner.costs.workspace import ESTIMATED
from ...planner.display.layout import field, listed, some
from ...planner.display.plan_report import FOLDED, not_covered
from ...planner.display.terminal import one_line
from ...planner.graph import Graph
from ...planner.model import Model
from ...planner.training_graph import TrainingGraph
from ...planner.units import counted, format_nbytes

if TYPE_CHECKING:
    from rich.console import Console

_MARKS = {
    "warning": (FOLDED,),
    "training": ("in inference form",),
    "parameters": ("single numbers of Add and Mul",),
    "not_trained": ("stored as integers",),
    "gradients": ("gradients stop at", "passes straight through", "passes alone"),
    "shapes": ("is bound to", "in constants of the file"),
    "charged": ("no rule", "are charged as asked", "does not declare are taken as"),
    "estimates": tuple(f"{kind}: {how}" for kind, how in backward_rules.ESTIMATED.items()),
}
"""Words that assign a sentence of `Graph.assumed` to a group; all others are about the file."""

_GROUPS = "warning training parameters not_trained frozen gradients charged estimates shapes file not_counted".split()


def explain(model: Model) -> dict[str, list[str]]:
    """Sentences by group; empty groups are left out."""
    groups: dict[str, list[str]] = {group: [] for group in _GROUPS}
    for sentence in model.training.assumed:
        found = [group for group, marks in _MARKS.items() if any(mark in sentence for mark in marks)]
        groups[found[0] if found else "file"].append(sentence)
    if model.graph is not None:
        told = parameters_of(model.graph, model.training, model.frozen)
        groups["training"] += _random(model)
        groups["parameters"] = _told_apart(told) + groups["parameters"]
        groups["not_trained"] += _not_trained(told.others)
        groups["frozen"] += [
            f"{frozen.glob}: {counted(frozen.parameters, 'parameter')}"
            f"{' trained' if frozen.glob.startswith('!') else ''}, {format_nbytes(frozen.nbytes)}"
            for frozen in told.frozen
        ]
        groups["gradients"] += _ends(told) + _integer_outputs(model.graph)
        groups["estimates"] += _estimates(model, model.graph)
    groups["not_counted"] += outside(model.training, model.optimizer)
    return {group: sentences for group, sentences in groups.items() if sentences}


def parameters_data(model: Model) -> dict[str, Any] | None:
    """How parameters were told from other constants; None for annotations, which record it."""
    if model.graph is None:
        return None
    return asdict(parameters_of(model.graph, model.training, model.frozen))


def outside(training: TrainingGraph, optimizer: str | None) -> list[str]:
    """Memory of a training step that is not planned."""
    return [
        *not_covered(training, optimizer),
        "the framework's own context and libraries, such as a CUDA context or cuBLAS workspaces",
        "memory that the allocator rounds up or cannot use",
    ]


def print_explanation(out: Console, groups: dict[str, list[str]], *, verbose: bool) -> None:
    """One paragraph per group; long ones are cut unless ``verbose``."""
    for group, sentences in groups.items():
        if group == "warning":  # it stands above all
            continue
        label = "in training" if group == "training" else group.replace("_", " ")
        field(out, label, listed(sentences, verbose or group == "not_counted"))


def _random(model: Model) -> list[str]:
    """Ops that draw random numbers: one that is recomputed saves the generator's state."""
    state = max((op.random_state_nbytes for op in model.training.ops), default=0)
    drawn: Counter[tuple[str, bool]] = Counter()
    for op in model.training.ops:
        if op.random_state_nbytes:
            drawn[op.op_type, model.graph is None or backward_rules.is_known(model.graph.ops[op.forward])] += 1
    return [
        f"{count:,} {one_line(op_type, 60)} {'at random' if known else 'that may be random'}; "
        f"one that is recomputed saves {state:,} B of generator state"
        for (op_type, known), count in drawn.items()
    ]


def _told_apart(told: Parameters) -> list[str]:
    slots = told.count - told.recorded
    ways = [f"{told.recorded:,} recorded as such in the file"] * bool(told.recorded)
    ways += [f"{counted(slots, 'floating constant')} where their ops take weights"] * bool(slots)
    trained = f" ({told.trained_elements:,} trained)" if told.trained_elements < told.elements else ""
    return [f"{counted(told.count, 'tensor')}, {counted(told.elements, 'element')}{trained}: " + ", ".join(ways)]


def _not_trained(leaves: tuple[Leaf, ...]) -> list[str]:
    """Floating constants by the reason why they are not trained, with the largest one of each."""
    reasons: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        reasons.setdefault(leaf.reason, []).append(leaf)
    sentences = []
    for reason, found in reasons.items():
        first = found[0]
        largest = f"{one_line(first.name, 60)} {first.dtype}[{'x'.join(map(str, first.shape))}]"
        one = f"{largest} {one_line(reason, 120)}"
        more = f" (and {len(found) - 1:,} more, {format_nbytes(sum(leaf.nbytes for leaf in found))} in all)"
        sentences.append(one + more * (len(found) > 1))
    return sentences


def _ends(told: Parameters) -> list[str]:
    """Where gradients stop, and the parameters without a gradient."""
    sentences = [
        f"none goes through {stop.count:,} {one_line(stop.op_type, 60)}, e.g. {one_line(stop.example, 60)!r}"
        for stop in told.stops
    ]
    left = told.without_gradient
    if left:
        sentences.insert(0, f"none reaches {counted(len(left), 'parameter')}: {some(left)}")
    return sentences


def _integer_outputs(graph: Graph) -> list[str]:
    names = [graph.tensors[index].name for index in graph.outputs if not graph.tensors[index].is_float]
    return [f"none starts at {counted(len(names), 'integer output')}: {some(names)}"] if names else []


def _estimates(model: Model, graph: Graph) -> list[str]:
    """Workspace and temporaries that are estimated."""
    kinds: dict[str, list[int]] = {}
    for planned, cost in zip(model.training.ops, model.costs, strict=True):
        op = graph.ops[planned.forward]
        nbytes = max(cost.forward_workspace_nbytes, cost.backward_workspace_nbytes)
        if nbytes and not op.domain:
            kinds.setdefault(op.op_type, []).append(nbytes)
    sentences = [
        f"{'workspace' if kind in ESTIMATED else 'temporaries'} of {len(sizes):,} {one_line(kind, 60)}, at most "
        f"{format_nbytes(max(sizes))} each"
        for kind, sizes in sorted(kinds.items(), key=lambda pair: (pair[0] not in ESTIMATED, -max(pair[1])))
    ]
    return [*sentences, f"times: a roofline of the device {one_line(model.device, 60)!r}"]
