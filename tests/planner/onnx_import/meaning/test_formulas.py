"""Formulas without a record are charged as the call that exporters write so, in any spelling, and only as that."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from ogc_plan.planner.graph import Graph
from ogc_plan.planner.model import load_model
from ogc_plan.planner.onnx_import.reader import read_onnx
from onnx import helper, numpy_helper
from torch import Tensor, nn

from models.fidelity.formulas import export, network, planned_nbytes
from models.meters.storage_meter import LOSS_NBYTES, measure_step
from tests.modules.exported_modules import layers

pytestmark = pytest.mark.filterwarnings("ignore")

OLDER = (
    "GELU", "GELU tanh", "SiLU", "Mish", "LogSigmoid", "GLU", "LayerNorm", "LayerNorm without affine", "GroupNorm",
    "GroupNorm without affine", "lerp", "attention", "causal attention",
)  # fmt: skip
KINDS = (
    *((layer, "TorchScript", 14) for layer in OLDER), ("Hardswish", "TorchScript", 11), ("GELU", "TorchScript", 9),
    *((layer, "dynamo", 18) for layer in ("Huber loss", "SmoothL1 loss", "lerp", "GroupNorm without affine", "area")),
    ("Hardshrink", "TorchScript", 14), ("Softshrink", "TorchScript", 17), ("Hardshrink", "dynamo", 18),
    ("Softshrink", "dynamo", 23), ("Threshold", "dynamo", 20),
    ("mixture of experts", "TorchScript", 14), ("AdaptiveAvgPool2d to 7", "dynamo", 23),
    ("AdaptiveAvgPool2d to more", "dynamo", 18),
)  # fmt: skip
"""Layers, exporters and opsets in which the exporter writes a formula."""


@pytest.mark.parametrize(("layer", "exporter", "opset"), KINDS)
def test_a_formula_peaks_like_the_call_of_a_real_step(layer: str, exporter: str, opset: int, tmp_path: Path) -> None:
    module, value = network(layer)
    measured = measure_step(module, (value,)).activations.nbytes - LOSS_NBYTES
    export(*network(layer), exporter, opset, tmp_path / "model.onnx")
    assert planned_nbytes(load_model(tmp_path / "model.onnx", device="cpu")) == pytest.approx(measured, rel=1e-4)


# --- any spelling ---------------------------------------------------------------------------------------------------


class Spelling:
    """Nodes of a formula with random orders of operands and places of constants."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def op(self, op_type: str, *operands: str, **attributes: object) -> str:
        """A new value; the operands of a sum or a product stand in any order."""
        listed = list(operands)
        if op_type in ("Add", "Mul"):
            self.random.shuffle(listed)
        name = f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, listed, [name], **attributes))
        return name

    def number(self, value: float) -> str:
        """A constant of no or one dimension, as a Constant or an initializer."""
        name = f"number{len(self.nodes)}_{len(self.initializers)}"
        shape = self.random.choice(((), (1,)))
        array = numpy_helper.from_array(np.full(shape, value, np.float32), name)
        if self.random.random() < 0.5:
            self.initializers.append(array)
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=array))
        return name

    def one_of(self, *written: Callable[[], str]) -> str:
        return self.random.choice(written)()

    def times(self, value: str, factor: float) -> str:
        return self.one_of(
            lambda: self.op("Mul", value, self.number(factor)), lambda: self.op("Div", value, self.number(1 / factor))
        )

    def square(self, value: str) -> str:
        return self.one_of(lambda: self.op("Mul", value, value), lambda: self.op("Pow", value, self.number(2)))

    def product_with_half(self, value: str, factor: str) -> str:
        return self.one_of(
            lambda: self.times(self.op("Mul", value, factor), 0.5),
            lambda: self.op("Mul", value, self.times(factor, 0.5)),
            lambda: self.op("Mul", self.times(value, 0.5), factor),
        )

    def gelu(self, value: str) -> str:
        curve = self.op("Erf", self.times(value, 2**-0.5))
        return self.product_with_half(value, self.op("Add", curve, self.number(1)))

    def tanh_gelu(self, value: str) -> str:
        cube = self.one_of(
            lambda: self.op("Mul", value, self.square(value)), lambda: self.op("Pow", value, self.number(3))
        )
        inner = self.op("Add", value, self.op("Mul", cube, self.number(0.044715)))
        curve = self.op("Tanh", self.op("Mul", inner, self.number((2 / np.pi) ** 0.5)))
        return self.product_with_half(value, self.op("Add", curve, self.number(1)))

    def layer_norm(self, value: str) -> str:
        mean = self.op("ReduceMean", value, axes=[-1])
        difference = self.op("Sub", value, mean)
        again = self.one_of(lambda: difference, lambda: self.op("Sub", value, mean))
        variance = self.op("Add", self.op("ReduceMean", self.square(again), axes=[-1]), self.number(1e-5))
        deviation = self.one_of(lambda: self.op("Sqrt", variance), lambda: self.op("Pow", variance, self.number(0.5)))
        normal = self.one_of(
            lambda: self.op("Div", difference, deviation),
            lambda: self.op("Mul", difference, self.op("Reciprocal", deviation)),
        )
        return self.op("Add", self.op("Mul", normal, "scale"), "shift")

    def folded_layer_norm(self, value: str) -> str:
        """As TensorFlow writes it."""
        mean = self.op("ReduceMean", value, axes=[-1])
        variance = self.op("ReduceMean", self.square(self.op("Sub", value, mean)), axes=[-1])
        deviation = self.op("Sqrt", self.op("Add", variance, self.number(1e-5)))
        scale = self.op("Mul", self.op("Reciprocal", deviation), "scale")
        return self.op("Add", self.op("Mul", value, scale), self.op("Sub", "shift", self.op("Mul", mean, scale)))


