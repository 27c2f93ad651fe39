"""`ogc-plan profile`: times of a bare file's ops by ONNX Runtime, and plans by them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from ogc_plan.adapters.onnx_step.forward_file import forward_file
from ogc_plan.adapters.onnxruntime.op_times import profile
from ogc_plan.planner import load_model
from ogc_plan.planner.costs import backward_ratios
from onnx import TensorProto, helper, numpy_helper

from models.light import light_path
from tests.cli.calls import Call
from tests.files.annotated_files import write_annotated

BATCH = ("--batch", "256")
SHAPES = {"x": (64, 64), "y": (64, 32)}


@pytest.fixture
def times(run: Call, model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "new" / "times.json"
    assert run("profile", model, *BATCH, "--threads", "1", "-q", "-o", path).code == 0
    return path


def test_the_report_says_what_was_measured_and_where_it_went(run: Call, model: Path, tmp_path: Path) -> None:
    out = run("profile", model, *BATCH, "-o", tmp_path / "times.json").out
    assert [word for word in ("onnxruntime", "backward by ratios", "Gemm", "times.json") if word not in out] == []


def test_a_plan_by_it_says_which_times_it_used(run: Call, model: Path, times: Path) -> None:
    out = run(model, *BATCH, "--budget", "70%", "--profile", times).out
    (line,) = (line for line in out.splitlines() if line.startswith("timed by"))
    assert line.split(maxsplit=2)[2] == (
        f"profile: onnxruntime {onnxruntime.__version__}, cpu, 1 thread; backward by ratios"
    )


def test_a_plan_by_it_has_its_times(run: Call, model: Path, times: Path, tmp_path: Path) -> None:
    assert run(model, *BATCH, "--budget", "70%", "--profile", times, "-q", "-o", tmp_path / "plan.json").code == 0
    ops = json.loads(times.read_text())["ops"]
    made = json.loads((tmp_path / "plan.json").read_text())["time"]
    assert made["store_all_ns"] == sum(op["forward_ns"] + op["backward_ns"] for op in ops)


def test_a_plan_by_it_is_verified(run: Call, model: Path, times: Path, tmp_path: Path) -> None:
    assert run(model, *BATCH, "--budget", "70%", "--profile", times, "-q", "-o", tmp_path / "plan.json").code == 0
    assert run("verify", tmp_path / "plan.json", model).code == 0


def test_to_standard_output_come_the_times_alone(run: Call, model: Path) -> None:
    assert json.loads(run("profile", model, *BATCH, "-o", "-").out)["format"] == "ogc-plan profile"


def test_as_json_come_the_sums(run: Call, model: Path) -> None:
    found = json.loads(run("profile", model, *BATCH, "--format", "json").out)
    assert found["step_ns"] > found["forward_ns"] > 0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--device", "t4"), 2, "no such option '--device'"),
        (("--rounds", "0"), 2, "--rounds '0' is not a whole number of 1 or more"),
        (("-o", "-", "--format", "json"), 2, "leaves no standard output for the times"),
        (("-o", "{model}"), 2, "would overwrite the model"),
    ],
)
def test_what_cannot_be_profiled_is_one_line(
    run: Call, model: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    done = run("profile", model, *BATCH, *(word.format(model=model) for word in words))
    assert (done.code, told in done.error) == (code, True)


def test_times_of_another_batch_are_refused(run: Call, model: Path, times: Path) -> None:
    done = run(model, "--batch", "128", "--budget", "70%", "--profile", times)
    assert (done.code, "the profile was measured of graph" in done.error, "ogc-plan profile" in done.err) == (
        2,
        True,
        True,
    )


def test_a_file_with_annotations_is_refused(run: Call, tmp_path: Path) -> None:
    done = run("profile", write_annotated(tmp_path / "annotated.onnx"))
    assert (done.code, "has annotations" in done.error) == (4, True)


def chain(path: Path, *widths: int) -> Path:
    """Products of matrices, named by their place; their weights lie in a file that is not there."""
    weights = []
    for at, (width, next_width) in enumerate(pairwise(widths)):
        weight = numpy_helper.from_array(np.zeros((width, next_width), np.float32), f"w{at}")
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in {"location": "nowhere.bin", "offset": "0", "length": str(4 * width * next_width)}.items():
            weight.external_data.add(key=key, value=value)
        weights.append(weight)
    nodes = [
        helper.make_node("MatMul", [f"x{at}", f"w{at}"], [f"x{at + 1}"], name=f"product{at}")
        for at in range(len(weights))
    ]
    ends = [helper.make_tensor_value_info(f"x{at}", TensorProto.FLOAT, [512, widths[at]]) for at in (0, len(weights))]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


def test_a_longer_op_has_a_longer_time_and_weights_need_not_be_there(tmp_path: Path) -> None:
    path = chain(tmp_path / "chain.onnx", 16, 16, 2048, 2048)
    found = {op.name: op.forward_ns for op in profile(load_model(path), str(path), threads=1).ops}
    assert found["product2"] > 20 * found["product0"] > 0


def test_no_node_is_of_two_ops_and_every_op_has_some() -> None:
    path = light_path("shufflenet")
    written = forward_file(load_model(path), str(path))
    assert all(written.nodes)
    assert len({name for names in written.nodes for name in names}) == sum(map(len, written.nodes))


def test_views_take_no_time(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Slice", ["a", "starts", "ends"], ["b"], name="cut"),
        helper.make_node("Transpose", ["b"], ["c"], name="turn", perm=[1, 0]),
        helper.make_node("Softmax", ["c"], ["y"], name="last"),
    ]
    weights = [numpy_helper.from_array(np.ones((64, 64), np.float32), "w")]
    weights += [numpy_helper.from_array(np.array(at), name) for name, at in (("starts", [0, 0]), ("ends", [32, 64]))]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in SHAPES.items()]
    graph = helper.make_graph(nodes, "views", ends[:1], ends[1:], weights)
    path = tmp_path / "views.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    model = load_model(path)
    nodes_of = dict(zip((op.name for op in model.training.ops), forward_file(model, str(path)).nodes, strict=True))
    assert nodes_of == {"first": ("first/MatMul",), "cut": (), "last": ("last/Softmax",)}


@pytest.mark.parametrize("correction", [1.0, 3.0])
def test_a_backward_is_the_ratio_of_the_roofline_times_the_correction(
    correction: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(chain(tmp_path / "chain.onnx", 256, 256, 256, 256))
    monkeypatch.setattr(backward_ratios, "CORRECTIONS", {"MatMul": correction})
    assert model.graph is not None
    _, whole, _ = backward_ratios.backward_times(model.graph, model.training, [1000] * 3)
    products = 2
    assert whole == pytest.approx(1000 * products * correction, rel=0.1)


def test_the_first_op_makes_one_gradient_of_two(tmp_path: Path) -> None:
    model = load_model(chain(tmp_path / "chain.onnx", 256, 256, 256, 256))
    assert model.graph is not None
    first, whole, _ = backward_ratios.backward_times(model.graph, model.training, [1000] * 3)
    assert first == pytest.approx(whole / 2, rel=0.1)
