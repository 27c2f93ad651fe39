"""Training graphs for tests: small ones made by hand, random ones from a seed, and random orders of computation.

Every random thing comes from a `random.Random` that the caller seeds, so a failing seed is a full report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from hypothesis import strategies as st
from ogc_plan.planner.graph import Storage
from ogc_plan.planner.solution import Decisions
from ogc_plan.planner.training_graph import (
    BackwardOp,
    Gradient,
    GradientEdge,
    GradientSum,
    OpCost,
    Stationary,
    TrainingGraph,
    TrainingOp,
)

Costs = tuple[OpCost, ...]


def chain(
    n: int, *, nbytes: int = 10, parameter_nbytes: int = 0, forward_ns: int = 1, stationary: Stationary | None = None
) -> tuple[TrainingGraph, Costs]:
    """``n`` ops in a row, op i writes storage i of ``nbytes``; each backward reads its input and its output.

    The last storage is the output. Gradient i belongs to storage i; parameter gradients, one per op, follow them.
    """
    ops = []
    for i in range(n):
        reads = (i - 1,) if i else ()
        gives = [GradientEdge(i - 1)] if i else []
        if parameter_nbytes:
            gives.append(GradientEdge(n + i))
        ops.append(TrainingOp(f"op{i}", "Chain", reads, (i,), BackwardOp((*reads, i), (i,), tuple(gives)), forward=i))
    gradients = [Gradient(f"gradient of t{i}", nbytes) for i in range(n)]
    if parameter_nbytes:
        gradients += [Gradient(f"gradient of w{i}", parameter_nbytes, parameter=True) for i in range(n)]
    storages = tuple(Storage(f"t{i}", nbytes) for i in range(n))
    graph = TrainingGraph(
        tuple(ops), storages, tuple(gradients), (n - 1,), (n - 1,), stationary or Stationary(), fingerprint=f"chain{n}"
    )
    graph.validate()
    return graph, (OpCost(forward_ns, 2 * forward_ns),) * n


def diamond(sizes: tuple[int, int, int, int] = (10, 20, 30, 40)) -> tuple[TrainingGraph, Costs]:
    """``top`` feeds ``left`` and ``right``, which ``add`` joins: one fan-in sum, two aliased gradients."""
    left = BackwardOp((0,), (1,), (GradientEdge(0),))
    right = BackwardOp((0, 2), (2,), (GradientEdge(0),))
    ops = (
        TrainingOp("top", "Top", (), (0,), BackwardOp((), (0,), (GradientEdge(4),)), forward=0),
        TrainingOp("left", "Left", (0,), (1,), left, forward=1),
        TrainingOp("right", "Right", (0,), (2,), right, forward=2),
        TrainingOp("add", "Add", (1, 2), (3,), BackwardOp((), (3,), (GradientEdge(1, 3), GradientEdge(2, 3))), 0, 3),
    )
    names = ("top", "left", "right", "add")
    storages = tuple(Storage(name, nbytes) for name, nbytes in zip(names, sizes, strict=True))
    gradients = (
        *(Gradient(f"gradient of {name}", nbytes) for name, nbytes in zip(names, sizes, strict=True)),
        Gradient("gradient of weight", 7, parameter=True),
    )
    graph = TrainingGraph(ops, storages, gradients, (3,), (3,), Stationary(parameter_nbytes=7), fingerprint="diamond")
    graph.validate()
    return graph, (OpCost(3, 4), OpCost(5, 6), OpCost(7, 8), OpCost(1, 1))


def linear(
    reads: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], saved: tuple[int, ...] = ()
) -> tuple[TrainingGraph, Costs]:
    """Ops of 7 ns that each write a value; backwards read nothing, but for those of ops that ``saved`` theirs."""
    ops = tuple(
        TrainingOp(
            f"op{i}", "Op", read, (i,),
            BackwardOp((i,) if i in saved else (), (i,), tuple(GradientEdge(s) for s in read)), 0, i,
        )
        for i, read in enumerate(reads)
    )  # fmt: skip
    storages = tuple(Storage(f"value{i}", nbytes) for i, nbytes in enumerate(sizes))
    gradients, last = tuple(Gradient(f"gradient{i}", 1) for i in range(len(ops))), (len(ops) - 1,)
    graph = TrainingGraph(ops, storages, gradients, last, last, Stationary(), fingerprint="linear")
    return graph, (OpCost(7, 1),) * len(ops)


def keep_all(graph: TrainingGraph) -> Decisions:
    """Every forward once, then every backward: nothing is recomputed."""
    return Decisions((*range(len(graph.ops)), *(~op for op in graph.backward_order)))


@dataclass(slots=True)
class _Value:
    """A tensor while a random graph grows: where it lives, its gradient, whether it has one."""

    storage: int
    gradient: int
    needs: bool


@dataclass(slots=True)
class _Sketch:
    """An op before it is known whether a gradient reaches it."""

    kind: str
    inputs: list[_Value]
    outputs: list[_Value]
    writes: list[int]
    parameters: list[int]
    hidden: list[int]
    random_state_nbytes: int


class _Grower:
    """Grows a graph op by op in forward order; `finish` walks it backwards and attaches the backwards."""

    def __init__(self, rng: Random, sizes: tuple[int, ...]) -> None:
        self.rng, self.sizes = rng, sizes
        self.storages: list[Storage] = []
        self.gradients: list[Gradient] = []
        self.values: list[_Value] = []
        self.sketches: list[_Sketch] = []
        self.unused: list[_Value] = []  # values that no op reads so far
        self.parameters: list[int] = []

    def storage(self, nbytes: int) -> int:
        self.storages.append(Storage(f"s{len(self.storages)}", nbytes))
        return len(self.storages) - 1

    def gradient(self, nbytes: int, parameter: bool = False) -> int:
        kind = "parameter" if parameter else "gradient"
        self.gradients.append(Gradient(f"{kind}{len(self.gradients)}", nbytes, parameter))
        return len(self.gradients) - 1

    def size(self) -> int:
        return self.rng.choice(self.sizes)

    def pick_inputs(self, most: int) -> list[_Value]:
        """Mostly values nobody has used yet, else recent ones, sometimes far ones, sometimes the same one twice."""
        chosen: list[_Value] = []
        for _ in range(self.rng.randint(1, most) if self.values else 0):
            pool = self.rng.choices((self.unused or self.values, self.values[-4:], self.values), (6, 3, 1))[0]
            chosen.append(self.rng.choice(pool))
        self.unused = [value for value in self.unused if all(value is not other for other in chosen)]
        return chosen

    def pick_parameters(self) -> list[int]:
        chosen = []
        for _ in range(self.rng.choice((0, 0, 1, 1, 2))):
            if self.parameters and self.rng.random() < 0.3:
                chosen.append(self.rng.choice(self.parameters))
            else:
                self.parameters.append(self.gradient(self.size(), parameter=True))
                chosen.append(self.parameters[-1])
        return chosen

    def grow(self, join: bool = False) -> None:
        """Append one op; with ``join`` it reads what nobody has read yet, as a loss over several branches does."""
        rng = self.rng
        kinds = ("compute", "multi", "add", "view", "constant")
        kind = rng.choices(kinds, (60, 12, 14, 9, 5))[0] if self.values and not join else "compute"
        inputs = self.unused[-8:] if join else self.pick_inputs(3)
        if kind == "compute" and self.values and rng.random() < 0.05:
            inputs = []  # a fresh source in the middle of the graph
        if kind == "view":
            inputs = inputs[:1]
        parameters = self.pick_parameters() if kind in ("compute", "multi") else []
        needs = kind != "constant" and (bool(parameters) or any(value.needs for value in inputs))
        writes: list[int] = []
        outputs: list[_Value] = []
        for _ in range(rng.randint(2, 3) if kind == "multi" or kind == "view" else 1):
            if kind == "view":
                storage = inputs[0].storage
                nbytes = rng.randint(0, self.storages[storage].nbytes)
            else:
                nbytes = self.size()
                storage = self.storage(nbytes)
                writes.append(storage)
            # An integer output of a differentiable op has no gradient.
            own = needs and not (len(outputs) and rng.random() < 0.15)
            outputs.append(_Value(storage, self.gradient(nbytes) if own else -1, own))
        hidden = []
        if kind in ("compute", "multi") and needs:
            for _ in range(rng.choice((0, 0, 0, 1, 2))):
                hidden.append(self.storage(self.size()))
        state = rng.choice((0, 0, 0, 16)) if kind in ("compute", "multi") else 0
        writes += hidden
        self.values += outputs
        self.unused += outputs
        self.sketches.append(_Sketch(kind, inputs, outputs, writes, parameters, hidden, state))

    def pick_outputs(self) -> list[_Value]:
        """Always the last value that has a gradient, and a few others."""
        floating = [value for value in self.values if value.needs]
        chosen = floating[-1:] + [self.rng.choice(self.values) for _ in range(self.rng.choice((0, 0, 1, 2)))]
        self.rng.shuffle(chosen)
        return chosen

    def finish(self) -> TrainingGraph:
        outputs = self.pick_outputs()
        seeds = list(dict.fromkeys(value.gradient for value in outputs if value.needs))
        arriving = set(seeds)
        backwards: dict[int, BackwardOp] = {}
        for index in range(len(self.sketches) - 1, -1, -1):
            sketch = self.sketches[index]
            wanted = [value.gradient for value in sketch.inputs if value.needs] + sketch.parameters
            if wanted and any(value.gradient in arriving for value in sketch.outputs if value.needs):
                backwards[index] = self.backward(sketch, wanted)
                arriving.update(wanted)
        ops = []
        for index, sketch in enumerate(self.sketches):
            reads = () if sketch.kind == "view" else tuple(dict.fromkeys(value.storage for value in sketch.inputs))
            ops.append(
                TrainingOp(
                    f"op{index}",
                    sketch.kind,
                    reads,
                    tuple(sketch.writes),
                    backwards.get(index),
                    sketch.random_state_nbytes,
                    index,
                )
            )
        stationary = Stationary(*(self.rng.choice((0, 11, 1000)) for _ in range(5)))
        held = tuple(dict.fromkeys(value.storage for value in outputs))
        return TrainingGraph(
            tuple(ops),
            tuple(self.storages),
            tuple(self.gradients),
            held,
            tuple(seeds),
            stationary,
            tuple((storage.name,) for storage in self.storages),
            fingerprint="random",
        )

    def backward(self, sketch: _Sketch, wanted: list[int]) -> BackwardOp:
        rng = self.rng
        takes = tuple(dict.fromkeys(value.gradient for value in sketch.outputs if value.needs))
        reads: tuple[int, ...] = ()
        if sketch.kind in ("compute", "multi"):
            near = [value.storage for value in (*sketch.inputs, *sketch.outputs)]
            reads = tuple(dict.fromkeys([s for s in near if rng.random() < 0.5] + sketch.hidden))
        aliasing = sketch.kind == "add" or (sketch.kind == "compute" and rng.random() < 0.1)
        gives = []
        for gradient in wanted:
            shares = aliasing and not self.gradients[gradient].parameter and rng.random() < 0.9
            gives.append(GradientEdge(gradient, rng.choice(takes) if shares else None))
        return BackwardOp(reads, takes, tuple(gives))


def as_an_adapter_sees_it(rng: Random, graph: TrainingGraph) -> TrainingGraph:
    """Some fan-ins as sums spelled out, some copies, some gradients taken by more ops, some ops that run once."""
    gradients = list(graph.gradients)
    order = graph.backward_order
    backwards = {index: graph.ops[index].backward or BackwardOp() for index in order}
    gives = {index: list(backward.gives) for index, backward in backwards.items()}
    sums: dict[int, list[GradientSum]] = {index: [] for index in order}
    takes = {index: list(backward.takes) for index, backward in backwards.items()}

    def part_of(gradient: int) -> int:
        gradients.append(Gradient(f"part{len(gradients)}", gradients[gradient].nbytes))
        return len(gradients) - 1

    for gradient in range(len(graph.gradients)):
        where = [(i, at) for i in order for at, edge in enumerate(gives[i]) if edge.gradient == gradient]
        if len(where) < 2 or gradient in graph.seeds or rng.random() < 0.4:
            continue
        parts = []
        for index, at in where:
            parts.append(part_of(gradient))
            gives[index][at] = GradientEdge(parts[-1], gives[index][at].alias_of)
        if rng.random() < 0.2:
            sums[where[-1][0]].append(GradientSum(gradient, tuple(parts)))
            continue
        running = parts[0]
        for (index, _), part in zip(where[1:], parts[1:], strict=True):
            result = gradient if part == parts[-1] else part_of(gradient)
            sums[index].append(GradientSum(result, (part, running) if rng.random() < 0.5 else (running, part)))
            running = result
    for index in order:
        if rng.random() < 0.05:
            gradients.append(Gradient(f"copy{len(gradients)}", rng.choice(gradients).nbytes, rng.random() < 0.5))
            sums[index].append(GradientSum(len(gradients) - 1, ()))
    for gradient in range(len(gradients)):
        made = [at for at, i in enumerate(order) if _makes(gives[i], sums[i], gradient)]
        later = order[max(made, default=0) + 1 :]
        if (made or gradient in graph.seeds) and later and rng.random() < 0.2:
            takes[rng.choice(later)].append(gradient)
    ops = [
        replace(
            op,
            backward=op.backward
            and BackwardOp(op.backward.reads, tuple(dict.fromkeys(takes[i])), tuple(gives[i]), tuple(sums[i])),
            once=rng.random() < 0.1,
        )
        for i, op in enumerate(graph.ops)
    ]
    return replace(graph, ops=tuple(ops), gradients=tuple(gradients))


def ending(rng: Random, graph: TrainingGraph, share: float = 0.7) -> TrainingGraph:
    """The graph of a step that accumulates: ``share`` of the parameters' gradients end, each with up to three ops."""
    ends: list[list[int]] = [[] for _ in graph.ops]
    for gradient, entry in enumerate(graph.gradients):
        if entry.parameter and graph.backward_order and rng.random() < share:
            for index in rng.sample(graph.backward_order, min(len(graph.backward_order), rng.choice((1, 1, 1, 2, 3)))):
                ends[index].append(gradient)
    ops = (
        replace(op, backward=op.backward and replace(op.backward, ends=tuple(gone)))
        for op, gone in zip(graph.ops, ends, strict=True)
    )
    return replace(graph, ops=tuple(ops))