def spelled(formula: str, seed: int, folder: Path) -> Graph:
    """A product, the formula of it, and another product."""
    spelling = Spelling(seed)
    first = spelling.op("MatMul", "x", "first")
    spelling.op("MatMul", getattr(spelling, formula)(first), "last")
    spelling.nodes[-1].output[:] = ["y"]
    weights = {"first": (16, 16), "last": (16, 16), "scale": (16,), "shift": (16,)}
    arrays = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()]
    graph = helper.make_graph(
        spelling.nodes,
        "spelled",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (4, 16))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [*arrays, *spelling.initializers],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), path)
    return read_onnx(path)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    ("formula", "op_type"),
    [
        ("gelu", "Gelu"),
        ("tanh_gelu", "Gelu"),
        ("layer_norm", "LayerNormalization"),
        ("folded_layer_norm", "LayerNormalization"),
    ],
)
def test_every_spelling_of_another_program_is_the_one_call(
    formula: str, op_type: str, seed: int, tmp_path: Path
) -> None:
    assert [op.op_type for op in spelled(formula, seed, tmp_path).ops] == ["MatMul", op_type, "MatMul"]


# --- what stays -----------------------------------------------------------------------------------------------------


def exported(module: nn.Module, value: Tensor, folder: Path) -> onnx.ModelProto:
    export(module, value, "TorchScript", 14, folder / "exported.onnx")
    return onnx.load(folder / "exported.onnx")


def op_types(proto: onnx.ModelProto, folder: Path) -> set[str]:
    onnx.save(proto, folder / "changed.onnx")
    return {op.op_type for op in read_onnx(folder / "changed.onnx").ops}


INSIDE = {"GELU": ("Erf", "Gelu"), "LayerNorm": ("Sqrt", "LayerNormalization"), "attention": ("Softmax", "Attention")}


@pytest.mark.parametrize("layer", INSIDE)
def test_a_formula_whose_inside_is_an_output_stays(layer: str, tmp_path: Path) -> None:
    inside, fused = INSIDE[layer]
    module, value = network(layer)
    proto = exported(module[:2], value, tmp_path)
    name = next(node.output[0] for node in proto.graph.node if node.op_type == inside)
    proto.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    assert fused not in op_types(proto, tmp_path)


def test_a_formula_whose_inside_a_branch_reads_stays(tmp_path: Path) -> None:
    module, value = network("SiLU")
    proto = exported(module[:2], value, tmp_path)
    gate = next(node.output[0] for node in proto.graph.node if node.op_type == "Sigmoid")
    taken = helper.make_graph(
        [helper.make_node("Neg", [gate], ["negative"])], "taken", [],
        [helper.make_tensor_value_info("negative", onnx.TensorProto.FLOAT, None)],
    )  # fmt: skip
    condition = numpy_helper.from_array(np.array(True), "condition")
    proto.graph.initializer.append(condition)
    proto.graph.node.append(helper.make_node("If", ["condition"], ["z"], then_branch=taken, else_branch=taken))
    proto.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    assert "Swish" not in op_types(proto, tmp_path)


def _by_hand(value: Tensor) -> Tensor:
    """GPT-2's activation."""
    return 0.5 * value * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (value + 0.044715 * torch.pow(value, 3.0))))


def _norm_over_channels(value: Tensor) -> Tensor:
    difference = value - value.mean(1, keepdim=True)
    return difference / torch.sqrt(difference.pow(2).mean(1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(
    "function", [_by_hand, _norm_over_channels, lambda value: value * torch.sigmoid(1.702 * value)]
)
def test_what_torch_has_no_call_for_or_a_user_spelled_out_stays(
    function: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    proto = exported(*layers(function)(), tmp_path)
    assert not op_types(proto, tmp_path) & {"Gelu", "LayerNormalization", "Swish"}


def test_values_put_at_indices_are_those_of_an_index_add_only_where_a_record_says_so(tmp_path: Path) -> None:
    export(*network("mixture of experts"), "dynamo", 18, tmp_path / "model.onnx")
    proto = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    for node in proto.graph.node:
        del node.metadata_props[:]
    (tmp_path / "bare.onnx").write_bytes(proto.SerializeToString())
    said = [" ".join(read_onnx(tmp_path / name).assumed) for name in ("model.onnx", "bare.onnx")]
    assert ["3 index_add" in sentences for sentences in said] == [True, False]


def test_the_assumptions_count_the_formulas(tmp_path: Path) -> None:
    module, value = network("LayerNorm")
    exported(nn.Sequential(module, nn.GELU()), value, tmp_path)
    assert read_onnx(tmp_path / "exported.onnx").assumed[-1:] == (
        "formulas are charged as the one call of torch that they stand for: 1 gelu, 3 layer_norm",
    )


def test_pieces_of_a_chunk_are_one_split(tmp_path: Path) -> None:
    proto = exported(*layers(lambda value: value.chunk(2, -1)[0] * value.chunk(2, -1)[1], wide=2)(), tmp_path)
    assert "Slice" not in op_types(proto, tmp_path)
