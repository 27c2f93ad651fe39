"""Files written by torch.onnx.export are read as the module that was exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ogc_plan.planner.errors import InvalidModelError
from ogc_plan.planner.graph import Graph, Role, View
from ogc_plan.planner.onnx_import.reader import read_onnx
from torch import Tensor, nn
from torch.nn import functional as F

from tests.files.onnx_models import op

pytestmark = pytest.mark.filterwarnings(
    "ignore:Exporting a model while it is in training mode", "ignore::FutureWarning"
)
OPSETS = (18, 23)


class ConvNet(nn.Module):
    """Convolutions, three norms, a transposed convolution and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.groups = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, image: Tensor) -> Tensor:
        skip = F.relu(self.norm(self.inner(image)))
        down = F.max_pool2d(self.groups(skip), 2)
        return self.last(torch.cat([skip, self.up(down)], 1))


class Block(nn.Module):
    """A GPT block with fused qkv, attention, dropout and a tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide, self.narrow = nn.Linear(32, 128), nn.Linear(128, 32)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", torch.ones(32))

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length = tokens.shape
        value = self.drop(self.tokens(tokens) + self.positions(torch.arange(length)))
        parts = self.qkv(self.first(value)).split(32, -1)
        query, key, content = (part.view(batch, length, 4, 8).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, content, is_causal=True)
        value = value + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, 32)))
        value = value + self.narrow(F.gelu(self.wide(self.second(value))))
        return self.head(value * self.scale)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


def export(module: nn.Module, example: Tensor, path: Path, opset: int, *, dynamic: bool = False) -> Path:
    if not path.exists():
        names = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")} if dynamic else None
        torch.onnx.export(
            module,
            (example,),
            path,
            dynamo=True,
            optimize=False,
            opset_version=opset,
            dynamic_shapes=None if names is None else (names,),
            verbose=False,
        )
    return path


def conv_net(folder: Path, opset: int, batch: int | None = None) -> Graph:
    return read_onnx(export(ConvNet(), torch.randn(2, 3, 16, 16), folder / f"conv{opset}.onnx", opset), batch=batch)


def block(folder: Path, opset: int, batch: int | None = None) -> Graph:
    example = torch.zeros(2, 16, dtype=torch.long)
    return read_onnx(export(Block().train(), example, folder / f"block{opset}.onnx", opset), batch=batch)


def trained_nbytes(graph: Graph) -> int:
    storages = {t.storage for t in graph.tensors if t.role is Role.PARAMETER}
    return sum(graph.storages[s].nbytes for s in storages)


def test_the_parameters_of_the_convolutional_net_are_those_of_the_module(folder: Path) -> None:
    expected = sum(parameter.nbytes for parameter in ConvNet().parameters())
    assert trained_nbytes(conv_net(folder, 23)) == expected


@pytest.mark.parametrize("opset", OPSETS)
def test_the_parameters_of_the_block_are_those_of_the_module(folder: Path, opset: int) -> None:
    expected = sum(parameter.nbytes for parameter in Block().parameters())
    assert trained_nbytes(block(folder, opset)) == expected


@pytest.mark.parametrize(("build", "opset"), [(conv_net, 23), (block, 18), (block, 23)])
def test_an_export_takes_another_batch(folder: Path, build: Callable[..., Graph], opset: int) -> None:
    graph = build(folder, opset, 5)
    assert graph.tensors[graph.outputs[0]].shape[0] == 5


@pytest.mark.parametrize("opset", OPSETS)
def test_the_parts_of_the_fused_projection_share_its_storage(folder: Path, opset: int) -> None:
    graph = block(folder, opset)
    split = op(graph, "Split")
    assert {graph.tensors[o].storage for o in split.outputs} == {graph.tensors[split.inputs[0] or 0].storage}


@pytest.mark.parametrize("opset", OPSETS)
def test_the_heads_are_views_up_to_the_attention(folder: Path, opset: int) -> None:
    graph = block(folder, opset)
    after = [made for made in graph.ops if made.op_type in ("Reshape", "Transpose")][:6]
    assert {made.view for made in after} == {View.WHOLE}


def test_the_tied_embedding_is_one_storage(folder: Path) -> None:
    graph = block(folder, 23)
    first, last = graph.ops[0], [made for made in graph.ops if made.op_type == "MatMul"][-1]
    assert graph.tensors[first.inputs[0] or 0].storage == graph.tensors[last.inputs[1] or 0].storage


@pytest.mark.parametrize("opset", OPSETS)
def test_attention_is_one_op(folder: Path, opset: int) -> None:
    assert op(block(folder, opset), "Attention").outputs


def test_a_dynamic_export_reads_at_any_size(folder: Path) -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.linear = nn.Parameter(torch.zeros(1, 1, 8)), nn.Linear(8, 8)

        def forward(self, value: Tensor) -> Tensor:
            value = torch.cat([self.token.expand(value.shape[0], -1, -1), value], 1)
            left, right = self.linear(value).chunk(2, -1)
            return left * right

    path = export(Tokens(), torch.randn(2, 5, 8), folder / "dynamic.onnx", 18, dynamic=True)
    graph = read_onnx(path, dims={"seq": 196}, batch=32)
    assert graph.tensors[graph.outputs[0]].shape == (32, 197, 4)


class Scaled(nn.Module):
    """A parameter called ``name``, and a transpose, which the exporter calls "t": [4, 8] -> [4, 4]."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer, self.name = nn.Linear(8, 8), name
        self.register_parameter(name, nn.Parameter(torch.tensor(2.0)))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h @ h.t() * self.get_parameter(self.name)


def exported(name: str, folder: Path) -> Path:
    path = folder / "scaled.onnx"
    torch.onnx.export(Scaled(name), (torch.zeros(4, 8),), str(path), dynamo=True, optimize=False, verbose=False)
    return path


def test_two_values_of_one_name_are_refused_with_what_to_rename(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError) as caught:
        read_onnx(exported("t", tmp_path))
    assert caught.value.remedy.startswith('rename what the module calls "t", as a parameter or an argument')


def test_the_renamed_parameter_is_read(tmp_path: Path) -> None:
    graph = read_onnx(exported("scale", tmp_path))
    assert any(tensor.name == "scale" and tensor.role is Role.PARAMETER for tensor in graph.tensors)
