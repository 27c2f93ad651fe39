"""Ops of a file against the node test cases of the onnx package; every case with ALL_NODE_CASES=1."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from ogc_plan.adapters.pytorch import OnnxModule, from_onnx
from ogc_plan.adapters.pytorch.onnx_module.op_table import OPS
from ogc_plan.adapters.pytorch.onnx_module.weights import as_tensor
from ogc_plan.planner.autodiff.rule_table import RULES
from ogc_plan.planner.errors import ModelError
from ogc_plan.planner.model import load_model
from onnx import TensorProto, numpy_helper
from torch import Tensor

from tests.files.node_case_exclusions import EXCLUDED
from tests.files.node_cases import cases, op_type, prepare
from tests.files.op_cases import address

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


def arguments(module: OnnxModule, name: str) -> list[Tensor]:
    """What a case gives to the inputs that are left."""
    case = cases()[name]
    given = {
        entry.name: array(value) for entry, value in zip(case.model.graph.input, case.data_sets[0][0], strict=True)
    }
    return [as_tensor(given[entry], str(given[entry].dtype)) for entry in module.input_names]


@pytest.mark.parametrize("name", _ALL if _EVERY else sampled())
def test_a_case_gives_its_numbers(name: str, tmp_path: Path) -> None:
    onnx.save(prepare(name).model, tmp_path / "model.onnx")
    try:
        module = from_onnx(tmp_path / "model.onnx").eval()
    except ModelError:
        if _EVERY:
            pytest.skip("refused by name")
        raise
    with torch.no_grad():
        made = module(*arguments(module, name))
    wanted = cases()[name].data_sets[0][1]
    for mine, theirs in zip(made if isinstance(made, tuple) else (made,), wanted, strict=False):
        expected = as_tensor(array(theirs), str(array(theirs).dtype))
        if "float8" in str(expected.dtype):
            mine, expected = mine.float(), expected.float()
        loose = 1e-2 if expected.dtype in (torch.bfloat16, torch.float16) else 1e-4
        torch.testing.assert_close(mine, expected, rtol=loose, atol=loose / 10, equal_nan=True, check_dtype=False)


def saved_nbytes(module: OnnxModule, given: list[Tensor]) -> int:
    """What autograd holds after the forward, without what is there all step."""
    seen: dict[int, Tensor] = {}
    own = {address(value) for value in (*module.parameters(), *module.buffers(), *given)}

    def keep(value: Tensor) -> Tensor:
        seen[address(value)] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        module(*given)
    return sum(value.untyped_storage().nbytes() for key, value in seen.items() if key not in own)


def charged_nbytes(path: Path) -> int:
    """What the planner's rules say of the same."""
    training = load_model(path, device="cpu").training
    read = {storage for op in training.ops if op.backward is not None for storage in op.backward.reads}
    return sum(training.storages[storage].nbytes for storage in read)


_OTHERWISE = {
    "Compress": "makes its indices of the condition",
    "GRU": "is composed, where the case resets before the product",
    "LSTM": "turns the gates of its weights into torch's order",
    "LpPool": "is composed of an average alone",
    "PRelu": "is composed, where the slopes of the case are no channels",
    "RNN": "runs in a kernel that saves less than is charged",
}
"""Ops that save another number of bytes than the rule says, and why."""


@pytest.mark.parametrize("name", [name for name in sampled() if prepare(name).differentiable])
def test_a_case_saves_what_the_rule_of_its_op_says(name: str, tmp_path: Path) -> None:
    onnx.save(prepare(name).model, tmp_path / "model.onnx")
    module = from_onnx(tmp_path / "model.onnx")
    same = saved_nbytes(module, arguments(module, name)) == charged_nbytes(tmp_path / "model.onnx")
    assert same == (op_type(name) not in _OTHERWISE)


def test_ops_with_a_gradient_rule_that_torch_does_not_run_are_these() -> None:
    """An op that the table gains is taken out here; one that it loses is seen."""
    absent = {"CausalConvWithState", "DeformConv", "LinearAttention", "MaxRoiPool", "RoiAlign"}
    assert RULES.keys() - OPS.keys() == absent
