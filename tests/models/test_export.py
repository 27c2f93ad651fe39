"""Exports of the zoo: small, valid files that plan as torch steps do, to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
import torch
from ogc_plan.planner.model import load_model
from torch import Tensor, nn

from models.export import check_model, export_entry, export_module, main
from models.fidelity.step import simulated_peaks
from models.meters.storage_meter import measure_step
from models.networks.gpt2 import GPT2, GPT2Config
from models.networks.resnet import ResNet
from models.networks.unet import UNet
from models.networks.vit import VisionTransformer
from models.zoo import ZOO

PARAMETERS = {"resnet50": 25_557_032, "gpt2": 124_439_808, "vit_b16": 86_567_656, "unet": 31_037_698}
EXPORTED = {name: ZOO[name] for name in PARAMETERS}


# Their export


@pytest.fixture(scope="module")
def exported() -> dict[str, onnx.ModelProto]:
    return {name: export_entry(entry, batch=entry.batch, extent=entry.extent) for name, entry in EXPORTED.items()}


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_export_holds_no_weights(exported: dict[str, onnx.ModelProto], name: str) -> None:
    initializers = exported[name].graph.initializer
    outside = all(t.data_location == onnx.TensorProto.EXTERNAL and not t.raw_data for t in initializers)
    assert (outside, exported[name].ByteSize() < 1_000_000) == (True, True)


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_export_passes_the_checker_and_strict_shape_inference(
    exported: dict[str, onnx.ModelProto], name: str
) -> None:
    check_model(exported[name])


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_export_names_no_file_of_the_machine_that_made_it(exported: dict[str, onnx.ModelProto], name: str) -> None:
    assert str(Path(torch.__file__).parents[1]).encode() not in exported[name].SerializeToString()


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_planner_finds_every_parameter_of_an_export(
    exported: dict[str, onnx.ModelProto], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported[name].SerializeToString())
    assert load_model(path).training.stationary.parameter_nbytes == 4 * PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "op_type", "count"),
    [("resnet50", "BatchNormalization", 53), ("unet", "BatchNormalization", 18), ("gpt2", "Attention", 12)],
)
def test_an_export_keeps_the_ops_of_training(
    exported: dict[str, onnx.ModelProto], name: str, op_type: str, count: int
) -> None:
    assert Counter(node.op_type for node in exported[name].graph.node)[op_type] == count


def test_the_command_line_writes_one_file_at_the_batch_and_length_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "model.onnx"
    main(["gpt2", "-o", str(path), "--batch", "2", "--seq", "64"])
    assert list(path.parent.iterdir()) == [path]
    shape = onnx.load(path, load_external_data=False).graph.input[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [2, 64]


def test_an_image_size_for_a_network_of_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["gpt2", "-o", str(tmp_path / "model.onnx"), "--size", "64"])


# A bare exported file against torch


@dataclass(frozen=True)
class Small:
    """A network of the zoo's kind that a test can run, and the bytes of constants that torch computes at run time."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    computed_constants_nbytes: int = 0


SMALL = {
    "resnet": Small(lambda: ResNet((1, 1, 1, 1), classes=10), lambda: (torch.zeros(2, 3, 64, 64),)),
    "gpt2": Small(
        lambda: GPT2(GPT2Config(vocabulary=101, context=32, layers=2, heads=2, width=32)),
        lambda: (torch.zeros(2, 32, dtype=torch.int64),),
        computed_constants_nbytes=32 * 8,
    ),
    "vit": Small(
        lambda: VisionTransformer(image=64, patch=16, width=32, layers=2, heads=2, hidden=64, classes=10),
        lambda: (torch.zeros(2, 3, 64, 64),),
    ),
    "unet": Small(lambda: UNet(widths=(4, 8, 16, 32, 64)), lambda: (torch.zeros(1, 3, 64, 64),)),
}
LOSS_NBYTES = 8  # the scalar loss and its gradient, outside the model


@pytest.mark.parametrize("name", SMALL)
def test_the_simulated_store_all_peak_of_a_bare_file_is_the_measured_one_to_the_byte(name: str, tmp_path: Path) -> None:
    small = SMALL[name]
    measured = measure_step(small.build().train(), small.inputs()).activations.nbytes
    with torch.device("meta"):
        model = export_module(small.build(), small.inputs())
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    simulated, _ = simulated_peaks(load_model(path))
    assert simulated == measured - LOSS_NBYTES - small.computed_constants_nbytes
