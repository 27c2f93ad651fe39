"""Damaged models give a graph or one line with a remedy, never a traceback."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.errors import InvalidModelError, OgcPlanError
from ogc_plan.planner.onnx_import.document.model_file import parse_model
from ogc_plan.planner.onnx_import.reader import forward_graph
from onnx import TensorProto, helper

from tests.files.node_cases import cases, prepare
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
        derive_backward(forward_graph(parse_model(proto.SerializeToString()), "m", charge_unknown=charge_unknown))
    except OgcPlanError as error:
        return [str(error), error.remedy]
    return []


def test_damaged_models_give_a_graph_or_one_line_and_a_remedy() -> None:
    names = sorted(cases())
    said: list[str] = []
    for seed in range(300):
        generator = random.Random(seed)
        whole = prepare(generator.choice(names)).model if seed % 3 else generator.choice(SMALL)
        said += lines(mutate(whole, seed), charge_unknown=seed % 2 == 0)
    assert [line for line in said if not line or "\n" in line] == []


NOT_FITTING = {
    "an attribute of another type": (
        node("Concat", "x x", "y", axis=1.0),
        'has an attribute "axis" that is not INT',
    ),
    "a split into another number of parts": (node("Split", "x", "y z", num_outputs=3), "2 outputs and num_outputs 3"),
    "a first input left out": (node("Relu", "_", "y"), 'leaves out its input "X"'),
    "a cast like nothing": (node("CastLike", "x _", "y"), "leaves out the input whose type it takes"),
    "a sequence reversed along its batch": (
        node("ReverseSequence", "x lengths", "y", batch_axis=1, time_axis=1),
        "with batch axis 1 and time axis 1",
    ),
    "attention without heads": (node("Attention", "r r r", "y", q_num_heads=0, kv_num_heads=0), "q_num_heads"),
    "attention to a flat past": (node("Attention", "q q q _ x x", "y p v"), "past"),
}
CONSTANTS = {
    "lengths": np.array([2, 4], np.int64),
    "r": np.zeros((2, 4, 8), np.float32),
    "q": np.zeros((2, 4, 4, 8), np.float32),
}


@pytest.mark.parametrize("what", NOT_FITTING)
def test_a_node_that_does_not_fit_its_op(tmp_path: Path, what: str) -> None:
    """The onnx library trusts a node, and a split into parts that do not exist ends the whole process."""
    damaged, message = NOT_FITTING[what]
    with pytest.raises(InvalidModelError, match=message):
        read(model([damaged], X, constants=CONSTANTS, opset=23), tmp_path)


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
