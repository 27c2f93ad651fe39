"""The annotated ONNX file: a standard model with its weights, the training graph, and the op of each node."""

from __future__ import annotations

import contextlib
import copy
import errno
import logging
import math
import os
import re
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
from ogc_plan.planner.onnx_import.reader import read_onnx
from onnx import numpy_helper
from torch import Tensor, nn

from models.export import check_model
from models.networks.gpt2 import GPT2, GPT2Config
from models.networks.resnet import ResNet
from models.networks.unet import UNet
from models.networks.vit import VisionTransformer
from models.training.cases import Supervised

GRAPH = '{"version": 1, "ops": ["ä", "\\""]}'
IMAGE = (2, 3, 32, 32)
NETWORKS = ("resnet", "gpt2", "unet", "vit")


def gpt2(dropout: float) -> GPT2:
    return GPT2(GPT2Config(vocabulary=64, context=16, layers=2, heads=2, width=32, dropout=dropout)).train()


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
        return Supervised(gpt2(0.1), classes_last=True).train(), (tokens, tokens + 0)
    if name == "unet":
        return UNet(2, (8, 16, 32), norm="group").train(), (images,)
    return VisionTransformer(32, 8, 32, 2, 2, 64, 10).train(), (images,)


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


@pytest.mark.parametrize("name", NETWORKS)
class TestOfEveryNetwork:
    def test_the_official_checker_accepts_the_file(self, name: str, written: Callable[[str], Written]) -> None:
        onnx.checker.check_model(str(written(name).path), full_check=True)

    def test_the_planner_reads_the_file(self, name: str, written: Callable[[str], Written]) -> None:
        assert read_onnx(written(name).path).ops

    def test_the_training_graph_is_in_the_metadata_word_for_word(
        self, name: str, written: Callable[[str], Written]
    ) -> None:
        assert [(e.key, e.value) for e in written(name).model.metadata_props] == [(MODEL_KEY, GRAPH)]

    def test_every_onnx_node_names_its_op(self, name: str, written: Callable[[str], Written]) -> None:
        assert [node.name for node in written(name).model.graph.node if op_named_by(node) is None] == []

    def test_every_op_has_a_node_but_the_counters_of_batch_norm(
        self, name: str, written: Callable[[str], Written]
    ) -> None:
        file = written(name)
        named = {op_named_by(node) for node in file.model.graph.node}
        unnamed = {str(node.target) for node in file.program.graph.nodes if f"op {node.name}" not in named}
        assert {target for target in unnamed if target.startswith("aten.")} == (
            {"aten.add_.Tensor"} if name == "resnet" else set()
        )

    def test_the_weights_are_those_of_the_module(self, name: str, written: Callable[[str], Written]) -> None:
        file = written(name)
        state = {key: value.numpy() for key, value in file.module.state_dict().items()}
        stored = [(t.name, numpy_helper.to_array(t)) for t in file.model.graph.initializer if t.name in state]
        assert [key for key, value in stored if (value != state[key]).any()] == []

    def test_every_parameter_is_stored_once(self, name: str, written: Callable[[str], Written]) -> None:
        file = written(name)
        names = {key for key, _ in file.module.named_parameters(remove_duplicate=False)}  # a tied weight has two
        stored = [tensor for tensor in file.model.graph.initializer if tensor.name in names]
        assert sum(math.prod(t.dims) for t in stored) == sum(p.numel() for p in file.module.parameters())

    def test_the_file_tells_nothing_of_the_exporting_machine(
        self, name: str, written: Callable[[str], Written]
    ) -> None:
        assert os.fsencode(Path(__file__).resolve().parents[3]) not in written(name).path.read_bytes()

    def test_one_file_is_all_that_is_written(self, name: str, written: Callable[[str], Written]) -> None:
        assert [path.name for path in written(name).path.parent.iterdir()] == ["model.onnx"]


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

    @pytest.fixture(scope="class")
    @classmethod
    def chosen(cls, tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
        ops = {"exp": ("first", "last"), "sin": ()}
        path = tmp_path_factory.mktemp("chosen") / "m.onnx"
        return write(*small(lambda x: x.exp().sin().cos()), path, op_of_node=ops).model

    def test_in_place_calls_keep_their_name(self, written: Callable[[str], Written]) -> None:
        assert ops_by_type(written("unet").model, "Relu")[:2] == ["op relu_", "op relu__1"]

    def test_decomposed_calls_are_found(self, written: Callable[[str], Written]) -> None:
        assert ops_by_type(written("resnet").model, "BatchNormalization")[:2] == ["op batch_norm", "op batch_norm_1"]

    def test_every_node_of_a_call_that_becomes_an_onnx_function_is_found(self, mixed: onnx.ModelProto) -> None:
        assert ops_by_type(mixed, "Softplus") + ops_by_type(mixed, "Where") == ["op softplus"] * 2

    def test_nodes_replaced_by_the_conversion_to_a_newer_opset_are_found(self, mixed: onnx.ModelProto) -> None:
        assert ops_by_type(mixed, "GridSample") == ["op grid_sampler"]

    def test_a_block_without_gradients_is_one_call(self, mixed: onnx.ModelProto) -> None:
        assert ops_by_type(mixed, "Sin") == ops_by_type(mixed, "Cos") != [None]

    @pytest.mark.parametrize(("op_type", "named"), [("Exp", "last"), ("Sin", None), ("Cos", None)])
    def test_of_several_ops_of_a_call_the_last_is_named_and_of_none_none(
        self, chosen: onnx.ModelProto, op_type: str, named: str | None
    ) -> None:
        assert ops_by_type(chosen, op_type) == [named]


class TestKnownLimitsOfTheExporter:
    def test_batch_norm_comes_out_in_inference_form(self, written: Callable[[str], Written]) -> None:
        nodes = [node for node in written("resnet").model.graph.node if node.op_type == "BatchNormalization"]
        assert {(len(node.output), "training_mode" in {a.name for a in node.attribute}) for node in nodes} == {
            (1, False)
        }

    @pytest.mark.parametrize(("which", "inputs"), [("dropout", 3), ("attention", 2)])
    def test_a_dropout_module_comes_out_in_training_form_and_one_inside_an_attention_does_not(
        self, written: Callable[[str], Written], which: str, inputs: int
    ) -> None:
        nodes = [node for node in written("gpt2").model.graph.node if node.op_type == "Dropout"]
        assert {len(node.input) for node in nodes if which in str(op_named_by(node))} == {inputs}


def assert_runtime_agrees(file: Written) -> None:
    """ONNX Runtime computes from the file what the module computes in evaluation mode."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(file.path), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    (result,) = session.run(None, {name: arg.numpy() for name, arg in zip(names, file.args, strict=True)})
    with torch.no_grad():
        expected = copy.deepcopy(file.module).eval()(*file.args)
    torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-4, atol=1e-4)


class TestWhatTheFileComputes:
    @pytest.mark.parametrize("name", ["resnet", "unet", "vit"])
    def test_an_image_network_gives_the_outputs_of_evaluation_mode(
        self, name: str, written: Callable[[str], Written]
    ) -> None:
        assert_runtime_agrees(written(name))

    def test_a_gpt_without_dropout_gives_its_own_outputs(self, tmp_path: Path) -> None:
        tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))
        assert_runtime_agrees(write(gpt2(0.0), (tokens,), tmp_path / "m.onnx"))


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

    def test_they_go_into_a_second_file(self, pair: Written) -> None:
        assert sorted(path.name for path in pair.path.parent.iterdir()) == ["m.onnx", "m.onnx.data"]

    def test_the_official_checker_accepts_the_pair(self, pair: Written) -> None:
        onnx.checker.check_model(str(pair.path), full_check=True)

    def test_they_are_those_of_the_module(self, pair: Written) -> None:
        (weight,) = (numpy_helper.to_array(t) for t in pair.model.graph.initializer if t.name == "weight")
        assert (weight == pair.module.get_parameter("weight").detach().numpy()).all()

    def test_the_runtime_finds_them(self, pair: Written) -> None:
        assert_runtime_agrees(pair)

    def test_both_files_have_the_same_permissions(self, pair: Written) -> None:
        assert pair.path.stat().st_mode == pair.path.with_name("m.onnx.data").stat().st_mode

    def test_a_second_export_replaces_both_files(self, pair: Written, tmp_path: Path) -> None:
        shutil.copytree(pair.path.parent, tmp_path, dirs_exist_ok=True)
        model = write(*wide(128), tmp_path / "m.onnx").model
        assert {numpy_helper.to_array(t).shape for t in model.graph.initializer} == {(128, 128), (128,)}

    @pytest.mark.parametrize("exists", [False, True], ids=["no file before", "a pair before"])
    def test_if_the_model_cannot_take_its_name_both_files_are_as_before(
        self, exists: bool, pair: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if exists:
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

    def test_the_ending_of_the_name_does_not_matter(self, tmp_path: Path) -> None:
        write(*small(), tmp_path / "m.json")
        onnx.checker.check_model(onnx.load(tmp_path / "m.json", format="protobuf"), full_check=True)


@torch.library.custom_op("ogc_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class TestWhatHasNoOnnxForm:
    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("refused")

    @pytest.fixture(scope="class")
    @classmethod
    def error(cls, folder: Path) -> ExportError:
        with pytest.raises(ExportError) as caught:
            write(*small(twice), folder / "m.onnx")
        return caught.value

    def test_the_op_and_its_module_are_named_in_one_line(self, error: ExportError) -> None:
        assert re.fullmatch(".*ogc_test.twice.* in module 'middle.1'.*", str(error))

    def test_the_remedy_is_the_way_without_a_file(self, error: ExportError) -> None:
        assert error.remedy == "use within_budget, which needs no ONNX file"

    def test_the_exporters_own_traceback_is_not_shown(self, error: ExportError) -> None:
        assert error.__suppress_context__

    def test_nothing_is_written(self, error: ExportError, folder: Path) -> None:
        assert list(folder.iterdir()) == []

    def test_a_part_of_a_decomposed_call_is_named_with_its_module(self, tmp_path: Path) -> None:
        with pytest.raises(ExportError, match=r"aten\._cdist_forward\.default in module 'middle\.1'"):
            write(*small(lambda x: torch.cdist(x, x)), tmp_path / "m.onnx")

    def test_the_outermost_module_has_no_path(self, tmp_path: Path) -> None:
        with pytest.raises(ExportError, match="in the outermost module"):
            write(Tail(twice), (torch.randn(4, 4, requires_grad=True),), tmp_path / "m.onnx")


class TestWithoutWeights:
    @pytest.fixture(scope="class")
    @classmethod
    def path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        tokens = torch.zeros(2, 16, dtype=torch.int64, device="meta")
        return write(gpt2(0.0).to("meta"), (tokens,), tmp_path_factory.mktemp("meta") / "m.onnx").path

    def test_the_official_checker_accepts_the_file(self, path: Path) -> None:
        check_model(onnx.load(path, load_external_data=False))

    def test_weights_point_outside(self, path: Path) -> None:
        initializers = onnx.load(path, load_external_data=False).graph.initializer
        assert {tensor.data_location for tensor in initializers} == {onnx.TensorProto.EXTERNAL}

    def test_no_second_file_is_written(self, path: Path) -> None:
        assert [entry.name for entry in path.parent.iterdir()] == ["m.onnx"]


class TestNothingElseHappens:
    """One export with batch norm, dropout, a frozen part and a part in evaluation mode; the world before and after."""

    @pytest.fixture(scope="class")
    @classmethod
    def worlds(cls, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
        module = nn.Sequential(UNet(2, (8, 16, 32)), nn.Dropout(0.1)).train()
        module[0].get_submodule("head").requires_grad_(False)
        module[0].get_submodule("down.0").eval()
        program = export(module, (torch.randn(IMAGE),))
        loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
        warned: list[warnings.WarningMessage] = []

        def world() -> dict[str, object]:
            tensors = [*module.named_parameters(), *module.named_buffers()]
            return {
                "values": [(key, tensor.data_ptr(), tensor.tolist()) for key, tensor in tensors],
                "gradients": [(key, tensor.requires_grad, tensor.grad) for key, tensor in tensors],
                "modes": [part.training for part in module.modules()],
                "random state": torch.get_rng_state().tolist(),
                "program": str(program),
                "working folder": os.listdir(),
                "log levels": [logger.level for logger in loggers],
                "warnings": [str(warning.message) for warning in warned],
            }

        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("empty"))
            for logger in loggers:
                patch.setattr(logger, "level", logging.INFO)
            before = world()
            path = tmp_path_factory.mktemp("other") / "m.onnx"
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                write_onnx(program, path, training_graph=GRAPH, op_of_node=ops_of(program))
            return [before, world()]

    @pytest.mark.parametrize(
        "what",
        ["values", "gradients", "modes", "random state", "program", "working folder", "log levels", "warnings"],
    )
    def test_it_stays_as_it_is(self, what: str, worlds: list[dict[str, object]]) -> None:
        before, after = worlds
        assert after[what] == before[what]

    @pytest.mark.parametrize("run", [F.gelu, lambda x: torch.cdist(x, x)], ids=["success", "failure"])
    def test_nothing_is_printed(
        self, run: Callable[[Tensor], Tensor], tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        program = export(*small(run))
        capfd.readouterr()
        with contextlib.suppress(ExportError):
            write_onnx(program, tmp_path / "m.onnx", training_graph=GRAPH, op_of_node={})
        assert capfd.readouterr() == ("", "")