def _makes(gives: list[GradientEdge], sums: list[GradientSum], gradient: int) -> bool:
    return any(edge.gradient == gradient for edge in gives) or any(total.result == gradient for total in sums)


SMALL_SIZES = (0, 1, 2, 3, 5, 8, 13, 40)
WIDE_SIZES = (0, 1, 7, 64, 1000, 4096, 123_457, 5_000_000_000)


def random_graph(rng: Random, op_count: int, *, sizes: tuple[int, ...] | None = None) -> tuple[TrainingGraph, Costs]:
    """A valid training graph of ``op_count`` ops with everything the memory model speaks of, and its costs.

    ``sizes`` are the bytes storages and gradients are drawn from.
    """
    grower = _Grower(rng, sizes or rng.choice((SMALL_SIZES, WIDE_SIZES)))
    joined = rng.random() < 0.5
    for number in range(op_count):
        grower.grow(join=joined and number == op_count - 1)
    graph = grower.finish()
    if rng.random() < 0.5:
        graph = as_an_adapter_sees_it(rng, graph)
    costs = random_costs(rng, graph, max_workspace_nbytes=max(grower.sizes))
    own = Random(100 * op_count + len(graph.gradients))  # the caller's draws are those without ends
    if own.random() < 0.5:
        graph = ending(own, graph)
    graph.validate()
    return graph, costs


