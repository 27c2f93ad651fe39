"""The graph of a traced step with a storage for every result, as in eager PyTorch.

The PyTorch adapter lets ops write over arguments that nothing else reads (its buffer_reuse.py). A graph shows that:
- The type of a fused op ends in an underscore. It writes a storage of no bytes in place of one that has its name too,
  and that the op it is fused with writes. That op also reads, for the fused op, what follows this storage in the reads.
- A gradient that an op gives is an alias of one that it takes.
- A sum into one of its operands has ``+=`` in its name.
"""

from __future__ import annotations

from dataclasses import replace

from ...planner.annotations import IN_PLACE_SUM
from ...planner.training_graph import BackwardOp, Gradient, GradientEdge, GradientSum, TrainingGraph


def out_of_place(graph: TrainingGraph) -> TrainingGraph:
    """The same graph without reuse: the same ops, storages and gradients, some of them with more bytes."""
    gradients = list(graph.gradients)
    ops = [op if op.backward is None else replace(op, backward=_backward(op.backward, gradients)) for op in graph.ops]
    return _forward(replace(graph, ops=tuple(ops), gradients=tuple(gradients)))


def _backward(backward: BackwardOp, gradients: list[Gradient]) -> BackwardOp:
    """Every given gradient allocates; one that sums are written into is given first, and then summed."""
    into = {edge.gradient: edge.gradient for edge in backward.gives}
    final = {gradients[gradient].name: gradient for gradient in into}
    sums: list[GradientSum] = []
    latest: dict[int, int] = {}  # gradient -> position of the last sum written into it
    for total in backward.sums:
        name = gradients[total.result].name
        target = final.get(name.split(IN_PLACE_SUM)[0]) if IN_PLACE_SUM in name else None
        if target is None:
            sums.append(total)
            continue
        gradients[total.result] = replace(gradients[total.result], nbytes=gradients[target].nbytes)
        if into[target] == target:  # the first of its sums
            into[target] = total.result
        else:
            sums[latest[target]] = replace(sums[latest[target]], result=total.result)
        latest[target] = len(sums)
        sums.append(GradientSum(target, tuple(sorted((total.result, *total.operands)))))
    gives = tuple(GradientEdge(into[edge.gradient], None, edge.position) for edge in backward.gives)
    return replace(backward, gives=gives, sums=tuple(sums))


def _forward(graph: TrainingGraph) -> TrainingGraph:
    """Fused ops write a storage of their own."""
    ops, storages, producer = list(graph.ops), list(graph.storages), graph.producer
    aliases = graph.aliases or tuple((storage.name,) for storage in storages)
    last: dict[int, int] = {}  # storage that was written over -> what lives in it in the end
    before: dict[int, tuple[int, int]] = {}  # op -> that storage, and what lives in it until the op runs
    for index, op in enumerate(graph.ops):
        over = [storage for storage in op.reads if op.name in aliases[storage]]
        if not op.op_type.endswith("_") or len(op.writes) != 1 or len(over) != 1:
            continue
        (into,), (own,) = over, op.writes
        position = producer[into]
        maker = ops[position]
        alone = op.reads[op.reads.index(into) :]  # its maker reads this for it
        more = tuple(s for s in maker.writes if s != into and op.name in aliases[s])
        drawn = maker.random_state_nbytes if more else 0
        keeps = drawn and ("dropout" in maker.op_type or "rand" in maker.op_type)
        ops[position] = replace(
            maker,
            reads=tuple(s for s in maker.reads if s not in alone),
            writes=tuple(s for s in maker.writes if s not in more),
            random_state_nbytes=drawn if keeps else maker.random_state_nbytes - drawn,
        )
        ops[index] = replace(
            op,
            op_type=op.op_type[:-1],
            writes=(own, *more),
            random_state_nbytes=drawn,
        )
        storages[own] = replace(storages[own], nbytes=storages[into].nbytes)
        before[index] = into, last.get(into, into)
        last[into] = own
    for index, op in enumerate(ops):
        names = last | dict([before[index]]) if index in before else last
        backward = op.backward and replace(op.backward, reads=_renamed(op.backward.reads, last))
        ops[index] = replace(op, reads=_renamed(op.reads, names), backward=backward)
    return replace(graph, ops=tuple(ops), storages=tuple(storages), outputs=_renamed(graph.outputs, last))


def _renamed(storages: tuple[int, ...], names: dict[int, int]) -> tuple[int, ...]:
    return tuple(sorted(names.get(storage, storage) for storage in storages))
