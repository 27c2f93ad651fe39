"""The gradient function of each op: what it reads, and what it gives; every node case with ALL_NODE_CASES=1."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from ogc_plan.adapters.onnx_step.gradients import gradient_table
from ogc_plan.adapters.onnx_step.gradients.backward_call import Backward
from ogc_plan.adapters.onnx_step.gradients.gradient_table import GRADIENTS, RECORDED
from ogc_plan.adapters.pytorch import from_onnx
from ogc_plan.planner.autodiff.rule_table import RULES
from ogc_plan.planner.autodiff.rules.aten_calls import RULES as RECORDED_RULES
from ogc_plan.planner.errors import ModelError, UnsupportedOpError

from tests.adapters.onnx_module.test_node_cases import arguments
from tests.adapters.onnx_step.gradient_cases import (
    apart,
    every_case,
    in_onnx_runtime,
    in_torch,
    sampled,
    write_case,
    written,
)
from tests.files.node_cases import op_type
from tests.files.onnx_models import model, node, save

pytestmark = pytest.mark.values

_EVERY = "ALL_NODE_CASES" in os.environ
_CASES = [name for name in every_case() if op_type(name) in GRADIENTS] if _EVERY else sampled(GRADIENTS)
_ELSEWHERE = set(
    "Bernoulli CastLike Ceil Dropout Floor GlobalLpPool LayerNormalization RotaryEmbedding"
    " Round Sign Trilu Upsample Scatter".split()
)
"""Ops with a gradient function of which the onnx package has no case that a gradient flows through."""


@pytest.mark.parametrize("name", _CASES)
def test_a_gradient_is_that_of_torch(name: str, tmp_path: Path) -> None:
    path = write_case(name, tmp_path)
    try:
        module = from_onnx(path)
        step = written(path)
    except ModelError:
        if _EVERY:
            pytest.skip("refused by name")
        raise
    given = arguments(module, name)
    theirs = in_torch(module, given, step)
    feed = {key: value.numpy() for key, value in zip(module.input_names, given, strict=True)}
    assert apart(in_onnx_runtime(step, {**feed, **theirs.seeds}), theirs.gradients, step) < 1e-5


@pytest.mark.parametrize("name", _CASES)
def test_a_gradient_reads_no_more_than_its_rule_charges(name: str, tmp_path: Path) -> None:
    """The writer refuses anything else by name, as the next test shows."""
    try:
        written(write_case(name, tmp_path), "min")
    except ModelError as error:
        if not _EVERY or "its rule" in str(error):
            raise


@pytest.mark.parametrize("op", ["Relu", "Neg", "Sigmoid"])
def test_a_gradient_that_reads_more_is_found_although_that_is_alive(
    op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward of Log, which comes later, reads the same input."""

    def greedy(call: Backward) -> None:
        call.give(0, call.g * call.x(0))

    nodes = [node("MatMul", "x w", "h"), node("Log", "h", "l"), node(op, "h", "a"), node("Add", "l a", "y")]
    monkeypatch.setitem(gradient_table.GRADIENTS, op, greedy)
    with pytest.raises(UnsupportedOpError, match="reads input 0, "):
        written(save(model(nodes, {"x": (4, 4)}, weights={"w": (4, 4)}), tmp_path))


@pytest.mark.parametrize(("softcap", "taken"), [(0.0, True), (2.0, False)])
def test_an_attribute_of_attention_without_effect_is_no_refusal(softcap: float, taken: bool, tmp_path: Path) -> None:
    attention = node("Attention", "q k v", "y", softcap=softcap, qk_matmul_output_mode=0)
    nodes = [node("MatMul", f"x w{one}", one) for one in "qkv"]
    made = model([*nodes, attention], {"x": (1, 2, 4, 8)}, weights={f"w{one}": (8, 8) for one in "qkv"}, opset=23)
    path = save(made, tmp_path)
    with contextlib.nullcontext() if taken else pytest.raises(UnsupportedOpError, match="softcap of Attention"):
        written(path)


def test_ops_with_a_gradient_rule_and_no_gradient_function_are_these() -> None:
    """An op that the table gains is taken out here; one that it loses is seen."""
    absent = {
        "AffineGrid", "CausalConvWithState", "Col2Im", "CumProd", "DFT", "DeformConv", "DequantizeLinear", "Det", "GRU",
        "GridSample", "LSTM", "LinearAttention", "LpPool", "MaxRoiPool", "MaxUnpool", "RNN", "RoiAlign",
        "STFT", "TensorScatter",
    }  # fmt: skip
    assert RULES.keys() - GRADIENTS.keys() == absent


def test_recorded_calls_with_a_rule_and_no_gradient_function_are_these() -> None:
    absent = {"addcdiv", "atan2", "fake_quantize", "huber_loss", "lerp", "roll", "smooth_l1_loss"}
    assert RECORDED_RULES.keys() - RECORDED.keys() == absent


def test_every_gradient_function_has_a_case() -> None:
    assert GRADIENTS.keys() - {op_type(name) for name in sampled(GRADIENTS)} <= _ELSEWHERE
