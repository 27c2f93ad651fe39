"""Batch norms that an exporter folded into the op before them are told, by what each exporter leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ogc_plan.planner.model import load_model
from ogc_plan.planner.onnx_import.meaning.folded_norms import folded_norms
from torch import Tensor, nn

from tests.files.onnx_models import model, node, save, with_folded_norm

pytestmark = pytest.mark.filterwarnings("ignore")
TRAINING = {"training": torch.onnx.TrainingMode.TRAINING}


class Normed(nn.Module):
    """Batch norms behind a convolution, a transposed one and a linear layer; without them it is ``plain``."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        self.conv, self.up, self.linear = nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 8, 2), nn.Linear(8, 8)
        kinds = (nn.BatchNorm2d, nn.BatchNorm2d, nn.BatchNorm1d)
        self.norms = nn.ModuleList(nn.Identity() if plain else kind(8) for kind in kinds)
        for norm in self.norms:
            for buffer in () if plain else (norm.running_mean, norm.running_var):
                nn.init.uniform_(buffer, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[1](self.up(self.norms[0](self.conv(x)).relu())).relu()
        result: Tensor = self.norms[2](self.linear(x.mean((2, 3)))).relu()
        return result


def told(folder: Path, *, plain: bool = False, **options: Any) -> list[str]:
    """Each sentence on folded norms up to the exporter, and the remedy at its end."""
    path = folder / "model.onnx"
    torch.onnx.export(Normed(plain=plain).eval(), (torch.zeros(2, 3, 8, 8),), str(path), verbose=False, **options)
    found = [sentence for sentence in load_model(path).training.assumed if "folded into" in sentence]
    return [f"{sentence.partition(' by the')[0]}: {sentence.split()[-1]}" for sentence in found]


def test_the_newer_exporter_records_each(tmp_path: Path) -> None:
    assert told(tmp_path, dynamo=True) == [
        f"1 batch norm was folded into {op_type}: optimize=False" for op_type in ("Conv", "ConvTranspose", "Gemm")
    ]


def test_the_older_exporter_renames_what_it_computed(tmp_path: Path) -> None:
    expected = ["1 batch norm was folded into Conv: training=torch.onnx.TrainingMode.TRAINING"]
    assert told(tmp_path, dynamo=False) == expected


@pytest.mark.parametrize("options", [{"dynamo": True, "optimize": False}, {"dynamo": False, **TRAINING}])
def test_with_the_remedy_none_is_folded(tmp_path: Path, options: dict[str, Any]) -> None:
    assert told(tmp_path, **options) == []


@pytest.mark.parametrize("dynamo", [True, False])
def test_a_model_without_batch_norms_has_none(tmp_path: Path, dynamo: bool) -> None:
    assert told(tmp_path, plain=True, dynamo=dynamo) == []


def test_tf2onnx_marks_the_weights_that_it_computed(tmp_path: Path) -> None:
    assumed = load_model(save(with_folded_norm(), tmp_path)).training.assumed
    (told,) = (sentence for sentence in assumed if "folded into" in sentence)
    assert told.startswith("1 batch norm was folded into Conv by the exporter: a training step holds more")


@pytest.mark.parametrize(("other", "count"), [("0.weight", 1), ("3", 0)])
def test_numbers_for_names_tell_only_where_other_weights_keep_theirs(other: str, count: int) -> None:
    weights = {"1": (8, 3, 1, 1), "2": (8,), other: (8,)}
    graph = model([node("Conv", "x 1 2", "y"), node("Add", f"y {other}", "z")], {"x": (2, 3, 4, 8)}, weights=weights)
    assert len([*folded_norms(graph.graph, "pytorch")]) == count
