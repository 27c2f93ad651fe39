"""How gradients flow through a graph read from a bare file: which there are, how long they live, what is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.model import store_all_timeline
from ogc_plan.planner.training_graph import OpCost, TrainingGraph

from tests.files.onnx_models import model, node, read

LSTM_WEIGHTS = {"w": (1, 64, 10), "r": (1, 64, 16)}


def training(folder: Path, nodes: list[object], outputs: str = "y", **options: object) -> TrainingGraph:
    proto = model(nodes, {"x": (4, 8)}, outputs, **options)  # type: ignore[arg-type]
    return derive_backward(read(proto, folder))


def backward_types(graph: TrainingGraph) -> list[str]:
    return [op.op_type for op in graph.ops if op.backward is not None]


def lstm(folder: Path, outputs: str) -> TrainingGraph:
    made = node("LSTM", "x w r", outputs, hidden_size=16)
    names = " ".join(name for name in outputs.split() if name != "_")
    return derive_backward(read(model([made], {"x": (7, 4, 10)}, names, weights=LSTM_WEIGHTS), folder))


def test_outputs_that_are_views_of_one_tensor_have_a_gradient_each_and_their_sum(tmp_path: Path) -> None:
    nodes = [node("Mul", "x w", "y"), node("Reshape", "y shape", "flat"), node("Transpose", "y", "turned")]
    graph = training(tmp_path, nodes, "y flat turned", weights={"w": (8,)}, constants={"shape": [32]})
    assert [graph.gradients[seed].nbytes for seed in graph.seeds] == [4 * 8 * 4] * 4


def test_they_are_freed_by_the_backward_of_the_op_that_made_the_tensor(tmp_path: Path) -> None:
    nodes = [node("Mul", "x w", "h"), node("Mul", "h w", "y"), node("Reshape", "y shape", "flat")]
    graph = training(tmp_path, nodes, "y flat", weights={"w": (8,)}, constants={"shape": [32]})
    _, timeline = store_all_timeline(graph, (OpCost(0),) * len(graph.ops))
    assert timeline.after_nbytes[-1] - graph.stationary.total_nbytes == 4 * 8 * 4 + 8 * 4


def test_a_cast_to_integers_ends_the_gradient(tmp_path: Path) -> None:
    casts = [node("Cast", "h", "i", to=7), node("Cast", "i", "f", to=1)]
    nodes = [node("Mul", "x w", "h"), *casts, node("Mul", "f v", "y")]
    assert backward_types(training(tmp_path, nodes, weights={"w": (8,), "v": (8,)})) == ["Mul"]


def test_quantising_alone_ends_the_gradient(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x w", "h"), node("QuantizeLinear", "h s", "q"), node("Cast", "q", "f", to=1),
        node("Mul", "f v", "y"),
    ]  # fmt: skip
    proto = model(nodes, {"x": (4, 8)}, weights={"w": (8,), "v": (8,)}, constants={"s": np.float32(0.5)})
    assert backward_types(derive_backward(read(proto, tmp_path))) == ["Mul"]


def test_rounding_passes_a_gradient_of_zeros_as_torch_does(tmp_path: Path) -> None:
    nodes = [node("Mul", "x w", "h"), node("Round", "h", "y")]
    assert backward_types(training(tmp_path, nodes, weights={"w": (8,)})) == ["Mul", "Round"]


@pytest.mark.parametrize(("outputs", "nbytes"), [("y", 1792), ("_ h", 1792 + 256), ("y h c", 1792 + 2 * 256)])
def test_an_lstm_saves_its_sequence_and_the_states_that_are_asked_for(
    tmp_path: Path, outputs: str, nbytes: int
) -> None:
    graph = lstm(tmp_path, outputs)
    (op,) = graph.ops
    made = [graph.storages[s] for s in op.writes]
    assert sum(storage.nbytes for storage in made if "#" not in storage.name or storage.name.startswith("h#")) == nbytes


@pytest.mark.parametrize(
    ("made", "weights", "trained"),
    [
        (node("Einsum", "x w", "y", equation="ij,jk->ik"), {"w": (8, 3)}, {"w"}),
        (node("LSTM", "x w r b", "y", hidden_size=16), {**LSTM_WEIGHTS, "b": (1, 128)}, {"w", "r", "b"}),
        (node("GRU", "x w r b", "y", hidden_size=16), {"w": (1, 48, 10), "r": (1, 48, 16), "b": (1, 96)},
         {"w", "r", "b"}),
        (node("DeformConv", "x w o b", "y"), {"w": (4, 3, 1, 1), "o": (1, 2, 4, 4), "b": (4,)}, {"w", "b"}),
    ],
    ids=["Einsum", "LSTM", "GRU", "DeformConv"],
)  # fmt: skip
def test_the_weights_of_an_op_are_trained(
    tmp_path: Path, made: object, weights: dict[str, tuple[int, ...]], trained: set[str]
) -> None:
    shape = {2: (4, 8), 3: (7, 4, 10), 4: (1, 3, 4, 4)}[len(weights["w"])]
    graph = derive_backward(read(model([made], {"x": shape}, weights=weights, opset=22), tmp_path))  # type: ignore[list-item]
    assert {g.name.removeprefix("gradient of ") for g in graph.gradients if g.parameter} == trained
