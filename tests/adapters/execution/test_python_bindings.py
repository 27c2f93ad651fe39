"""Calls of a planned step go through torch's own functions where those make the very call that was traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch.execution.python_bindings import binding
from torch import Tensor

from tests.modules.torch_training import bits

aten = torch.ops.aten
X = torch.arange(6.0).reshape(2, 3)


def called(target: Any, *args: Any, **kwargs: Any) -> Tensor:
    """What the function found for a call returns."""
    found = binding(target, args, kwargs)
    assert found is not None
    return found.function(*args, **{key: value for key, value in kwargs.items() if key not in found.left_out})  # type: ignore[no-any-return]


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.relu.default, (X - 2,), {}),
    (aten.add.Tensor, (X, X), {"alpha": 2}),
    (aten.mm.default, (X, X.t()), {}),
    (aten.sum.dim_IntList, (X, [0], True), {}),
    (aten.view.default, (X, [3, 2]), {}),
    (aten.gelu.default, (X,), {"approximate": "tanh"}),
    (aten._to_copy.default, (X,), {"dtype": torch.float64}),
    (aten._to_copy.default, (X,), {"dtype": torch.float64, "layout": X.layout, "device": X.device}),
]


@pytest.mark.parametrize(("target", "args", "kwargs"), CALLS, ids=[str(target) for target, *_ in CALLS])
def test_the_function_gives_what_the_operator_gives(target: Any, args: Any, kwargs: Any) -> None:
    found, expected = called(target, *args, **kwargs), target(*args, **kwargs)
    assert found.dtype == expected.dtype
    assert bits(found) == bits(expected)


def test_a_result_is_written_where_the_operator_writes_it() -> None:
    out = torch.empty(2, 3)
    assert called(aten.add.out, X, X, out=out) is out


def test_looking_for_a_function_changes_nothing() -> None:
    x = torch.ones(3)
    binding(aten.relu_.default, (x,), {})
    assert x._version == 0


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.div.Scalar, (X, 2)),  # torch.div of a number is div.Tensor
        (aten.threshold_backward.default, (X, X, 0)),  # has no function
        (torch.ops.prims.sin.default, (X,)),
    ],
    ids=["another overload", "none", "another namespace"],
)
def test_there_is_none_for(target: Any, args: Any) -> None:
    assert binding(target, args, {}) is None


def test_a_copy_to_another_device_says_so() -> None:
    found = binding(aten._to_copy.default, (X,), {"dtype": torch.float64, "device": torch.device("meta")})
    assert found is None or "device" not in found.left_out


def test_a_copy_to_the_type_that_it_has_is_made() -> None:
    found = binding(aten._to_copy.default, (X,), {"dtype": X.dtype})
    assert found is None or found.function(X, dtype=X.dtype) is not X
