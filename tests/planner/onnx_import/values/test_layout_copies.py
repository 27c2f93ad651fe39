"""Operands that torch copies before a product or a norm are charged as copies, exactly where torch makes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.onnx_import.values.layout_copies import copied_inputs
from ogc_plan.planner.onnx_import.values.values import Call, Value
from torch.autograd.graph import saved_tensors_hooks

from tests.files.onnx_models import model, node, op, read

SIZES = st.sampled_from([1, 2, 3])


@st.composite
def operands(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two trained operands of one product, permuted in memory; batches broadcast, one of them may be a matrix."""
    batch = draw(st.lists(SIZES, min_size=1, max_size=3))
    rows, inner, columns = draw(SIZES), draw(SIZES), draw(SIZES)
    leads = [batch, [draw(st.sampled_from([1, size])) for size in batch]]
    if draw(st.booleans()):
        leads[1] = []
    shapes = [[*leads[0], rows, inner], [*leads[1], inner, columns]]
    if draw(st.booleans()):
        shapes = [[*leads[1], rows, inner], [*leads[0], inner, columns]]
    return laid_out(draw, shapes[0]), laid_out(draw, shapes[1])


def laid_out(draw: st.DrawFn, shape: list[int]) -> torch.Tensor:
    order = draw(st.permutations(range(len(shape))))
    dense = torch.randn([shape[axis] for axis in order])
    return dense.permute([order.index(axis) for axis in range(len(shape))]).requires_grad_()


def value(name: str, tensor: torch.Tensor) -> Value:
    return Value(name, "float32", tuple(tensor.shape), tuple(tensor.stride()))


def kept(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The product, and the addresses of what torch keeps for its backward."""
    addresses: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        addresses.append(tensor.untyped_storage().data_ptr())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        product = torch.matmul(left, right)
    return product, addresses


@given(operands())
@settings(max_examples=400, deadline=None)
def test_a_product_copies_an_operand_exactly_where_torch_does(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    product, addresses = kept(*pair)
    call = Call("product", "MatMul", "", (value("a", pair[0]), value("b", pair[1])), (value("c", product),))
    copied = {position for position, _ in copied_inputs(call)}
    expected = {i for i, tensor in enumerate(pair) if tensor.untyped_storage().data_ptr() not in addresses}
    assert copied == expected


def test_the_copy_is_kept_instead_of_the_operand(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "h"),
        node("Transpose", "h", "t", perm=[0, 2, 1]),
        node("MatMul", "t u", "y", node_name="product"),
    ]
    graph = read(model(nodes, {"x": [2, 3, 4]}, weights={"w": (4, 5), "u": (3, 6)}), tmp_path)
    training = derive_backward(graph)
    backward = next(made.backward for made in training.ops if made.name == "product")
    assert backward is not None
    assert [training.storages[s].name for s in backward.reads] == ["product#0"]


NORMS = {"GroupNormalization": {"num_groups": 2}, "InstanceNormalization": {}, "LayerNormalization": {}}


@pytest.mark.parametrize("norm", NORMS)
def test_norms_over_groups_and_instances_copy_what_is_not_contiguous(tmp_path: Path, norm: str) -> None:
    nodes = [
        node("Relu", "x", "h"),
        node("Transpose", "h", "t", perm=[0, 2, 1]),
        node(norm, "t s b", "y", **NORMS[norm]),
    ]
    width = 3 if norm == "LayerNormalization" else 4
    graph = read(model(nodes, {"x": [2, 3, 4]}, weights={"s": (width,), "b": (width,)}), tmp_path)
    assert op(graph, norm).copied == (() if norm == "LayerNormalization" else ((0, 2 * 3 * 4 * 4),))
