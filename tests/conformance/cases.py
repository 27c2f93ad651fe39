"""The cases that a runtime must pass: small models with plans, what they are given, and what must come out.

All numbers are integers that float32 holds exactly, so that every right kernel gives the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from ogc_plan.planner.model import load_model
from ogc_plan.planner.pipeline import plan
from ogc_plan.planner.plan_file.writer import write_plan
from onnx import TensorProto, helper, numpy_helper

BATCH, WIDTH = 4, 8
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A model with the tensors that its plan recomputes.

    ``gradients`` are the right gradients of parameters, given the seed; None where they are random: then that of ``w2``
    is the product of the result, transposed, and the seed.
    """

    model: Callable[[], onnx.ModelProto]
    recompute: tuple[str, ...]
    gradients: Callable[[dict[str, Array], Array, Array], dict[str, Array]] | None
    says: str
    batch: int | None = None
    output_shape: tuple[int, ...] = (BATCH, WIDTH)


def small(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def made(nodes: Sequence[onnx.NodeProto], weights: dict[str, Array], **more: Any) -> onnx.ModelProto:
    """A model from ``x`` to ``y``; the batch is 1 in the file where ``fixed``."""
    rows = 1 if more.pop("fixed", False) else BATCH
    out = more.pop("out", (rows, WIDTH))
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, WIDTH))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, **more)


def node(op_type: str, inputs: str, output: str, **more: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], **more)


LAYERS = {"w1": small(WIDTH, WIDTH, seed=1), "b1": small(WIDTH, seed=2), "w2": small(WIDTH, WIDTH, seed=3)}


def two_layers() -> onnx.ModelProto:
    return made(
        [node("MatMul", "x w1", "m"), node("Add", "m b1", "h"), node("Relu", "h", "r"), node("MatMul", "r w2", "y")],
        LAYERS,
    )


def of_two_layers(p: dict[str, Array], x: Array, seed: Array) -> dict[str, Array]:
    h = x @ p["w1"] + p["b1"]
    inner = (seed.reshape(-1, WIDTH) @ p["w2"].T) * (h > 0)
    return {"w1": x.T @ inner, "b1": inner.sum(0), "w2": np.maximum(h, 0).T @ seed.reshape(-1, WIDTH)}


