"""Example arguments share memory where the traced tensors do, and only there."""

from __future__ import annotations

import torch
from ogc_plan.adapters.pytorch.memory.example_inputs import examples
from ogc_plan.adapters.pytorch.memory.strides import Layout
from torch import Tensor

PRODUCT = torch.empty(4, 3, 8)
PARTS = tuple(PRODUCT[:, part] for part in range(3))


def made(*traced: Tensor) -> list[Tensor]:
    return examples([(Layout.of(tensor), tensor) for tensor in traced])


def addresses(tensors: list[Tensor]) -> list[int]:
    return [tensor.untyped_storage().data_ptr() for tensor in tensors]


def test_parts_of_one_tensor_are_parts_of_one_example() -> None:
    found = made(*PARTS)
    assert len(set(addresses(found))) == 1
    assert found[0].untyped_storage().nbytes() == PRODUCT.untyped_storage().nbytes()


def test_parts_lie_where_the_traced_ones_do() -> None:
    first, second, third = made(*PARTS)
    assert (second.storage_offset(), third.storage_offset()) == (8, 16)
    assert [tensor.stride() for tensor in (first, second, third)] == [part.stride() for part in PARTS]


def test_memory_before_the_first_part_is_left_out() -> None:
    found = made(*PARTS[1:])
    assert found[0].storage_offset() == 0
    assert found[0].untyped_storage().nbytes() == PRODUCT.untyped_storage().nbytes() - 32


def test_other_tensors_have_memory_of_their_own() -> None:
    assert len(set(addresses(made(PARTS[0], torch.empty(4, 8), torch.empty(4, 8))))) == 3


def test_a_tensor_that_is_laid_out_otherwise_than_traced_has_memory_of_its_own() -> None:
    found = examples([(Layout.of(PARTS[0]), PARTS[0]), (Layout.of(torch.empty(4, 8)), PARTS[1])])
    assert len(set(addresses(found))) == 2


def test_a_layout_without_a_traced_tensor_has_an_example() -> None:
    (found,) = examples([(Layout.of(PARTS[0]), None)])
    assert Layout.of(found) == Layout.of(PARTS[0])


def test_a_tensor_that_is_passed_twice_is_made_once() -> None:
    assert len(set(addresses(made(PRODUCT, PRODUCT)))) == 1
