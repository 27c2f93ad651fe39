"""A runtime for plans in NumPy: it reads the plan file and the ONNX file, and knows nothing of ogc_plan.

README.md beside the plan file's code says what it relies on. It takes models whose ops numpy_kernels.py has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import numpy_helper

from tests.conformance.numpy_kernels import BACKWARD, FORWARD, Array, reduced


class Executor:
    """Runs training steps; ``parameters`` are changed from outside between steps."""

    def __init__(self, plan: Path, model: Path) -> None:
        self.plan, file = json.loads(plan.read_text()), onnx.load(model)
        self.execution = self.plan["execution"]
        nodes = onnx.inliner.inline_local_functions(file).graph.node
        self.nodes = dict(zip(places(file, file.graph.node, ()), nodes, strict=True))
        self.leaves = {tensor.name: numpy_helper.to_array(tensor) for tensor in file.graph.initializer}
        for node in nodes:
            if node.op_type == "Constant":
                self.leaves[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        for entry in self.execution["constants"]:
            self.leaves[entry["name"]] = constant(entry, self.leaves.get(entry["name"]))
        self.makers = {name: node for node in nodes for name in node.output}
        self.given = {(key(r["node"]), r["input"]): np.array(r["data"]) for r in self.execution["replaced"]}
        self.ops = {
            op["name"]: {**op, **more} for op, more in zip(self.plan["ops"], self.execution["ops"], strict=True)
        }
        self.forms = {s["name"]: {**s, **f} for s, f in self.paired("storages")}
        self.home = {tensor: name for name, form in self.forms.items() for tensor in form["aliases"]}
        self.tensors = {g["name"]: tensor for g, tensor in self.paired("gradients")}
        self.is_parameter = {g["name"] for g in self.plan["gradients"] if g["parameter"]}
        self.parameters = {self.tensors[name]: self.leaves[self.tensors[name]] for name in self.is_parameter}
        self.last_forward = max(i for i, step in enumerate(self.plan["schedule"]) if step[0] == "forward")

    def paired(self, part: str) -> Iterator[tuple[Any, Any]]:
        return zip(self.plan[part], self.execution[part], strict=True)

    def step(self, inputs: dict[str, Array], seeds: Callable[[dict[str, Array]], dict[str, Array]]) -> Iterator[Any]:
        """One training step: yields after each step of the schedule what is alive; the gradients are then in ``grads``.

        ``seeds`` gives, for the outputs by name, the gradients by name that the backward begins with.
        """
        self.values = {**self.leaves, **self.parameters, **inputs}
        self.grads: dict[str, Array] = {}
        self.states: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.takers = Counter(g for op in self.plan["ops"] if op["backward"] for g in op["backward"]["takes"])
        for place in self.execution["prepare"]:
            self.run(key(place))
        started = False
        for position, (kind, name) in enumerate(self.plan["schedule"]):
            if position > self.last_forward and kind != "free" and not started:
                started = True
                self.grads.update(seeds(self.values))
            getattr(self, kind)(name)
            yield self.alive()

    def run(self, place: tuple[Any, ...]) -> list[Array]:
        node = self.nodes[place]
        inputs = [self.given.get((place, at), self.values.get(name)) for at, name in enumerate(node.input)]
        made, hidden = FORWARD[node.op_type](node, inputs)
        self.values.update(zip(node.output, made, strict=False))
        self.shapes.update((tensor, self.values[tensor].shape) for tensor in (*node.input, *node.output))
        return hidden

    def forward(self, name: str) -> None:
        if self.ops[name]["random_state_nbytes"] and name in self.plan["recompute"]:
            self.states[name] = np.random.get_state()
        self.compute(self.ops[name])

    def recompute(self, name: str) -> None:
        now = np.random.get_state()
        np.random.set_state(self.states.get(name, now))
        self.compute(self.ops[name])
        np.random.set_state(now)

    def compute(self, op: dict[str, Any]) -> None:
        for place in op["nodes"] if op["writes"] else ():  # a view is made with what it is a view of
            hidden = self.run(key(place))
            self.values.update({f"{op['name']}#{number}": array for number, array in enumerate(hidden)})
        for storage in op["writes"]:
            for place in self.forms[storage].get("views", ()):
                self.run(key(place))

    def free(self, name: str) -> None:
        if name in self.forms:
            for tensor in self.forms[name]["aliases"]:
                self.values.pop(tensor, None)
        else:
            del self.states[name.removesuffix("#random_state")]

    def backward(self, name: str) -> None:
        op, back = self.ops[name], self.ops[name]["backward"]
        node = self.nodes[key(op["nodes"][-1])]
        taken = self.grads[back["takes"][0]]
        readable = set(back["reads"])

        def saved(tensor: str) -> Array:
            tensor = name + tensor if tensor.startswith("#") else tensor
            assert tensor not in self.home or self.home[tensor] in readable, f"{name} may not read {tensor}"
            return self.values[tensor]

        positions = [at for at, tensor in enumerate(node.input) if tensor in op["inputs"]]
        if node.op_type == "Add":
            made = {at: reduced(taken, len(self.shapes[node.input[at]])) for at in positions}
        else:
            made = BACKWARD[node.op_type](node, saved, taken.reshape(self.shapes[node.output[0]]), set(positions))
        contributions = [
            (gradient, self.based(made[at], node.input[at], self.tensors[gradient]))
            for (gradient, _), at in zip(back["gives"], positions, strict=True)
        ]
        for gradient in back["takes"]:
            self.takers[gradient] -= 1
            if not self.takers[gradient] and gradient not in self.is_parameter:
                del self.grads[gradient]
        for gradient, array in contributions:
            self.grads[gradient] = self.grads[gradient] + array if gradient in self.grads else array

    def based(self, array: Array, tensor: str, base: str) -> Array:
        """A gradient by a tensor in the shape of what the tensor is a view of."""
        while tensor != base:
            view = self.makers[tensor]
            tensor = view.input[0]
            array = array.T if view.op_type == "Transpose" else array.reshape(self.shapes[tensor])
        return array

    def alive(self) -> dict[str, Any]:
        """What the event log says of a step: the storages and gradients that are alive, and their bytes together."""
        storages = sorted({self.home[tensor] for tensor in self.values if tensor in self.home})
        roots = {id(root): root.nbytes for root in (g if g.base is None else g.base for g in self.grads.values())}
        states = sum(self.ops[name]["random_state_nbytes"] for name in self.states)
        nbytes = sum(self.forms[name]["nbytes"] for name in storages) + sum(roots.values()) + states
        return {"storages": storages, "gradients": sorted(self.grads), "nbytes": nbytes}


def constant(entry: dict[str, Any], own: Array | None) -> Array:
    """A constant of the plan; ``own`` is the file's of that name."""
    shape = entry["shape"]
    if own is not None and entry["data"] is None:
        first = tuple(slice(None) if mine == size else slice(1) for mine, size in zip(own.shape, shape, strict=True))
        return np.broadcast_to(own[first], shape)
    data = np.array(entry["data"], entry["dtype"])
    return np.full(shape, data) if data.size == 1 else data.reshape(shape)


def key(place: Any) -> tuple[Any, ...]:
    """The place of a node as a key: plans write an index alone where the node is in the main graph."""
    return tuple(place) if isinstance(place, list) else (place,)


def places(model: Any, nodes: Any, above: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The places of all nodes once functions are inlined, in their order."""
    functions = {(f.domain, f.name): f.node for f in model.functions}
    for index, node in enumerate(nodes):
        if (node.domain, node.op_type) in functions:
            inner = functions[node.domain, node.op_type]
            yield from places(model, inner, (*above, index, f"{node.domain}::{node.op_type}"))
        else:
            yield (*above, index)
