"""Ops of a file against the node test cases of the onnx package; every case with ALL_NODE_CASES=1."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from ogc_plan.adapters.pytorch import from_onnx
from ogc_plan.adapters.pytorch.onnx_module.op_table import OPS
from ogc_plan.adapters.pytorch.onnx_module.weights import as_tensor
from ogc_plan.planner.autodiff.rule_table import RULES
from ogc_plan.planner.errors import ModelError
from onnx import TensorProto, numpy_helper

from tests.files.node_case_exclusions import EXCLUDED
from tests.files.node_cases import cases, op_type, prepare

pytestmark = pytest.mark.values

_DIFFERS = re.compile(
    "test_("
    "training_dropout.*|batchnorm_.*training_mode|bernoulli.*"  # random, or on the batch: the module is in eval mode
    "|gridsample_bicubic|averagepool_2d_ceil_last_window_starts_on_pad"  # the case states four digits
    "|top_k_same_values.*"  # torch takes any of equal values
    "|split_to_sequence.*|sequence_.*|.*_sequence|if_seq"  # the parts of a sequence are outputs of their own
    "|.*_expanded.*"
    ")"
)
_ALL = [name for name in cases() if name not in EXCLUDED and not _DIFFERS.fullmatch(name)]
_EVERY = "ALL_NODE_CASES" in os.environ
_FIRST = {
    "Attention": "test_attention_3d", "Cast": "test_cast_FLOAT_to_FLOAT16", "EyeLike": "test_eyelike_with_dtype",
}  # fmt: skip
"""The case of an op whose first one says little or is refused."""


def sampled() -> list[str]:
    """One case for each op."""
    first = dict(_FIRST)
    for name in _ALL:
        if op_type(name) in OPS:
            first.setdefault(op_type(name), name)
    return sorted(first.values())


def array(given: object) -> np.ndarray:
    return numpy_helper.to_array(given) if isinstance(given, TensorProto) else np.asarray(given)


@pytest.mark.parametrize("name", _ALL if _EVERY else sampled())
def test_a_case_gives_its_numbers(name: str, tmp_path: Path) -> None:
    prepared, case = prepare(name), cases()[name]
    onnx.save(prepared.model, tmp_path / "model.onnx")
    try:
        module = from_onnx(tmp_path / "model.onnx").eval()
    except ModelError:
        if _EVERY:
            pytest.skip("refused by name")
        raise
    data, wanted = case.data_sets[0]
    given = {entry.name: array(value) for entry, value in zip(case.model.graph.input, data, strict=True)}
    arguments = [as_tensor(given[entry], str(given[entry].dtype)) for entry in module.input_names]
    with torch.no_grad():
        made = module(*arguments)
    for mine, theirs in zip(made if isinstance(made, tuple) else (made,), wanted, strict=False):
        expected = as_tensor(array(theirs), str(array(theirs).dtype))
        if "float8" in str(expected.dtype):
            mine, expected = mine.float(), expected.float()
        loose = 1e-2 if expected.dtype in (torch.bfloat16, torch.float16) else 1e-4
        torch.testing.assert_close(mine, expected, rtol=loose, atol=loose / 10, equal_nan=True, check_dtype=False)


def test_ops_with_a_gradient_rule_that_torch_does_not_run_are_these() -> None:
    """An op that the table gains is taken out here; one that it loses is seen."""
    absent = {"CausalConvWithState", "DeformConv", "LinearAttention", "MaxRoiPool", "RoiAlign"}
    assert RULES.keys() - OPS.keys() == absent
