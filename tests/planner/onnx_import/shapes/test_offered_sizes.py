"""Sizes that an error offers are sizes by which the model reads."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import onnx
import pytest
import torch
from ogc_plan.planner.errors import UnboundDimensionError, UnsupportedOpError
from ogc_plan.planner.onnx_import.reader import read_onnx
from torch import nn

from tests.files.onnx_models import INT64, model, node, read, save


class Recurrent(nn.Module):
    """Two recurrent layers and a linear one, with states that are arguments."""

    def __init__(self, kind: type[nn.RNNBase], *, batch_first: bool = False) -> None:
        super().__init__()
        self.layers, self.last = kind(5, 7, 2, batch_first=batch_first), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(x, states if len(states) > 1 else states[0])[0])


X, STATE = torch.zeros(4, 2, 5), torch.zeros(2, 2, 7)
NETWORKS = {
    "an LSTM": (Recurrent(nn.LSTM), (X, STATE, STATE)),
    "a GRU": (Recurrent(nn.GRU), (X, STATE)),
    "a convolution of fixed extent": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 14 * 14, 3)),
        (torch.zeros(2, 3, 16, 16),),
    ),
    "a convolution in three dimensions": (nn.Conv3d(3, 4, 3, groups=1), (torch.zeros(2, 3, 8, 8, 8),)),
    "a matrix product of three dimensions": (nn.Linear(6, 4), (torch.zeros(2, 3, 6),)),
    "an embedding": (nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 4)), (torch.zeros(2, 9, dtype=torch.long),)),
}


def without_sizes(proto: onnx.ModelProto, kind: str) -> onnx.ModelProto:
    """The file with inputs of no shape, of unknown sizes or of named ones."""
    del proto.graph.value_info[:]
    for entry in proto.graph.output:
        entry.type.tensor_type.ClearField("shape")
    for entry in proto.graph.input:
        if kind == "no shape":
            entry.type.tensor_type.ClearField("shape")
        for place, dim in enumerate(entry.type.tensor_type.shape.dim):
            dim.Clear()
            if kind == "names":
                dim.dim_param = f"{entry.name}_{place}"
    return proto


def offered(remedy: str) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """The dimensions and shapes in a remedy."""
    dims: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    words = shlex.split(remedy.removeprefix("pass ").partition(" with ")[0])
    for option, word in zip(words[::2], words[1::2], strict=True):
        name, _, size = word.rpartition("=")
        if option == "--dim":
            dims[name] = int(size)
        else:
            shapes[name] = tuple(map(int, size.split("x")))
    return dims, shapes


@pytest.mark.parametrize("kind", ["no shape", "unknown sizes", "names"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_reads_with_the_sizes_that_its_error_offers(name: str, kind: str, tmp_path: Path) -> None:
    network, arguments = NETWORKS[name]
    path = tmp_path / "exported.onnx"
    torch.onnx.export(network, arguments, str(path), dynamo=False, opset_version=17)
    path = save(without_sizes(onnx.load(path), kind), tmp_path)
    with pytest.raises(UnboundDimensionError) as caught:
        read_onnx(path)
    dims, shapes = offered(caught.value.remedy)
    assert read_onnx(path, dims=dims, inputs=shapes).ops


def test_shapes_that_depend_on_one_another_are_offered_together(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "i"), node("Transpose", "i", "t"), node("GatherND", "w t", "g"),
             node("Compress", "g c", "k"), node("Relu", "k", "y")]  # fmt: skip
    proto = model([node("Greater", "x z", "b"), node("Cast", "x", "q", to=9), *nodes], {"x": [2, 4], "z": [2, 4]},
                  weights={"w": (2, 4)}, constants={"c": [True, False]})  # fmt: skip
    with pytest.raises(UnsupportedOpError) as caught:
        read(proto, tmp_path)
    _, shapes = offered(caught.value.remedy)
    assert read(proto, tmp_path, inputs=shapes).ops


def test_sizes_that_no_trial_finds_are_asked_for_without_numbers(tmp_path: Path) -> None:
    proto = model([node("Reshape", "x s", "r"), node("MatMul", "r w", "y")], {"x": ["n", 3]},
                  weights={"w": (7, 2)}, constants={"s": [11, 7]}, input_type=1)  # fmt: skip
    with pytest.raises(UnboundDimensionError) as caught:
        read(proto, tmp_path)
    assert caught.value.remedy == "pass --dim n=N with the sizes that the model was made for"


def test_a_size_is_offered_though_an_op_is_refused_at_every_size(tmp_path: Path) -> None:
    with pytest.raises(UnboundDimensionError, match=re.escape("{'n': 8}")):
        read(model([node("Frobnicate", "x", "y", domain="own")], {"x": ["n", 3]}), tmp_path)


def test_indices_are_small_enough_for_the_table(tmp_path: Path) -> None:
    proto = model([node("Gather", "p i", "h"), node("Add", "h e", "y")], {"i": ["n", "m"]},
                  weights={"p": (50, 8), "e": (1, 16, 8)}, input_type=INT64)  # fmt: skip
    with pytest.raises(UnboundDimensionError) as caught:
        read(proto, tmp_path)
    assert caught.value.remedy == "pass --dim n=8 --dim m=16"