def in_a_function() -> onnx.ModelProto:
    layer = helper.make_function(
        "local", "Layer", ["a", "w", "b"], ["r"],
        [node("MatMul", "a w", "m"), node("Add", "m b", "h"), node("Relu", "h", "r")],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    first = helper.make_node("Layer", ["x", "w1", "b1"], ["r"], domain="local")
    return made([first, node("MatMul", "r w2", "y")], LAYERS, functions=[layer])


def other_batch() -> onnx.ModelProto:
    """Half rows, and back: a Reshape with the batch of the file, one that reads a shape, a turned weight."""
    shapes = {"half": np.array([2, WIDTH // 2])}
    nodes = [node("MatMul", "x w1", "m"), node("Reshape", "m half", "v"), node("Relu", "v", "r")]
    nodes += [node("Shape", "m", "s"), node("Reshape", "r s", "u"), node("Transpose", "w2", "t")]
    nodes += [node("MatMul", "u t", "y")]
    return made(nodes, {"w1": LAYERS["w1"], "w2": LAYERS["w2"], **shapes}, fixed=True)


def of_other_batch(p: dict[str, Array], x: Array, seed: Array) -> dict[str, Array]:
    m = x @ p["w1"]
    return {"w1": x.T @ ((seed @ p["w2"]) * (m > 0)), "w2": seed.T @ np.maximum(m, 0)}


LARGE = np.float32(2**25)


def sums() -> onnx.ModelProto:
    """Three contributions to one gradient: 1, then -2^25, then 2^25 make 0; in another order they make 1."""
    nodes = [node("MatMul", "x w1", "h"), node("Relu", "h", "r")]
    weights = {"w1": np.eye(WIDTH, dtype=np.float32)}
    for number, factor in enumerate((LARGE, -LARGE, np.float32(1))):
        weights[f"c{number}"] = np.full((BATCH, WIDTH), factor)
        nodes.append(node("Mul", f"r c{number}", f"t{number}"))
    return made([*nodes, node("Add", "t0 t1", "s"), node("Add", "s t2", "y")], weights)


def of_sums(p: dict[str, Array], x: Array, seed: Array) -> dict[str, Array]:
    given = (seed * np.float32(1) + seed * -LARGE) + seed * LARGE
    found = {"w1": x.T @ (given * (x > 0))}
    return {**found, **{name: seed * np.maximum(x, 0) for name in p if name.startswith("c")}}


def pooled() -> onnx.ModelProto:
    """A hidden buffer: the places of maxima."""
    three = {"three": np.array([BATCH, 1, WIDTH]), "two": np.array([BATCH, WIDTH // 2])}
    nodes = [node("MatMul", "x w1", "m"), node("Reshape", "m three", "v")]
    nodes += [node("MaxPool", "v", "q", kernel_shape=[2], strides=[2], name="pool")]
    nodes += [node("Reshape", "q two", "u"), node("Relu", "u", "y")]
    return made(nodes, {"w1": LAYERS["w1"], **three}, out=(BATCH, WIDTH // 2))


def of_pooled(p: dict[str, Array], x: Array, seed: Array) -> dict[str, Array]:
    pairs = (x @ p["w1"]).reshape(BATCH, -1, 2)
    inner = np.zeros_like(pairs)
    np.put_along_axis(inner, pairs.argmax(-1)[..., None], (seed * (pairs.max(-1) > 0))[..., None], -1)
    return {"w1": x.T @ inner.reshape(BATCH, -1)}


def dropping() -> onnx.ModelProto:
    """The result is what the last product reads, so that it shows the mask of the forward."""
    nodes = [
        node("MatMul", "x w1", "m"),
        node("Dropout", "m", "d"),
        node("Relu", "d", "r"),
        node("MatMul", "r w2", "y"),
    ]
    return made(nodes, {"w1": LAYERS["w1"], "w2": np.eye(WIDTH, dtype=np.float32)})


CASES = {
    "two-layers": Case(two_layers, ("m", "h", "r"), of_two_layers, "recomputation of a chain"),
    "function": Case(in_a_function, ("r",), of_two_layers, "nodes inside a function of the file"),
    "batch": Case(other_batch, ("m", "r"), of_other_batch, "constants at another batch; views recomputed", BATCH),
    "sums": Case(sums, ("h", "r"), of_sums, "the order of sums of gradients"),
    "hidden": Case(pooled, ("m", "pool#0"), of_pooled, "a hidden buffer", output_shape=(BATCH, WIDTH // 2)),
    "random": Case(dropping, ("d", "r"), None, "the state of a generator"),
}  # fmt: skip


def write_cases(folder: Path) -> None:
    """Write each case to a folder of its own: model.onnx, plan.json, given.json, expected.json."""
    for name, case in CASES.items():
        home = folder / name
        home.mkdir(parents=True, exist_ok=True)
        onnx.save(case.model(), home / "model.onnx")
        model = load_model(home / "model.onnx", batch=case.batch)
        write_plan(plan(model, "1MB", strategy="keep-all", recompute=case.recompute), home / "plan.json")
        x, seed = small(BATCH, WIDTH, seed=4), small(*case.output_shape, seed=5)
        output = model.training.gradients[model.training.seeds[0]].name
        dump(home / "given.json", {"inputs": {"x": x}, "seeds": {output: seed}})
        weights = {t.name: numpy_helper.to_array(t) for t in case.model().graph.initializer if t.name[0] in "bcw"}
        right = {"gradients": case.gradients(weights, x, seed)} if case.gradients else {"of_output": {"w2": seed}}
        dump(home / "expected.json", {"gradients": {}, **right})


def dump(path: Path, data: dict[str, dict[str, Array]]) -> None:
    """JSON with arrays as nested lists."""
    plain = {key: {name: array.tolist() for name, array in arrays.items()} for key, arrays in data.items()}
    path.write_text(json.dumps(plain) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, dict[str, Array]]:
    """What `dump` wrote, in float32."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return {key: {name: np.array(value, np.float32) for name, value in part.items()} for key, part in data.items()}
