"""The annotated ONNX file: a standard model with its weights, the training graph, and the op of each node."""

from __future__ import annotations

import copy
import errno
import logging
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch.binding import onnx_export as onnx_file
from ogc_plan.adapters.pytorch.binding.onnx_export import ExportError, write_onnx
from ogc_plan.planner.annotations import MODEL_KEY, NODE_KEY
from ogc_plan.planner.errors import StorageError
from onnx import numpy_helper
from torch import Tensor, nn

from models.export import check_model
from models.networks.gpt2 import GPT2, GPT2Config
from models.networks.resnet import ResNet
from models.networks.unet import UNet
from models.training.cases import Supervised
from tests.modules.devices import random_state

GRAPH = '{"version": 1, "ops": ["ä", "\\""]}'
IMAGE = (2, 3, 16, 16)
NETWORKS = ("resnet", "gpt2", "unet")


def network(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A small network of each kind in training mode, the GPT with its loss, and its arguments."""
    torch.manual_seed(0)
    images, tokens = torch.randn(IMAGE), torch.randint(64, (2, 16))
    if name == "resnet":
        resnet = ResNet((1, 1, 0, 0), classes=10).train()
        with torch.no_grad():
            resnet(images)  # running statistics other than 0 and 1
        return resnet, (images,)
    if name == "gpt2":
        gpt2 = GPT2(GPT2Config(vocabulary=64, context=16, layers=1, heads=2, width=16, dropout=0.1))
        return Supervised(gpt2, classes_last=True).train(), (tokens, tokens + 0)
    return UNet(2, (4, 8), norm="group").train(), (images,)


def export(module: nn.Module, args: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, args, strict=False)


def ops_of(program: torch.export.ExportedProgram) -> dict[str, tuple[str, ...]]:
    """One op for every call of the program."""
    return {node.name: (f"op {node.name}",) for node in program.graph.nodes if node.op == "call_function"}


@dataclass(frozen=True)
class Written:
    module: nn.Module
    args: tuple[Tensor, ...]
    program: torch.export.ExportedProgram
    path: Path

    @cached_property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path)


def write(module: nn.Module, args: tuple[Tensor, ...], path: Path, **options: Any) -> Written:
    """Export and write, with one op for every call unless told otherwise."""
    program = export(module, args)
    write_onnx(program, path, **{"training_graph": GRAPH, "op_of_node": ops_of(program), **options})
    return Written(module, args, program, path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    """Each network exported and written once."""
    return lru_cache(maxsize=None)(lambda name: write(*network(name), tmp_path_factory.mktemp(name) / "model.onnx"))


def op_named_by(node: onnx.NodeProto) -> str | None:
    return next((entry.value for entry in node.metadata_props if entry.key == NODE_KEY), None)


def ops_by_type(model: onnx.ModelProto, op_type: str) -> list[str | None]:
    return [op_named_by(node) for node in model.graph.node if node.op_type == op_type]


class Tail(nn.Module):
    """``run`` as a module."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


class Small(nn.Module):
    """A linear layer, then ``run`` on its 4x4 output inside a named submodule."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.middle = nn.Sequential(nn.Identity(), Tail(run))

    def forward(self, x: Tensor) -> Tensor:
        return self.middle(self.stem(x)).sum()


class Pair(nn.Module):
    """Two layers side by side, each on the device of its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.missing = nn.Linear(64, 64), nn.Linear(64, 64, device="meta")

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.real(x), self.missing(y)


def small(run: Callable[[Tensor], Tensor] = torch.exp) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return Small(run).train(), (torch.randn(4, 4),)


class TestOfEveryNetwork:
    @pytest.fixture(params=NETWORKS)
    def file(self, request: pytest.FixtureRequest, written: Callable[[str], Written]) -> Written:
        return written(request.param)

    def test_the_official_checker_accepts_the_file(self, file: Written) -> None:
        onnx.checker.check_model(str(file.path), full_check=True)

    def test_the_training_graph_is_in_the_metadata_word_for_word(self, file: Written) -> None:
        assert [(e.key, e.value) for e in file.model.metadata_props] == [(MODEL_KEY, GRAPH)]

    def test_every_onnx_node_names_its_op(self, file: Written) -> None:
        assert [node.name for node in file.model.graph.node if op_named_by(node) is None] == []

    def test_every_op_has_a_node_but_the_counters_of_batch_norm(self, file: Written) -> None:
        named = {op_named_by(node) for node in file.model.graph.node}
        unnamed = {str(node.target) for node in file.program.graph.nodes if f"op {node.name}" not in named}
        assert {target for target in unnamed if target.startswith("aten.")} <= {"aten.add_.Tensor"}

    def test_the_weights_are_those_of_the_module(self, file: Written) -> None:
        state = {key: value.numpy(force=True) for key, value in file.module.state_dict().items()}
        stored = [(t.name, numpy_helper.to_array(t)) for t in file.model.graph.initializer if t.name in state]
        assert [key for key, value in stored if (value != state[key]).any()] == []

    def test_every_parameter_is_stored_once(self, file: Written) -> None:
        names = {key for key, _ in file.module.named_parameters(remove_duplicate=False)}  # a tied weight has two
        stored = [tensor for tensor in file.model.graph.initializer if tensor.name in names]
        assert sum(math.prod(t.dims) for t in stored) == sum(p.numel() for p in file.module.parameters())

    def test_the_file_tells_nothing_of_the_exporting_machine(self, file: Written) -> None:
        assert os.fsencode(Path(__file__).resolve().parents[3]) not in file.path.read_bytes()


class TestWhichOp:
    @pytest.fixture(scope="class")
    @classmethod
    def mixed(cls, tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
        def run(x: Tensor) -> Tensor:
            y = F.softplus(x)
            with torch.no_grad():
                weight = y.sin().cos()
            grid = torch.zeros(1, 4, 4, 2)
            return F.grid_sample((y * weight).reshape(1, 1, 4, 4), grid, align_corners=False)

        return write(*small(run), tmp_path_factory.mktemp("mixed") / "m.onnx").model

    def test_every_node_of_a_call_that_becomes_several_is_found(self, mixed: onnx.ModelProto) -> None:
        named = [ops_by_type(mixed, kind) for kind in ("Softplus", "Where", "GridSample")]
        assert named == [["op softplus"], ["op softplus"], ["op grid_sampler"]]

    def test_a_block_without_gradients_is_one_call(self, mixed: onnx.ModelProto) -> None:
        assert ops_by_type(mixed, "Sin") == ops_by_type(mixed, "Cos") != [None]


def test_batch_norm_comes_out_in_inference_form(written: Callable[[str], Written]) -> None:
    nodes = [node for node in written("resnet").model.graph.node if node.op_type == "BatchNormalization"]
    assert {len(node.output) for node in nodes} == {1}


@pytest.mark.values
@pytest.mark.parametrize("name", ["resnet", "unet"])
def test_the_file_computes_the_outputs_of_evaluation_mode(name: str, written: Callable[[str], Written]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    file = written(name)
    session = runtime.InferenceSession(str(file.path), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {session.get_inputs()[0].name: file.args[0].numpy(force=True)})
    with torch.no_grad():
        expected = copy.deepcopy(file.module).eval()(*file.args)
    torch.testing.assert_close(torch.from_numpy(result), expected.cpu(), rtol=1e-4, atol=1e-4)


def wide(width: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return nn.Linear(width, width), (torch.randn(2, width),)


class TestLargeWeights:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _small_limit(cls) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(onnx_file, "MAX_INSIDE_NBYTES", 1000)
            yield

    @pytest.fixture(scope="class")
    @classmethod
    def pair(cls, _small_limit: None, tmp_path_factory: pytest.TempPathFactory) -> Written:
        return write(*wide(64), tmp_path_factory.mktemp("pair") / "m.onnx")

    def test_they_are_those_of_the_module(self, pair: Written) -> None:
        (weight,) = (numpy_helper.to_array(t) for t in pair.model.graph.initializer if t.name == "weight")
        assert (weight == pair.module.get_parameter("weight").numpy(force=True)).all()

    def test_a_second_export_replaces_both_files(self, pair: Written, tmp_path: Path) -> None:
        shutil.copytree(pair.path.parent, tmp_path, dirs_exist_ok=True)
        model = write(*wide(128), tmp_path / "m.onnx").model
        assert {numpy_helper.to_array(t).shape for t in model.graph.initializer} == {(128, 128), (128,)}

    def test_if_the_model_cannot_take_its_name_both_files_are_as_before(
        self, pair: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copytree(pair.path.parent, tmp_path, dirs_exist_ok=True)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        replace = os.replace

        def refuse(source: Path, target: Path) -> None:
            if target == tmp_path / "m.onnx":
                raise PermissionError(errno.EPERM, "Operation not permitted")
            replace(source, target)

        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(StorageError):
            write(*wide(128), tmp_path / "m.onnx")
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_a_folder_where_the_weights_should_go_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx.data").mkdir()
        with pytest.raises(StorageError, match=r"m\.onnx\.data.* is not a file"):
            write(*wide(64), tmp_path / "m.onnx")

    def test_half_on_the_meta_device_they_are_refused(self, tmp_path: Path) -> None:
        args = torch.randn(2, 64), torch.randn(2, 64, device="meta")
        with pytest.raises(ExportError, match="are on the meta device and"):
            write(Pair(), args, tmp_path / "m.onnx")


class TestTheFolder:
    @pytest.mark.parametrize(
        ("name", "says"), [("none/m.onnx", r"none/m\.onnx"), (".", "is not a file"), ("m" * 300, "too long")]
    )
    def test_a_path_that_cannot_be_written_is_refused(self, tmp_path: Path, name: str, says: str) -> None:
        with pytest.raises(StorageError, match=says):
            write(*small(), tmp_path / name)

    def test_a_full_disk_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        (tmp_path / "m.onnx").write_text("old")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            write(*small(), tmp_path / "m.onnx")
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"m.onnx": "old"}

    def test_an_existing_file_keeps_its_permissions(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").touch(0o600)
        write(*small(), tmp_path / "m.onnx")
        assert (tmp_path / "m.onnx").stat().st_mode & 0o777 == 0o600


@torch.library.custom_op("ogc_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class TestWhatHasNoOnnxForm:
    def test_an_op_without_onnx_form_is_refused_with_its_module_and_the_remedy(self, tmp_path: Path) -> None:
        with pytest.raises(ExportError, match=r"^.*ogc_test.twice.* in module 'middle\.1'.*$") as caught:
            write(*small(twice), tmp_path / "m.onnx")
        remedy = "use within_budget, which needs no ONNX file"
        assert (caught.value.remedy, list(tmp_path.iterdir())) == (remedy, [])

    def test_a_part_of_a_decomposed_call_is_named_with_its_module(self, tmp_path: Path) -> None:
        with pytest.raises(ExportError, match=r"aten\._cdist_forward\.default in module 'middle\.1'"):
            write(*small(lambda x: torch.cdist(x, x)), tmp_path / "m.onnx")


def test_weights_on_the_meta_device_point_to_a_file_that_is_not_written(tmp_path: Path) -> None:
    module, args = wide(64)
    path = write(module.to("meta"), (args[0].to("meta"),), tmp_path / "m.onnx").path
    model = onnx.load(path, load_external_data=False)
    check_model(model)
    places = {tensor.data_location for tensor in model.graph.initializer}
    assert (places, list(tmp_path.iterdir())) == ({onnx.TensorProto.EXTERNAL}, [path])


def test_an_export_leaves_module_program_generator_folder_and_loggers_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4).eval(), nn.Dropout(0.1), nn.Linear(4, 4))
    module[3].bias.requires_grad_(False)
    program = export(module, (torch.randn(2, 4),))
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]

    def world() -> list[object]:
        tensors = [*module.named_parameters(), *module.named_buffers()]
        values = [(key, tensor.tolist(), tensor.requires_grad, tensor.grad) for key, tensor in tensors]
        modes = [part.training for part in module.modules()]
        levels = [logger.level for logger in loggers]
        return [values, modes, random_state().tolist(), str(program), os.listdir(), levels]

    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for logger in loggers:
        monkeypatch.setattr(logger, "level", logging.INFO)
    before = world()
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_onnx(program, tmp_path / "m.onnx", training_graph=GRAPH, op_of_node=ops_of(program))
    assert (world(), capfd.readouterr()) == (before, ("", ""))
