"""The roofline: what an op's time depends on; and names of what the training graph hides."""

from __future__ import annotations

from pathlib import Path

from ogc_plan.planner.model import load_model

from tests.onnx_models import model, node, save


def backward_ns(folder: Path, *, bias: bool) -> int:
    """Backward time of a first convolution with or without a bias."""
    weights = {"w": (64, 3, 7, 7), **({"b": (64,)} if bias else {})}
    made = model(
        [node("Conv", "x w b" if bias else "x w", "y", pads=[3, 3, 3, 3])], {"x": (32, 3, 128, 128)}, weights=weights
    )
    return load_model(save(made, folder)).costs[0].backward_ns


def test_the_bias_of_a_first_convolution_does_not_cost_another_product(tmp_path: Path) -> None:
    assert backward_ns(tmp_path, bias=True) < 1.2 * backward_ns(tmp_path, bias=False)


def test_a_hidden_buffer_never_takes_the_name_of_a_tensor(tmp_path: Path) -> None:
    made = model(
        [
            node("Mul", "x w", "bn#0"),
            node("LayerNormalization", "bn#0 s", "y", node_name="bn"),
        ],
        {"x": (4, 8)},
        weights={"w": (8,), "s": (8,)},
    )
    names = [storage.name for storage in load_model(save(made, tmp_path)).training.storages]
    assert len(names) == len(set(names))
