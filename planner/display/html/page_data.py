"""What the script of a page reads: the columns of the charts, and ops and tensors to search."""

from __future__ import annotations

from collections import Counter

from ...plan_file.record import Plan
from ...problem import Scope
from ...schedule import StepKind
from .chart import MemoryChart
from .markup import Texts
from .memory_stack import KINDS
from .tables import modules_of_ops, tensors_of

_MOST_NBYTES = 2_100_000
"""Beyond so many bytes of names and entries the search leaves out the smallest tensors, then the last ops."""


def page_data(plan: Plan, charts: dict[str, MemoryChart]) -> dict[str, object]:
    """The data of a page whose ``charts`` have these keys: names once each, everything else by their numbers."""
    graph, modules, texts = plan.graph, modules_of_ops(plan), Texts()
    described = [(op.name, op.op_type, module) for op, module in zip(graph.ops, modules, strict=True)]
    drawn = {key: chart.data(texts, described) for key, chart in charts.items()}
    runs = Counter(step.index for step in plan.schedule if step.kind is StepKind.RECOMPUTE)
    first: dict[int, int] = {}
    computations = (step for step in plan.schedule if step.kind is not StepKind.FREE)
    for position, step in enumerate(computations, start=1):
        first.setdefault(step.index, position)
    kept, producer, entries = set(plan.kept), graph.producer, 0
    ops: list[list[int]] = []
    tensors: list[list[int]] = []

    def room() -> bool:
        return texts.nbytes + entries < _MOST_NBYTES

    for index, cost in enumerate(plan.costs):
        if not room():
            break
        numbers = [texts.number(text) for text in described[index]]
        ops.append([*numbers, first[index], cost.forward_ns, cost.backward_ns, runs[index]])
        entries += len(str(ops[-1]))
    for storage in sorted(range(len(graph.storages)), key=lambda s: -graph.storages[s].nbytes):
        if not room():
            break
        entry, maker = graph.storages[storage], producer[storage]
        fate = 0 if entry.name in kept else 1 if runs[maker] else 2
        name, module = texts.number(tensors_of(graph, storage)), texts.number(modules[maker])
        tensors.append([name, entry.nbytes, fate, module, first[maker]])
        entries += len(str(tensors[-1]))
    return {
        "texts": texts.lines,
        "kinds": [kind.value for kind in KINDS],
        "charts": drawn,
        "ops": ops,
        "tensors": tensors,
        "left_out": len(graph.ops) - len(ops) + len(graph.storages) - len(tensors),
    }


def keyed(charts: dict[Scope, list[MemoryChart]]) -> dict[str, MemoryChart]:
    """The charts of the plan and of store-all for each scope, by the keys that the page gives them."""
    return {
        f"{key}-{scope.value}": chart
        for scope, pair in charts.items()
        for chart, key in zip(pair, ("plan", "all"), strict=True)
    }
