"""A small annotation as an adapter writes it, and a standard ONNX file that carries it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from ogc_plan.planner.annotations import MODEL_KEY, NODE_KEY, Annotation, OpWork, dumps
from ogc_plan.planner.graph import Storage
from ogc_plan.planner.training_graph import (
    BackwardOp,
    Gradient,
    GradientEdge,
    GradientSum,
    Stationary,
    TrainingGraph,
    TrainingOp,
)
from onnx import TensorProto, helper, numpy_helper

WIDTH = 64
ROWS = 256
HIDDEN_NBYTES = ROWS * WIDTH * 4
WEIGHT_NBYTES = WIDTH * WIDTH * 4
STATE_NBYTES = 16


class _Sketch:
    """Storages, gradients and ops by name while the graph grows."""

    def __init__(self) -> None:
        self.storages: dict[str, Storage] = {}
        self.gradients: dict[str, Gradient] = {}
        self.ops: list[TrainingOp] = []
        self.works: list[OpWork] = []
        self.scopes: list[str] = []

    def storage(self, name: str, nbytes: int) -> int:
        self.storages.setdefault(name, Storage(name, nbytes))
        return list(self.storages).index(name)

    def gradient(self, name: str, nbytes: int = HIDDEN_NBYTES, parameter: bool = False) -> int:
        self.gradients.setdefault(name, Gradient(name, nbytes, parameter))
        return list(self.gradients).index(name)

    def op(self, op: TrainingOp, work: OpWork, scope: str) -> None:
        self.ops.append(op)
        self.works.append(work)
        self.scopes.append(scope)


def residual_network(layers: int = 6) -> Annotation:
    """``h = h + dropout(h @ w)``, ``layers`` times, then a norm and a sum; the second and last weight are one.

    In the backward the gradient of each ``h`` is taken by the dropout and added to the product's gradient;
    the shared weight's gradient is a sum of two; the norm updates running statistics and must run only once.
    """
    sketch, hidden = _Sketch(), -1
    for i in range(layers):
        product = sketch.storage(f"product{i}", HIDDEN_NBYTES)
        dropped, mask = sketch.storage(f"dropped{i}", HIDDEN_NBYTES), sketch.storage(f"mask{i}", HIDDEN_NBYTES // 4)
        output = sketch.storage(f"h{i}", HIDDEN_NBYTES) if i else dropped
        before = (hidden,) if i else ()
        shared = i in (1, layers - 1)
        part = sketch.gradient(f"d weight1 from {i}" if shared else f"d weight{i}", WEIGHT_NBYTES, not shared)
        gives, sums = [GradientEdge(part)], []
        if i:
            from_product = sketch.gradient(f"d h{i - 1} from product{i}")
            gives.insert(0, GradientEdge(from_product))
            operands = (sketch.gradient(f"d h{i}"), from_product)
            sums.append(GradientSum(sketch.gradient(f"d h{i - 1}"), operands))
        if i == 1:
            parts = (sketch.gradient(f"d weight1 from {layers - 1}", WEIGHT_NBYTES), part)
            sums.append(GradientSum(sketch.gradient("d weight1", WEIGHT_NBYTES, True), parts))
        flops, moved = 2 * ROWS * WIDTH * WIDTH, 2 * HIDDEN_NBYTES + WEIGHT_NBYTES
        sketch.op(
            TrainingOp(
                f"mm_{i}",
                "aten.mm",
                before,
                (product,),
                BackwardOp(before, (sketch.gradient(f"d product{i}"),), tuple(gives), tuple(sums)),
            ),
            OpWork(flops, moved, 1, 2 * flops, 2 * moved, 2, False, 0, 1000, 1000 if shared else WEIGHT_NBYTES),
            f"blocks.{i}.linear",
        )
        sketch.op(
            TrainingOp(
                f"dropout_{i}",
                "aten.native_dropout",
                (product,),
                (dropped, mask),
                BackwardOp((mask,), (sketch.gradient(f"d h{i}"),), (GradientEdge(sketch.gradient(f"d product{i}")),)),
                STATE_NBYTES,
            ),
            OpWork(0, 2 * HIDDEN_NBYTES, 1, 0, 2 * HIDDEN_NBYTES, 1),
            f"blocks.{i}.dropout",
        )
        if i:
            sketch.op(
                TrainingOp(f"add_{i}", "aten.add", (*before, dropped), (output,)),
                OpWork(0, 3 * HIDDEN_NBYTES, 1),
                f"blocks.{i}",
            )
        hidden = output
    normed, statistics = sketch.storage("normed", HIDDEN_NBYTES), sketch.storage("statistics", 2 * WIDTH * 4)
    gradients = (GradientEdge(sketch.gradient(f"d h{layers - 1}")), GradientEdge(sketch.gradient("d scale", 256, True)))
    sketch.op(
        TrainingOp(
            "norm",
            "aten.native_batch_norm",
            (hidden,),
            (normed, statistics),
            BackwardOp((hidden, statistics), (sketch.gradient("d normed"),), gradients),
            once=True,
        ),
        OpWork(0, 2 * HIDDEN_NBYTES, 2, 0, 3 * HIDDEN_NBYTES, 2),
        "norm",
    )
    loss, seed = sketch.storage("loss", 4), sketch.gradient("d loss", 4)
    sketch.op(
        TrainingOp(
            "sum", "aten.sum", (normed,), (loss,), BackwardOp((), (seed,), (GradientEdge(sketch.gradient("d normed")),))
        ),
        OpWork(0, HIDDEN_NBYTES, 1, 0, HIDDEN_NBYTES, 1),
        "",
    )
    graph = TrainingGraph(
        tuple(sketch.ops),
        tuple(sketch.storages.values()),
        tuple(sketch.gradients.values()),
        (loss,),
        (seed,),
        Stationary((layers - 1) * WEIGHT_NBYTES + 256, 2 * WIDTH * 4, HIDDEN_NBYTES),
        tuple((name, f"{name}.view") if name.startswith("product") else (name,) for name in sketch.storages),
        assumed=("the loss is a sum",),
    )
    graph.validate()
    return Annotation(graph, tuple(sketch.works), tuple(sketch.scopes), "torch 2.13.0", "cpu")


def annotated_model(annotation: Annotation | None = None, *, layers: int = 6) -> onnx.ModelProto:
    """The forward of `residual_network` in ONNX, annotated; its weights lie in a file that does not exist."""
    nodes, weights, value = [], [], "x"

    def add(op: str, op_type: str, inputs: list[str], output: str) -> None:
        node = helper.make_node(op_type, inputs, [output], name=f"node_{op}")
        entry = node.metadata_props.add()
        entry.key, entry.value = NODE_KEY, op
        nodes.append(node)

    for i in range(layers):
        name = "w1" if i == layers - 1 else f"w{i}"
        if name not in [weight.name for weight in weights]:
            weights.append(_external(name))
        add(f"mm_{i}", "MatMul", [value, name], f"product{i}")
        add(f"dropout_{i}", "Dropout", [f"product{i}"], f"dropped{i}")
        if i:
            add(f"add_{i}", "Add", [value, f"dropped{i}"], f"h{i}")
        value = f"h{i}" if i else "dropped0"
    add("norm", "Relu", [value], "normed")
    nodes.append(helper.make_node("ReduceMean", ["normed"], ["loss"], name="untold", keepdims=0))
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        weights,
    )
    opset = [helper.make_opsetid("", 18)]
    made = helper.make_model(graph, opset_imports=opset, producer_name="pytorch", producer_version="2.13", ir_version=9)
    entry = made.metadata_props.add()
    entry.key, entry.value = MODEL_KEY, dumps(annotation or residual_network(layers))
    return made


def write_annotated(path: Path, annotation: Annotation | None = None) -> Path:
    """Write `annotated_model`."""
    path.write_bytes(annotated_model(annotation).SerializeToString())
    return path


def _external(name: str) -> TensorProto:
    tensor = numpy_helper.from_array(np.zeros((WIDTH, WIDTH), np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "absent.data"
    return tensor