def random_costs(rng: Random, graph: TrainingGraph, *, max_workspace_nbytes: int = 0) -> Costs:
    """Times of 0 to 50 ns; half of the workspaces are zero."""
    return tuple(
        OpCost(
            rng.randint(0, 50),
            rng.randint(0, 99) if op.backward is not None else 0,
            rng.choice((0, rng.randint(0, max_workspace_nbytes))),
            rng.choice((0, rng.randint(0, max_workspace_nbytes))) if op.backward is not None else 0,
            rng.choice((None, rng.randint(0, max_workspace_nbytes))) if op.backward is not None else None,
        )
        for op in graph.ops
    )


@st.composite
def training_graphs(draw: st.DrawFn, *, min_ops: int = 1, max_ops: int = 60) -> tuple[TrainingGraph, Costs, Random]:
    """A random graph, its costs, and the generator to draw more from; hypothesis shrinks size and seed."""
    op_count = draw(st.integers(min_ops, max_ops), label="op_count")
    rng = Random(draw(st.integers(0, 2**32 - 1), label="seed"))
    return (*random_graph(rng, op_count), rng)


def random_decisions(rng: Random, graph: TrainingGraph, *, recomputations: int | None = None) -> Decisions:
    """A legal order: forwards in order, backwards in default order, with recomputations in between.

    Any op that has run may run again anywhere, unless it must run only once: its operands are then kept, or
    come from their own recomputation. Recomputations come singly, as repeated runs of one op, and as ranges of
    ops just before a backward.
    """
    count = len(graph.ops)
    computations = list(keep_all(graph).sequence)
    slots: list[list[int]] = [[] for _ in range(len(computations) + 1)]  # recomputations before each computation
    left = rng.choice((0, 1, count // 2, count, 2 * count)) if recomputations is None else recomputations
    while left > 0 and count:
        position = rng.randint(1, len(computations))
        ran = min(position, count)
        first = rng.randrange(ran)
        last = min(ran, first + left, first + (rng.randint(1, 6) if rng.random() < 0.5 else 1))
        group = list(range(first, last))
        if rng.random() < 0.1 and len(group) < left:
            group.append(rng.choice(group))  # twice in a row
        left -= len(group)
        slots[position] += [op for op in group if not graph.ops[op].once]
    sequence = list(slots[0])
    for position, entry in enumerate(computations, start=1):
        sequence += [entry, *slots[position]]
    return Decisions(tuple(sequence))
