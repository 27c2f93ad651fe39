"""The rooflines: what an op's time depends on; and names of what the training graph hides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.planner.annotations import OpWork
from ogc_plan.planner.costs.devices import DEVICES
from ogc_plan.planner.costs.roofline import work_costs
from ogc_plan.planner.graph import Graph
from ogc_plan.planner.model import load_model
from ogc_plan.planner.training_graph import OpCost

from tests.files.onnx_models import model, node, save
from tests.graphs.small_graphs import cost, one_op


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


@pytest.mark.parametrize(
    ("work", "times"),
    [
        (OpWork(10**12, 10**12, 0, 10**12, 10**12, 0), (0, 0)),
        (OpWork(0, 0, 2, 0, 0, 3), (2 * 3000, 3 * 3000)),
    ],
    ids=["no kernel, no time", "every kernel is launched"],
)
def test_the_kernels_of_an_annotated_op(work: OpWork, times: tuple[int, int]) -> None:
    assert (cost_of(work).forward_ns, cost_of(work).backward_ns) == times


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


CASES: dict[str, Callable[[int, int], Graph]] = {
    "Conv": lambda n, c: one_op("Conv", [(n, c, 8, 8), (16, c, 3, 3)], [(n, 16, 6, 6)]),
    "MatMul": lambda n, c: one_op("MatMul", [(n, c), (c, 32)], [(n, 32)]),
    "LSTM": lambda n, c: one_op("LSTM", [(n, 4, c), (1, 64, c), (1, 64, 16)], [(n, 1, 4, 16)], hidden_size=16),
    "Einsum": lambda n, c: one_op("Einsum", [(n, c), (c, 8), (8, 4)], [(n, 4)], equation="ij,jk,kl->il"),
    "Gather": lambda n, c: one_op("Gather", [(1000, c), (n,)], [(n, c)], integers=(1,)),
    "MaxPool": lambda n, c: one_op("MaxPool", [(n, c, 8, 8)], [(n, c, 4, 4)], kernel_shape=(2, 2), strides=(2, 2)),
    "LRN": lambda n, c: one_op("LRN", [(n, c, 8, 8)], [(n, c, 8, 8)], size=5),
    "Mish": lambda n, c: one_op("Mish", [(n, c)], [(n, c)]),
    "Attention": lambda n, c: one_op("Attention", [(1, 2, n, c)] * 3, [(1, 2, n, c)]),
    "DFT": lambda n, c: one_op("DFT", [(c, n, 2)], [(c, n, 2)], axis=1),
}


SIZES = st.tuples(st.integers(1, 4096), st.integers(1, 512))
GROWTH = st.tuples(st.integers(0, 999), st.integers(0, 99))


@pytest.mark.parametrize("op_type", CASES)
@given(sizes=SIZES, more=GROWTH)
def test_a_larger_op_never_takes_less_time(op_type: str, sizes: tuple[int, int], more: tuple[int, int]) -> None:
    small, large = CASES[op_type](*sizes), CASES[op_type](sizes[0] + more[0], sizes[1] + more[1])
    times = [(of.forward_ns, of.backward_ns) for of in (cost(small), cost(large))]
    assert all(0 <= before <= after for before, after in zip(*times, strict=True))


@given(st.sampled_from(sorted(DEVICES)))
def test_every_op_takes_time_on_every_device(name: str) -> None:
    assert all(cost(case(64, 32), DEVICES[name]).forward_ns > 0 for case in CASES.values())


def test_every_step_of_a_recurrence_is_launched() -> None:
    launches = [cost(CASES["LSTM"](steps, 1)).forward_ns // 3000 for steps in (10, 20)]
    assert launches == [10, 20]


def embedding(rows: int) -> OpCost:
    """512 rows taken from a table of that many rows of 4 KiB."""
    return cost(one_op("Gather", [(rows, 1024), (512,)], [(512, 1024)], integers=(1,)))


def test_an_embedding_costs_the_rows_it_takes_and_not_its_table() -> None:
    assert embedding(1000).forward_ns == embedding(1_000_000).forward_ns


def test_the_gradient_of_an_embedding_adds_into_its_rows() -> None:
    rows, table, indices = 4 * 512 * 1024, 4 * 1000 * 1024, 8 * 512
    assert embedding(1000).backward_ns == 3000 + round((rows + 2 * rows + table + indices) / (4800 * 0.8))


def test_a_composed_op_is_launched_kernel_by_kernel() -> None:
    assert cost(one_op("LRN", [(1, 1, 1, 1)], [(1, 1, 1, 1)], size=3)).forward_ns >= 6 * 3000


def test_frozen_operands_need_no_arithmetic() -> None:
    shapes = [(4096, 4096), (4096, 4096)]
    one, both = (cost(one_op("MatMul", shapes, [shapes[0]], trained=which)).backward_ns for which in ([1], [0, 1]))
    assert (both - 3000) == pytest.approx(2 * (one - 3000), rel=1e-6)


def test_64_bit_arithmetic_takes_twice_the_time() -> None:
    shapes = [(4096, 4096), (4096, 4096)]
    single, double = (
        cost(one_op("MatMul", shapes, shapes[:1], dtype=dtype)).forward_ns - 3000 for dtype in ("float32", "float64")
    )
    assert double == pytest.approx(2 * single, rel=1e-6)


def test_the_workspace_of_a_deformable_convolution_has_its_samples() -> None:
    graph = one_op("DeformConv", [(3, 2, 6, 6), (4, 2, 3, 3), (3, 18, 4, 4)], [(3, 4, 4, 4)])
    assert cost(graph).forward_workspace_nbytes == 4 * (3 * 2 * 9 * 16 + 3 * 4 * 16)


def test_an_operand_that_is_copied_first_costs_another_kernel() -> None:
    graph = one_op("MatMul", [(4, 8), (8, 4)], [(4, 4)])
    (op,) = graph.ops
    copying = replace(graph, ops=(replace(op, copied=((0, 128),)),))
    assert cost(copying).forward_ns - cost(graph).forward_ns >= 3000


def test_an_op_of_an_unknown_domain_is_timed_by_its_traffic() -> None:
    graph = one_op("MatMul", [(4096, 4096), (4096, 4096)], [(4096, 4096)])
    strange = replace(graph, ops=(replace(graph.ops[0], domain="acme"),))
    assert cost(strange).forward_ns == 3000 + round(3 * 4 * 4096**2 / (4800 * 0.8))
