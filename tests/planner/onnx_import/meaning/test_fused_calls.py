"""What torch's exporter writes as several nodes is charged as the call that eager torch runs, and only that."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx
import pytest
import torch
from ogc_plan.planner.graph import Graph
from ogc_plan.planner.model import load_model
from ogc_plan.planner.onnx_import.reader import read_onnx

from models.export import export_module
from models.fidelity.step import simulated_peaks
from models.meters.storage_meter import measure_step
from tests.modules.exported_modules import MODULES, WITH_TEMPORARIES, layers

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
OLDER = ("silu", "gelu", "gelu by tanh", "attention", "causal attention", "attention of parts", "group norm and silu")
"""Also exported at opset 18, where these calls are written as more nodes."""
SCALAR_NBYTES = 16  # the loss of the measured step


@cache
def content(name: str, opset: int) -> bytes:
    torch.manual_seed(0)
    module, example = {**MODULES, **WITH_TEMPORARIES}[name]()
    return export_module(module, (example,), opset=opset).SerializeToString()


def exported(name: str, opset: int) -> onnx.ModelProto:
    return onnx.load_from_string(content(name, opset))


def measured_nbytes(name: str) -> int:
    torch.manual_seed(0)
    module, example = {**MODULES, **WITH_TEMPORARIES}[name]()
    return measure_step(module.train(), (example,)).activations.nbytes


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize(("name", "opset"), [*((name, 23) for name in MODULES), *((name, 18) for name in OLDER)])
def test_an_export_saves_what_a_real_step_saves(name: str, opset: int, tmp_path: Path) -> None:
    simulated, _ = simulated_peaks(load_model(saved(exported(name, opset), tmp_path), device="cpu"))
    assert abs(simulated - measured_nbytes(name)) <= SCALAR_NBYTES


@pytest.mark.parametrize("name", WITH_TEMPORARIES)
def test_an_export_with_its_temporaries_peaks_like_a_real_step(name: str, tmp_path: Path) -> None:
    _, simulated = simulated_peaks(load_model(saved(exported(name, 23), tmp_path), device="cpu"))
    measured = measured_nbytes(name) - SCALAR_NBYTES
    assert measured <= simulated <= 1.1 * measured


def op_types(proto: onnx.ModelProto, folder: Path) -> set[str]:
    return {op.op_type for op in graph_of(proto, folder).ops}


def graph_of(proto: onnx.ModelProto, folder: Path) -> Graph:
    return read_onnx(saved(proto, folder))


@pytest.fixture
def silu() -> onnx.ModelProto:
    return exported("silu", 18)


def test_a_recorded_call_is_one_op_and_named_as_assumed(silu: onnx.ModelProto, tmp_path: Path) -> None:
    graph = graph_of(silu, tmp_path)
    assert {op.op_type for op in graph.ops} == {"MatMul", "Add", "Swish"}
    assert any("3 silu as Swish" in sentence for sentence in graph.assumed)


def test_without_records_nodes_are_read_as_the_formula_that_they_write(silu: onnx.ModelProto, tmp_path: Path) -> None:
    for node in silu.graph.node:
        del node.metadata_props[:]
    assert any(sentence.endswith("stand for: 3 silu") for sentence in graph_of(silu, tmp_path).assumed)


def test_a_record_on_nodes_that_compute_something_else_is_not_believed(silu: onnx.ModelProto, tmp_path: Path) -> None:
    sigmoids = [node.output[0] for node in silu.graph.node if node.op_type == "Sigmoid"]
    for node in silu.graph.node:
        if node.op_type == "Mul" and set(node.input) & set(sigmoids):
            gate = next(name for name in node.input if name in sigmoids)
            node.input[:] = [gate, gate]
    assert "Swish" not in op_types(silu, tmp_path)


def test_a_user_who_writes_the_formula_keeps_its_parts(tmp_path: Path) -> None:
    assert "Swish" not in op_types(exported("a product with a sigmoid", 18), tmp_path)


def test_a_call_whose_inside_is_read_elsewhere_stays_as_it_is_written(silu: onnx.ModelProto, tmp_path: Path) -> None:
    inner = next(node.output[0] for node in silu.graph.node if node.op_type == "Sigmoid")
    silu.graph.output.append(onnx.helper.make_tensor_value_info(inner, onnx.TensorProto.FLOAT, None))
    assert "Sigmoid" in op_types(silu, tmp_path)


@pytest.mark.parametrize(
    "record", ["", "%silu : call", "[" * 5000, "%x : = call_function[target=torch.ops.aten.silu.x](("]
)
def test_a_damaged_record_is_none(silu: onnx.ModelProto, tmp_path: Path, record: str) -> None:
    for node in silu.graph.node:
        for entry in node.metadata_props:
            entry.value = record
    assert not any("silu as Swish" in sentence for sentence in graph_of(silu, tmp_path).assumed)


def test_attention_traced_with_a_dropout_that_the_file_has_lost_stays_and_is_named(tmp_path: Path) -> None:
    proto = exported("attention", 18)
    for node in proto.graph.node:
        for entry in node.metadata_props:
            if "scaled_dot_product_attention.default" in entry.value:
                entry.value = entry.value.replace("), kwargs", ", None, 0.1), kwargs")
    graph = graph_of(proto, tmp_path)
    assert "Attention" not in {op.op_type for op in graph.ops}
    assert any("dropout that the file has lost" in sentence for sentence in graph.assumed)


@pytest.mark.parametrize("by", ["contiguous", "clone"])
def test_a_copy_has_memory_of_its_own(tmp_path: Path, by: str) -> None:
    module, example = layers(lambda value: value.tanh().clone())()
    proto = exported("attention of parts", 23) if by == "contiguous" else export_module(module, (example,))
    graph = graph_of(proto, tmp_path)
    copy = next(op for op in graph.ops if op.op_type == "Identity")
    assert graph.tensors[copy.outputs[0]].storage != graph.tensors[copy.inputs[0] or 0].storage


def test_a_dropout_keeps_a_byte_for_each_element_on_a_gpu(tmp_path: Path) -> None:
    path = saved(exported("dropout", 23), tmp_path)
    peaks = [simulated_peaks(load_model(path, device=device))[0] for device in ("cpu", "h200")]
    assert peaks[0] - peaks[1] == 3 * 3 * 2 * 16 * 32
