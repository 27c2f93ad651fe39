"""Damaged models give a graph or one line with a remedy, never a traceback."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.errors import InvalidModelError, OgcPlanError, OversizeError, UnsupportedOpError
from ogc_plan.planner.onnx_import.document.exporter_records import recorded_call
from ogc_plan.planner.onnx_import.document.functions import check_functions
from ogc_plan.planner.onnx_import.document.model_file import parse_model
from ogc_plan.planner.onnx_import.reader import forward_calls
from ogc_plan.planner.onnx_import.values import value_table
from onnx import TensorProto, helper, numpy_helper

from tests.files.onnx_models import model, node, read
from tests.files.onnx_mutations import mutate
from tests.planner.onnx_import.test_control_flow import SEQUENCES, TANH, X, body, choice

DEEP = body([node("Relu", "x", "h"), choice("d", "b", body([node("Exp", "h", "a")], "a"), TANH)], "b")
CALLED = helper.make_function("own", "f", ["a"], ["d"], [node("Relu", "a", "d")], [helper.make_opsetid("", 21)])
SMALL = [
    *(model(nodes, X, constants={"zero": 0, "one": 1, "last": -1}) for nodes, _ in SEQUENCES.values()),
    model([choice("c", "y", DEEP, TANH)], X, constants={"c": True, "d": True}),
    model([choice("c", "y", DEEP, TANH), node("f", "x", "z", domain="own")], X, functions=[CALLED]),
]


def lines(proto: onnx.ModelProto, *, charge_unknown: bool) -> list[str]:
    """What the reader says of a model, in its errors; nothing where it reads it."""
    try:
        derive_backward(forward_calls(parse_model(proto.SerializeToString()), "m", charge_unknown=charge_unknown).graph)
    except OgcPlanError as error:
        return [str(error), error.remedy]
    return []


def test_damaged_models_give_a_graph_or_one_line_and_a_remedy() -> None:
    said: list[str] = []
    for seed in range(300):
        whole = random.Random(seed).choice(SMALL)
        said += lines(mutate(whole, seed), charge_unknown=seed % 2 == 0)
    assert [line for line in said if not line or "\n" in line] == []


NOT_FITTING = {
    "an attribute of another type": (
        node("Concat", "x x", "y", axis=1.0),
        'has an attribute "axis" that is not INT',
    ),
    "a split into another number of parts": (node("Split", "x", "y z", num_outputs=3), "2 outputs and num_outputs 3"),
    "parts of no whole size": (
        node("SplitToSequence", "x inf", "s"),
        "its split is of type float32, not whole numbers",
    ),
    "a first input left out": (node("Relu", "_", "y"), 'leaves out its input "X"'),
    "a cast like nothing": (node("CastLike", "x _", "y"), 'leaves out its input "target_type"'),
    "one of many inputs left out": (node("Min", "x _", "y"), 'leaves out its input "data_0"'),
    "a sequence reversed along its batch": (
        node("ReverseSequence", "x lengths", "y", batch_axis=1, time_axis=1),
        "with batch axis 1 and time axis 1",
    ),
    "attention without heads": (node("Attention", "r r r", "y", q_num_heads=0, kv_num_heads=0), "q_num_heads"),
    "an equation of no terms": (node("Einsum", "x x", "y", equation="...."), 'has the equation "...."'),
    "batches of less than no dimensions": (
        node("GatherND", "x lengths", "y", batch_dims=-(2**31)),
        "has batch_dims -2",
    ),
    "a norm beyond the last dimension": (
        node("LayerNormalization", "x inf", "y", axis=2**63 - 1),
        r"and takes \[2, 4\]",
    ),
    "a norm along the dimension after the last": (node("LpNormalization", "x", "y", axis=2), "has axis 2 and takes"),
    "axes that a scalar does not have": (node("GroupNormalization", "inf inf inf", "y", num_groups=1), "no channels"),
    "channels that fit no groups": (node("GroupNormalization", "x r r", "y", num_groups=3), "do not fit 3 groups"),
    "a scale that is no number": (node("Upsample", "x nan", "y"), "bytes"),
    "an order of one dimension": (node("Transpose", "x", "y", perm=[0]), r"takes \[2, 4\] with perm \[0\]"),
    "attention to a flat past": (node("Attention", "q q q _ x x", "y p v"), "past"),
}
CONSTANTS = {
    "inf": np.array([np.inf], np.float32),
    "lengths": np.array([2, 4], np.int64),
    "one": np.array([1], np.int64),
    "nan": np.array([1, np.nan], np.float32),
    "r": np.zeros((2, 4, 8), np.float32),
    "q": np.zeros((2, 4, 4, 8), np.float32),
}


@pytest.mark.parametrize("what", NOT_FITTING)
def test_a_node_that_does_not_fit_its_op(tmp_path: Path, what: str) -> None:
    """The onnx library trusts a node, and a split into parts that do not exist ends the whole process."""
    damaged, message = NOT_FITTING[what]
    with pytest.raises(InvalidModelError, match=message):
        read(model([damaged], X, damaged.output[0], constants=CONSTANTS, opset=23), tmp_path)


def test_a_slice_with_an_axis_too_many(tmp_path: Path) -> None:
    nodes = [node("Cast", "e", "i", to=7), node("Slice", "x one i lengths", "y")]
    with pytest.raises(InvalidModelError, match=r"different lengths: \[1, 2\]"):
        read(model(nodes, {**X, "e": [1]}, constants=CONSTANTS), tmp_path, inputs={"y": (1, 4)})


def test_a_slice_of_a_scalar(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="takes a scalar"):
        read(model([node("Slice", "x", "y", starts=[3], ends=[1])], {"x": []}, opset=1), tmp_path)


def test_an_op_that_its_opset_does_not_have_is_charged_only_with_an_axis(tmp_path: Path) -> None:
    charged = model([node("LayerNormalization", "x inf", "y", axis=[1])], X, constants=CONSTANTS, opset=6)
    with pytest.raises(InvalidModelError, match=r"has axis = \(1,\)"):
        read(charged, tmp_path, charge_unknown=True, inputs={"y": (2, 4)})


def test_the_size_of_an_input_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(OversizeError, match=r'the model takes "x" of \d{20} bytes'):
        read(model([node("Size", "x", "y")], {"x": [2**62, 4]}), tmp_path)


def test_a_size_copied_from_a_dimension_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"turns \[2, 4\] \(8 elements\) into \[2, 4, 0\]"):
        read(model([node("Reshape", "x", "y", shape=[0, 0, 0])], X, opset=1), tmp_path)


def test_odd_names_are_quoted_on_one_line(tmp_path: Path) -> None:
    odd = 'a"b\n\tc'
    proto = model([helper.make_node("Frobnicate", ["x"], ["y"], name=odd)], X)
    with pytest.raises(OgcPlanError, match=r'node "a\\"b\\n\\tc" \(Frobnicate\)'):
        read(proto, tmp_path)


def test_a_name_that_is_not_text_deep_inside_is_refused(tmp_path: Path) -> None:
    inner = body([node("Relu", "x", "QQQQ"), node("Exp", "QQQQ", "a")], "a")
    data = model([choice("c", "y", inner, TANH)], X, constants={"c": True}).SerializeToString()
    with pytest.raises(InvalidModelError):
        parse_model(data.replace(b"QQQQ", b"\xff\xfe\xfd\xfc"))


def test_a_string_that_an_output_needs_is_refused_by_name(tmp_path: Path) -> None:
    proto = model([node("Equal", "x x", "b"), node("Cast", "b", "y", to=1)], X, input_type=TensorProto.STRING)
    with pytest.raises(OgcPlanError, match='input "x" has element type string'):
        read(proto, tmp_path)


def timed(call: Callable[[], object]) -> float:
    """Seconds of processor time."""
    began = time.process_time()
    call()
    return time.process_time() - began


class TestBombs:
    """Small files that would grow in memory are refused by a bound, before they do."""

    def test_constants_of_functions_that_are_called_often(self) -> None:
        heavy = node("Constant", "", "c", value=numpy_helper.from_array(np.zeros(2**18, np.float32)))
        own = helper.make_function(
            "own", "f", ["a"], ["b"], [heavy, node("Relu", "a", "b")], [helper.make_opsetid("", 21)]
        )
        calls = [node("f", "x", f"y{k}", domain="own") for k in range(1_100)]
        with pytest.raises(UnsupportedOpError, match=r"expand to 1\d{9} bytes"):
            check_functions(model(calls, X, "y0", functions=[own]))

    def test_functions_that_call_one_another_without_end(self) -> None:
        imports = [helper.make_opsetid("own", 1)]
        names = [f"f{k}" for k in range(102)]
        chain = [
            helper.make_function("own", name, ["a"], ["b"], [node(callee, "a", "b", domain="own")], imports)
            for name, callee in pairwise(names)
        ]
        with pytest.raises(UnsupportedOpError, match="more than 100 functions call one another"):
            check_functions(model([node("f0", "x", "y", domain="own")], X, functions=chain))

    def test_values_beyond_the_limit_are_not_computed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        nodes = [node("Add", "n n", "m"), node("Sub", "m n", "shape"), node("Reshape", "x shape", "y")]
        proto = model(nodes, X, constants={"n": np.array([2, 4], np.int64)})
        assert read(proto, tmp_path).opset == 21
        monkeypatch.setattr(value_table, "MAX_KNOWN_NBYTES", 15)
        with pytest.raises(UnsupportedOpError, match="depends on data"):
            read(proto, tmp_path)

    @pytest.mark.parametrize(
        "nodes", [[node("Reshape", "x r", "y")], [node("Mul", "x big", "y")]], ids=["made", "given"]
    )
    def test_more_dimensions_than_a_tensor_has(self, tmp_path: Path, nodes: list[onnx.NodeProto]) -> None:
        constants = {"r": np.array([8] + [1] * 64, np.int64)}
        proto = model(nodes, X, constants=constants)
        proto.graph.initializer.append(TensorProto(name="big", data_type=1, dims=[1] * 65))
        with pytest.raises(UnsupportedOpError, match="has 65 dimensions; at most 64"):
            read(proto, tmp_path)

    def test_a_record_that_can_be_parted_in_many_ways(self) -> None:
        begun, ended = "= call_function[target=torch.ops.aten.a.b](args = (", "), kwargs = {"
        odd = node("Relu", "x", "y")
        odd.metadata_props.add(key="pkg.torch.onnx.fx_node", value="%a : x" + begun * 150 + ended * 600)
        assert timed(lambda: recorded_call(odd)) < 0.5
