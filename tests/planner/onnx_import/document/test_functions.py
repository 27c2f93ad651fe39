"""Functions that a file defines for itself: inlined with their attributes, overloads and opsets, or refused by name."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
import pytest
from ogc_plan.planner.errors import InvalidModelError, UnsupportedOpError
from ogc_plan.planner.graph import Graph
from onnx import AttributeProto, helper

from tests.files.onnx_models import model, node, op, read


def function(
    name: str,
    nodes: list[onnx.NodeProto],
    *,
    inputs: str = "a",
    outputs: str = "d",
    opset: int = 21,
    domain: str = "own",
    overload: str = "",
    attributes: tuple[str, ...] = (),
    defaults: tuple[AttributeProto, ...] = (),
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset)]
    return helper.make_function(
        domain, name, inputs.split(), outputs.split(), nodes, imports, attributes, defaults, overload=overload
    )


def inlined(folder: Path, nodes: list[onnx.NodeProto], *functions: onnx.FunctionProto, opset: int = 21) -> Graph:
    proto = model(nodes, {"x": [2, 1, 4]}, opset=opset, functions=functions)
    for entry in list(proto.opset_import)[1:]:
        if not entry.domain:
            proto.opset_import.remove(entry)
    return read(proto, folder)


def call(
    name: str, inputs: str = "x", outputs: str = "y", *, overload: str = "", **attributes: object
) -> onnx.NodeProto:
    made = node(name, inputs, outputs, domain="own", **attributes)
    made.overload = overload
    return made


def types(graph: Graph) -> list[str]:
    return [made.op_type for made in graph.ops]


def leaky() -> onnx.NodeProto:
    made = node("LeakyRelu", "a", "d")
    made.attribute.append(AttributeProto(name="alpha", ref_attr_name="slope", type=AttributeProto.FLOAT))
    return made


def test_an_attribute_reaches_the_body(tmp_path: Path) -> None:
    graph = inlined(tmp_path, [call("f", slope=0.5)], function("f", [leaky()], attributes=("slope",)))
    assert op(graph, "LeakyRelu").attribute("alpha") == 0.5


@pytest.mark.parametrize(("given", "expected"), [({}, 0.25), ({"slope": 0.5}, 0.5)])
def test_a_default_attribute_is_used_where_none_is_given(
    tmp_path: Path, given: dict[str, float], expected: float
) -> None:
    defaults = (helper.make_attribute("slope", 0.25),)
    graph = inlined(tmp_path, [call("f", **given)], function("f", [leaky()], defaults=defaults))
    assert op(graph, "LeakyRelu").attribute("alpha") == expected


def test_overloads_are_distinct(tmp_path: Path) -> None:
    first = function("f", [node("Relu", "a", "d")], overload="one")
    second = function("f", [node("Tanh", "a", "d")], overload="two")
    nodes = [call("f", "x", "h", overload="one"), call("f", "h", "y", overload="two")]
    assert types(inlined(tmp_path, nodes, first, second)) == ["Relu", "Tanh"]


def test_an_input_that_is_left_out_is_absent_in_the_body(tmp_path: Path) -> None:
    clip = function("f", [node("Clip", "a low high", "d")], inputs="a low high")
    assert op(inlined(tmp_path, [call("f")], clip), "Clip").inputs[1:] == (None, None)


def test_values_of_a_body_are_new_at_every_call(tmp_path: Path) -> None:
    body = function("f", [node("Relu", "a", "x"), node("Exp", "x", "d")])
    graph = inlined(tmp_path, [call("f", "x", "h"), call("f", "h", "y")], body)
    assert len({tensor.name for tensor in graph.tensors}) == 5


OPSETS = {
    "older, with ops that have not changed since": ([node("Relu", "a", "d")], 18, 21, "Relu"),
    "older, with an op that has changed, in a model without that op": (
        [node("Squeeze", "a", "d", axes=[1])],
        11,
        21,
        "Squeeze",
    ),
    "newer, with an op that the model's opset lacks": ([node("Gelu", "a", "d")], 20, 17, "Gelu"),
}


@pytest.mark.parametrize("which", OPSETS)
def test_a_function_of_an_opset_that_is(tmp_path: Path, which: str) -> None:
    nodes, inner, outer, expected = OPSETS[which]
    calls = [node("Sigmoid", "x", "h"), call("f", "h")]
    assert types(inlined(tmp_path, calls, function("f", nodes, opset=inner), opset=outer)) == ["Sigmoid", expected]


def test_an_older_function_is_converted_where_its_op_changed_and_the_model_uses_it_too(tmp_path: Path) -> None:
    nodes = [node("Shape", "x", "s", end=1), node("Unsqueeze", "x s", "h"), call("f", "h")]
    graph = inlined(tmp_path, nodes, function("f", [node("Unsqueeze", "a", "d", axes=[0])], opset=11))
    assert graph.tensors[graph.outputs[0]].shape == (1, 2, 1, 1, 4)


def test_a_function_whose_opset_cannot_be_brought_to_the_models_is_refused(tmp_path: Path) -> None:
    nodes = [node("Squeeze", "x", "h", axes=[1]), call("f", "h")]
    with pytest.raises(InvalidModelError, match="cannot be inlined"):
        inlined(tmp_path, nodes, function("f", [node("Gelu", "a", "d")], opset=20), opset=11)


def test_a_body_with_an_op_of_another_domain_is_refused_by_its_name(tmp_path: Path) -> None:
    body = function("f", [node("FusedGelu", "a", "d", domain="com.microsoft")])
    with pytest.raises(UnsupportedOpError, match=r"\(FusedGelu\) is an op of .com.microsoft."):
        inlined(tmp_path, [call("f")], body)


REFUSED = {
    "with more inputs than it has": ([call("f", "x x")], 'calls function "f" with 2 inputs and 1 output; it has 1'),
    "with more outputs than it has": ([call("f", "x", "y z")], "with 1 input and 2 outputs"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_function_called(tmp_path: Path, how: str) -> None:
    nodes, message = REFUSED[how]
    with pytest.raises(InvalidModelError, match=message):
        inlined(tmp_path, nodes, function("f", [node("Relu", "a", "d")]))


def test_a_function_bomb_is_refused_at_once(tmp_path: Path) -> None:
    levels = [function("f0", [node("Relu", "a", "b"), node("Relu", "b", "d")])]
    for k in range(1, 26):
        calls = [call(f"f{k - 1}", "a", "b"), call(f"f{k - 1}", "b", "d")]
        levels.append(function(f"f{k}", calls))
    start = time.process_time()
    with pytest.raises(UnsupportedOpError, match="expand to 67108864 nodes"):
        inlined(tmp_path, [call("f25")], *levels)
    assert time.process_time() - start < 1


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    endless = function("again", [call("again", "a", "d")])
    with pytest.raises(InvalidModelError, match="calls itself"):
        inlined(tmp_path, [call("again")], endless)
