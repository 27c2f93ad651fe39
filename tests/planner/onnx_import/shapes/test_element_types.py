"""Element types that exporters write although the op's definition does not allow them at that opset."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.errors import InvalidModelError
from ogc_plan.planner.graph import Graph
from onnx import TensorProto

from tests.files.onnx_models import model, node, op, read, tensor

CONV = [node("Conv", "x w", "y")]
BFLOAT16 = TensorProto.BFLOAT16


def of_type(number: int, proto: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """The model with those initializers, or all of them, of another element type, two bytes each."""
    for weight in proto.graph.initializer:
        if not names or weight.name in names:
            dims = list(weight.dims)
            weight.CopyFrom(TensorProto(name=weight.name, dims=dims, data_type=number, raw_data=bytes(2 * prod(dims))))
    return proto


def bfloat16_conv(folder: Path, opset: int = 18) -> Graph:
    proto = model(CONV, {"x": [2, 3, 8, 8]}, weights={"w": (4, 3, 3, 3)}, input_type=BFLOAT16, opset=opset)
    return read(of_type(BFLOAT16, proto), folder)


def half_norm(folder: Path, number: int = BFLOAT16) -> Graph:
    norm = [node("LayerNormalization", "x w b", "y")]
    return read(model(norm, {"x": [4, 8]}, weights={"w": (8,), "b": (8,)}, input_type=number, opset=23), folder)


def masked(folder: Path, op_type: str = "Add", operands: str = "s mask") -> Graph:
    nodes = [node("MatMul", "x w", "s"), node("Less", "x zero", "less"), node("Slice", "less a b one", "mask")]
    nodes.append(node(op_type, operands, "y"))
    bounds = {"zero": np.float32(0), "a": [0], "b": [5], "one": [1]}
    proto = model(nodes, {"x": [4, 8]}, weights={"w": (8, 5)}, constants=bounds, opset=23)
    return read(proto, folder)


class TestATypeThatTheOpsetDoesNotAllow:
    def test_the_bytes_are_those_of_the_real_type(self, tmp_path: Path) -> None:
        assert tensor(bfloat16_conv(tmp_path), "y").nbytes == 2 * 4 * 6 * 6 * 2

    def test_the_weight_is_trained(self, tmp_path: Path) -> None:
        assert derive_backward(bfloat16_conv(tmp_path)).parameter_gradient_nbytes == 4 * 3 * 3 * 3 * 2

    def test_it_is_assumed_and_counted(self, tmp_path: Path) -> None:
        assert bfloat16_conv(tmp_path).assumed == (
            "1 Conv of bfloat16, which opset 18 does not allow there, is read as it is",
        )

    def test_nothing_is_assumed_where_the_opset_allows_it(self, tmp_path: Path) -> None:
        assert bfloat16_conv(tmp_path, opset=22).assumed == ()

    def test_an_integer_is_refused_with_the_opset_that_allows_it(self, tmp_path: Path) -> None:
        proto = model([node("Relu", "x", "y")], {"x": [2, 4]}, input_type=TensorProto.INT32, opset=13)
        with pytest.raises(InvalidModelError, match='takes the int32 "x" as input 0, which opset 13') as caught:
            read(proto, tmp_path)
        assert caught.value.remedy == "export the model at opset 14, which allows it"

    def test_an_integer_that_no_opset_allows_asks_for_a_cast(self, tmp_path: Path) -> None:
        proto = model([node("Sigmoid", "x", "y")], {"x": [2, 4]}, input_type=TensorProto.INT32)
        with pytest.raises(InvalidModelError) as caught:
            read(proto, tmp_path)
        assert caught.value.remedy == "export the model with a Cast in front of it"

    def test_inputs_of_different_types_are_named(self, tmp_path: Path) -> None:
        proto = of_type(TensorProto.FLOAT16, model([node("Add", "x w", "y")], {"x": [2, 4]}, weights={"w": (4,)}))
        with pytest.raises(InvalidModelError, match="inputs of different element types: float32, float16"):
            read(proto, tmp_path)


class TestTypesThatTorchMixes:
    """A norm of halves with float32 scales, as autocast leaves it, and a loss of class probabilities."""

    def test_a_norm_keeps_the_type_of_its_input(self, tmp_path: Path) -> None:
        assert tensor(half_norm(tmp_path), "y").dtype == "bfloat16"

    def test_a_norm_is_assumed_and_counted(self, tmp_path: Path) -> None:
        assert half_norm(tmp_path).assumed == (
            "1 LayerNormalization of bfloat16 and float32, which opset 23 does not allow there, is read as it is",
        )

    def test_a_norm_of_integers_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidModelError, match='takes the int32 "x" as input 0'):
            half_norm(tmp_path, TensorProto.INT32)

    @pytest.mark.parametrize(("reduction", "shape"), [("none", (4, 5)), ("mean", ())])
    def test_a_loss_of_class_probabilities_has_no_class_dimension(
        self, tmp_path: Path, reduction: str, shape: tuple[int, ...]
    ) -> None:
        loss = [node("SoftmaxCrossEntropyLoss", "x p", "y", reduction=reduction)]
        assert tensor(read(model(loss, {"x": [4, 3, 5], "p": [4, 3, 5]}), tmp_path), "y").shape == shape

    def test_a_loss_of_floating_point_labels_of_another_shape_is_refused(self, tmp_path: Path) -> None:
        loss = [node("SoftmaxCrossEntropyLoss", "x p", "y")]
        with pytest.raises(InvalidModelError, match='takes the float32 "p" as input 1'):
            read(model(loss, {"x": [4, 3, 5], "p": [4, 5]}), tmp_path)


class TestABoolMaskInArithmetic:
    def test_the_result_is_floating_point(self, tmp_path: Path) -> None:
        assert tensor(masked(tmp_path), "y").dtype == "float32"

    @pytest.mark.parametrize("operands", ["s mask", "mask s"])
    def test_the_mask_is_cast_first(self, tmp_path: Path, operands: str) -> None:
        cast = op(graph := masked(tmp_path, operands=operands), "Cast")
        assert [graph.tensors[index].name for index in (*cast.inputs, *cast.outputs) if index is not None] == [
            "mask",
            "mask as float32",
        ]

    def test_it_is_assumed_and_counted(self, tmp_path: Path) -> None:
        assert masked(tmp_path).assumed == (
            "1 Add of float32 and bool, which ONNX does not allow, is read with the bool cast to float32",
        )

    def test_a_bool_elsewhere_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidModelError, match='takes the bool "mask" as input 1, which opset 23 does not allow'):
            masked(tmp_path, "Pow")
