"""Numbers of one element are told by the names that exporters give; what is in doubt is said and can be overruled."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.errors import UsageError
from ogc_plan.planner.graph import Graph, Role
from ogc_plan.planner.model import load_model
from onnx import numpy_helper

from tests.files.onnx_models import model, node, read, save

SCHEMES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "Paddle": ("", "linear_{}.w_0", ("mobile_one_block_{}.w_0", "act_b_{}.w_1", "scale_{}.b_0"),
               ("auto.cast.{}", "p2o.helper.constant.{}", "helper.constant.{}", "fill_constant_{}.tmp_0")),
    "Paddle of old": ("PaddlePaddle", "conv{}_weights", ("gate{}_weights",), ("Constant_{}", "Constant@{}")),
    "torch": ("pytorch", "layers.{}.weight", ("layers.{}.alpha", "resweight{}", "fc.{}.bias", "logit_scale{}"),
              ("/act/Constant_{}_output_0", "onnx::Mul_{}", "{}", "val_{}", "/Constant_output_{}")),
    "tf2onnx": ("tf2onnx", "model/dense_{}/MatMul/ReadVariableOp:0",
                ("model/scale_{}/Mul/ReadVariableOp:0", "m/batch_normalization_{}/FusedBatchNormV3"),
                ("const_fold_opt__{}", "Const__{}", "model/tf.math.multiply_{}/Mul/y:0", "m/Const_{}:0")),
    "Keras": ("keras2onnx", "dense_{}/kernel:0", ("rezero_{}/alpha:0", "norm_{}/gamma:0"),
              ("pow_{}/y:0", "act/mul/x:{}")),
    "MXNet": ("", "dense{}_weight", ("scale{}_weight",), ("scalar_op{}", "mul{}_scalar")),
    "caffe2": ("onnx-caffe2", "gpu_0/fc{}_w_0", ("gpu_0/gate{}_w_0",), ("gpu_0/scalar_{}", "number{}")),
    "CNTK": ("CNTK", "W{}", (), ("Constant{}", "scalerPreprocessor_scale")),
    "a framework of one's own": ("", "block{}/proj.K", ("block{}/gate.K",), ("block{}/half",)),
    "numbers": ("", "{}", (), ("10{}", "2{}")),
}  # fmt: skip
"""Exporter -> producer, names of layers' weights, of weights of one element, and of numbers in formulas."""

Drawn = tuple[str, list[str], list[tuple[str, tuple[int, ...], str, bool]]]


@st.composite
def drawn_names(draw: st.DrawFn) -> Drawn:
    """A producer, weights of layers, and (name, shape, op, whether it is a weight) for numbers that ops apply."""
    producer, layer, weights, numbers = SCHEMES[draw(st.sampled_from(sorted(SCHEMES)))]
    made: dict[str, tuple[str, tuple[int, ...], str, bool]] = {}
    for position, template in enumerate(draw(st.permutations(weights + numbers))):
        trained = template in weights
        shape = draw(st.sampled_from([(1,), (1, 1)] if trained else [(), (1,), (1, 1)]))
        name = template.format(position + 20)
        made[name] = (name, shape, draw(st.sampled_from(["Mul", "Add"])), trained)
    return producer, [layer.format(position) for position in range(draw(st.integers(1, 3)))], list(made.values())


def network(drawn: Drawn) -> onnx.ModelProto:
    producer, layers, numbers = drawn
    nodes, last = [], "x"
    for position, name in enumerate(layers):
        nodes.append(onnx.helper.make_node("MatMul", [last, name], [f"m{position}"]))
        last = f"m{position}"
    for position, (name, _, op_type, _) in enumerate(numbers):
        nodes.append(onnx.helper.make_node(op_type, [last, name], [f"n{position}"]))
        last = f"n{position}"
    weights: dict[str, Sequence[int]] = dict.fromkeys(layers, (4, 4))
    proto = model(nodes, {"x": (2, 4)}, last, weights=weights | {name: shape for name, shape, *_ in numbers})
    proto.producer_name = producer
    return proto


def trained(graph: Graph) -> set[str]:
    return {graph.storages[t.storage].name for t in graph.tensors if t.role is Role.PARAMETER}


@given(drawn_names())
@settings(max_examples=100, deadline=None)
def test_numbers_of_one_element_are_weights_where_the_exporter_names_them_so(drawn: Drawn) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = trained(read(network(drawn), Path(folder)))
    assert found == {*drawn[1], *(name for name, *_, weight in drawn[2] if weight)}


@given(drawn_names())
@settings(max_examples=50, deadline=None)
def test_what_is_said_of_a_doubtful_number_overrules_it_as_printed(drawn: Drawn) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = save(network(drawn), Path(folder))
        before = load_model(path)
        for sentence in before.training.assumed:
            if "single numbers" in sentence:
                printed = re.search(r"(--frozen .*) (freezes|trains) it\)$", sentence)
                assert printed is not None
                after = load_model(path, frozen=[shlex.split(printed[1])[1]])
                gained = after.training.parameter_gradient_nbytes - before.training.parameter_gradient_nbytes
                assert gained == (4 if printed[2] == "trains" else -4)


@pytest.mark.parametrize(("outputs", "expected"), [(1, {"w", "7"}), (4, {"w"})])
def test_the_bias_of_a_layer_is_a_weight_by_its_place_if_the_layer_has_one_output(
    outputs: int, expected: set[str], tmp_path: Path
) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Add", "h 7", "y")]
    assert trained(read(model(nodes, {"x": (2, 4)}, weights={"w": (4, outputs), "7": (1,)}), tmp_path)) == expected


def test_a_number_added_behind_the_bias_of_a_layer_is_none(tmp_path: Path) -> None:
    nodes = [node("Gemm", "x w b", "h"), node("Add", "h 7", "y")]
    made = read(model(nodes, {"x": (2, 4)}, weights={"w": (4, 1), "b": (1,), "7": (1,)}), tmp_path)
    assert trained(made) == {"w", "b"}


def test_a_later_glob_after_an_exclamation_mark_takes_a_parameter_out_of_the_frozen_ones(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x a.w", "h"), node("MatMul", "h b.w", "y")]
    path = save(model(nodes, {"x": (2, 4)}, weights={"a.w": (4, 4), "b.w": (4, 4)}), tmp_path)
    made = load_model(path, frozen=["*.w", "!b.*"])
    assert [gradient.name for gradient in made.training.gradients if gradient.parameter] == ["gradient of b.w"]


def test_an_integer_cannot_be_trained_by_name(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "h"), node("Gather", "h i", "y")], {"x": (2, 4)}, weights={"w": (4, 4)})
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.int64), "i"))
    with pytest.raises(UsageError, match=r"frozen '!i' matches no floating constant"):
        load_model(save(proto, tmp_path), frozen=["!i"])
