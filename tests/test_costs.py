"""The rooflines: what an op's time depends on; and names of what the training graph hides."""

from __future__ import annotations

from pathlib import Path

import pytest
from ogc_plan.planner.annotations import OpWork
from ogc_plan.planner.costs import DEVICES, work_costs
from ogc_plan.planner.model import load_model
from ogc_plan.planner.training import OpCost

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


def cost_of(work: OpWork) -> OpCost:
    (cost,) = work_costs([work], DEVICES["h200"])
    return cost


def test_an_annotated_op_without_kernels_takes_no_time() -> None:
    cost = cost_of(OpWork(10**12, 10**12, 0, 10**12, 10**12, 0))
    assert (cost.forward_ns, cost.backward_ns) == (0, 0)


def test_every_kernel_of_an_annotated_op_is_launched() -> None:
    cost = cost_of(OpWork(0, 0, 2, 0, 0, 3))
    assert (cost.forward_ns, cost.backward_ns) == (2 * 3000, 3 * 3000)


def test_an_annotated_op_takes_the_longer_of_arithmetic_and_traffic() -> None:
    times = [
        cost_of(OpWork(flops, traffic, 1)).forward_ns for flops, traffic in ((10**12, 0), (0, 10**9), (10**12, 10**9))
    ]
    assert times[2] == max(times[:2])


def test_without_a_device_the_measured_times_count() -> None:
    (cost,) = work_costs([OpWork(10**12, 10**9, 1, 10**12, 10**9, 1, forward_ns=7, backward_ns=9)], None)
    assert (cost.forward_ns, cost.backward_ns) == (7, 9)


def test_an_annotated_op_in_16_bits_computes_at_the_16_bit_rate() -> None:
    times = [cost_of(OpWork(10**12, 0, 0, 10**12, 0, 1, half)).backward_ns for half in (False, True)]
    assert (times[0] - 3000) / (times[1] - 3000) == pytest.approx(989 / 67, rel=1e-3)


def test_the_workspace_of_an_annotated_op_is_the_measured_one() -> None:
    cost = cost_of(OpWork(0, 0, 1, 0, 0, 1, False, 11, 12, 13))
    workspace = (cost.forward_workspace_nbytes, cost.backward_workspace_nbytes)
    assert (*workspace, cost.backward_activation_workspace_nbytes) == (11, 12, 13)
