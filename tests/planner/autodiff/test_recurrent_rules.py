"""LSTM, GRU and RNN against what torch keeps: the workspace of oneDNN, and the buffers of a step-by-step run."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from ogc_plan.planner.autodiff.rule_table import Saved, saved_for_backward
from ogc_plan.planner.autodiff.rules.recurrent import lstm_workspace_nbytes
from ogc_plan.planner.graph import Graph, Op, Role, Storage, Tensor
from torch import nn

from tests.files.op_cases import address

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")
SIZES = [(7, 4, 10, 16), (7, 4, 20, 16), (14, 4, 10, 16), (7, 8, 10, 16), (7, 4, 10, 100), (30, 3, 33, 65),
         (12, 2, 300, 64), (5, 16, 64, 256), (1, 1, 1, 1)]  # fmt: skip
KINDS = ("LSTM", "GRU", "RNN")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Kept:
    """Bytes that a layer of torch keeps for its backward; ``hidden`` are those that are neither input nor output."""

    total: int
    hidden: dict[str, list[int]]


def kept(kind: str, sizes: tuple[int, int, int, int], directions: int, dtype: Any, onednn: bool) -> Kept:
    """What nn.LSTM, nn.GRU or nn.RNN keeps in addition to its parameters, found by saved-tensor hooks."""
    steps, rows, inputs, units = sizes
    module = getattr(nn, kind)(inputs, units, bidirectional=directions == 2).to(dtype)
    given = torch.randn(steps, rows, inputs, dtype=dtype, requires_grad=True)
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.backends.mkldnn.flags(enabled=onednn), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        result = module(given)
    parameters = {address(parameter) for parameter in module.parameters()}
    allocations = {address(tensor): tensor for tensor in saved if address(tensor) not in parameters}
    hidden: dict[str, list[int]] = {}
    for tensor in allocations.values():
        hidden.setdefault(str(tensor.dtype).removeprefix("torch."), []).append(tensor.untyped_storage().nbytes())
    del result
    return Kept(sum(sum(sizes) for sizes in hidden.values()), hidden)


def ruled(kind: str, sizes: tuple[int, int, int, int], *, states: bool = False, **attributes: Any) -> Saved:
    graph = graph_of(kind, sizes, 1, "float32", states, attributes)
    return saved_for_backward(graph.ops[0], graph, frozenset([0, 1, 2, 3]))


def graph_of(
    kind: str, sizes: tuple[int, int, int, int], directions: int, dtype: str, states: bool, attributes: dict[str, Any]
) -> Graph:
    """The ONNX op: X, W, R, B, sequence_lens and the initial states; Y and the last states."""
    steps, rows, inputs, units = sizes
    gates, state = GATES[kind] * units, (directions, rows, units)
    shapes: list[tuple[int, ...]] = [
        (rows, steps, inputs) if attributes.get("layout") else (steps, rows, inputs),
        (directions, gates, inputs), (directions, gates, units), (directions, 2 * gates),
    ]  # fmt: skip
    shapes += [state] * (2 if kind == "LSTM" else 1) * states
    outputs = [(steps, directions, rows, units), state] + [state] * (kind == "LSTM")
    tensors = tuple(
        Tensor(f"t{i}", shape, dtype, i, Role.PARAMETER if i in (1, 2, 3) else Role.ACTIVATION)
        for i, shape in enumerate([*shapes, *outputs])
    )
    given = (0, 1, 2, 3, None, *range(4, len(shapes)))
    made = tuple(range(len(shapes), len(tensors)))
    op = Op("op", kind, "", given, made, tuple({"hidden_size": units, **attributes}.items()))
    return Graph("one op", tuple(Storage(t.name, t.nbytes) for t in tensors), tensors, (op,), (), made)


def ruled_nbytes(kind: str, sizes: tuple[int, int, int, int], directions: int = 1, dtype: str = "float32") -> int:
    graph = graph_of(kind, sizes, directions, dtype, False, {})
    saved = saved_for_backward(graph.ops[0], graph, frozenset([0, 1, 2, 3]))
    held = [graph.tensors[graph.ops[0].inputs[i] or 0] for i in saved.inputs if i not in (1, 2)]
    held += [graph.tensors[graph.ops[0].outputs[i]] for i in saved.outputs]
    return sum(tensor.nbytes for tensor in held) + sum(saved.hidden_nbytes)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN lays rows out by the processor")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_workspace_of_an_lstm_is_that_of_onednn(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    workspace = kept("LSTM", sizes, 1, dtype, onednn=True).hidden.get("uint8")
    if workspace is None:
        pytest.skip("oneDNN does not run this type here")
    assert workspace == [lstm_workspace_nbytes(*sizes, dtype.itemsize)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("onednn", [True, False], ids=["oneDNN", "step by step"])
def test_the_rule_charges_no_less_than_torch_keeps(
    kind: str, sizes: tuple[int, int, int, int], directions: int, onednn: bool
) -> None:
    assert ruled_nbytes(kind, sizes, directions) >= kept(kind, sizes, directions, torch.float32, onednn).total


@pytest.mark.parametrize("directions", [1, 2])
def test_the_rule_of_an_lstm_is_within_one_percent_of_what_onednn_keeps(directions: int) -> None:
    sizes = (24, 8, 64, 128)
    measured = kept("LSTM", sizes, directions, torch.float32, onednn=True).total
    assert ruled_nbytes("LSTM", sizes, directions) == pytest.approx(measured, rel=0.01)


def test_the_rule_of_a_gru_is_what_torch_keeps_and_the_output_that_cudnn_keeps() -> None:
    steps, rows, _, units = sizes = (24, 8, 64, 128)
    measured = kept("GRU", sizes, 1, torch.float32, onednn=True).total
    assert ruled_nbytes("GRU", sizes) - measured == 4 * (steps + 1) * rows * units


def test_initial_states_that_are_given_are_read_and_not_hidden() -> None:
    free, given = ruled("LSTM", (7, 4, 10, 16)), ruled("LSTM", (7, 4, 10, 16), states=True)
    assert (given.inputs, len(given.hidden_nbytes)) == ((0, 1, 2, 5, 6), len(free.hidden_nbytes) - 2)
