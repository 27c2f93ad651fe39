"""What an error says to pass can be passed as it is printed, and leads on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from ogc_plan.cli.main import main
from onnx import TensorProto, helper

from tests.files.onnx_models import model, node, save

FEW = 4  # errors that may follow one another


def layer(inputs: Mapping[str, list[int | str | None] | None], **options: object) -> onnx.ModelProto:
    names = list(inputs)
    nodes = [node("MatMul", "x w", "m"), *(node("Add", f"m {name}", "y") for name in names[1:])]
    proto = model(nodes, {}, weights={"w": (4, 4)}, **options)  # type: ignore[arg-type]
    proto.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, inputs[name]) for name in names)
    if not names[1:]:
        proto.graph.output[0].name = "m"
    return proto


def inner(name: str) -> onnx.ModelProto:
    """A tensor of that name whose shape depends on data."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Compress", ["m", "mask"], [name], axis=0),
        helper.make_node("Relu", [name], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": ["n", 4]}, weights={"w": (4, 4)})
    proto.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, ["n"]))
    return proto


def contrib() -> onnx.ModelProto:
    nodes = [node("MatMul", "x w", "m"), node("FastGelu", "m", "g", domain="com.microsoft"), node("Relu", "g", "y")]
    return model(nodes, {"x": ["n", 4]}, weights={"w": (4, 4)})


def time_major() -> onnx.ModelProto:
    weights = {"w": (1, 16, 5), "r": (1, 16, 4)}
    return model([node("LSTM", "x w r _ _ h", "y", hidden_size=4)], {"x": [6, 2, 5], "h": [1, 2, 4]}, weights=weights)


MODELS = {
    "two symbols": layer({"x": ["batch", "rows", 4], "z": ["batch", 1, 1]}),
    "symbols with blanks and quotes": layer({"x": ["the batch's size", "a*b", 4]}),
    "sizes without a name": layer({"x": [None, "?", 4]}),
    "a symbol and a size without a name": layer({"x": ["n", None, 4]}),
    "an input called by a path": inner("/model/part 1/out"),
    "a tensor called like an assignment": inner("a=b"),
    "an op of an unknown domain": contrib(),
}


def follow(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The words with what the errors say to pass, until there is no error; the last error where it says nothing."""
    for _ in range(FEW):
        capsys.readouterr()
        if main(words) == 0:
            return words
        told = capsys.readouterr().err.splitlines()[-1].removeprefix("help: ")
        found = re.match(r"(?:.*, or )?pass ((?:--[a-z-]+ ?(?:\S+=\S+|'[^']*'(?:\"'\"'[^']*')*\S*)? ?)+)", told)
        assert found is not None, told
        words = [*words, *(word for word in shlex.split(found[1]) if word != "to")]
    return []


@pytest.mark.parametrize("name", MODELS)
def test_a_model_reads_with_what_its_errors_say_to_pass(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(follow(["show", "-q", str(save(MODELS[name], tmp_path))], capsys)) > 3


def test_a_batch_that_would_be_time_is_replaced_by_what_the_error_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(save(time_major(), tmp_path))
    main(["show", path, "--batch", "8"])
    told = capsys.readouterr().err.splitlines()[-1]
    options = shlex.split(told.removeprefix("help: pass ").removesuffix(" in place of --batch"))
    assert main(["show", path, *options]) == 0


def test_an_input_without_a_shape_is_given_one_as_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node("Relu", "x", "a"), node("Mul", "a w", "y")]
    path = str(save(model(nodes, {"x": None}, weights={"w": (64,)}), tmp_path))
    main(["show", path])
    told = capsys.readouterr().err.splitlines()[-1]
    assert main(["show", path, *told.removeprefix("help: pass ").split(" with ")[0].split()]) == 0
