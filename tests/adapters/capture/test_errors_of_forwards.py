"""Errors that user code raises while a step is planned are its own; warnings point at the user's line."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError, within_budget
from torch import Tensor, nn

X = torch.randn(6, 4)


class Net(nn.Module):
    """Does something with the result of a layer."""

    def __init__(self, use: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.use = nn.Linear(4, 4), use

    def forward(self, x: Tensor) -> Any:
        return self.use(self, self.linear(x)).sum()


class Failing(torch.autograd.Function):  # type: ignore[misc]
    """A backward written by hand that fails."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, *__: Any) -> Tensor:
        raise LookupError("in the backward")


def refused(_: Any, y: Tensor) -> Tensor:
    raise ValueError(f"not {tuple(y.shape)}")


def restated(_: Any, y: Tensor) -> Tensor:
    try:
        return y[9:9, 99]
    except IndexError as error:
        raise RuntimeError("another text") from error


def asserted(_: Any, y: Tensor) -> Tensor:
    assert len(y) == 5, "five rows"
    return y


ERRORS: dict[str, tuple[type[Exception], str, Callable[[Any, Tensor], Any]]] = {
    "raised": (ValueError, r"not \(6, 4\)", refused),
    "restated": (RuntimeError, "^another text$", restated),
    "asserted": (AssertionError, "five rows", asserted),
    "an attribute of the module": (AttributeError, "no attribute 'gone'", lambda net, y: net.gone(y)),
    "an attribute of a tensor": (AttributeError, "no attribute 'gone'", lambda _, y: y.gone),
    "a key": (KeyError, "gone", lambda _, y: {"y": y}["gone"]),
    "in a backward": (LookupError, "in the backward", lambda _, y: Failing.apply(y)),
}


def bound(module: nn.Module) -> Any:
    return within_budget(module, budget="min", device="cpu", strategy="greedy")


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_a_forward_is_its_own(error: str) -> None:
    kind, message, use = ERRORS[error]
    with pytest.raises(kind, match=message) as raised:
        bound(Net(use))(X)
    assert raised.type is kind


def test_its_traceback_ends_where_it_was_raised() -> None:
    with pytest.raises(ValueError, match="not") as raised:
        bound(Net(refused))(X)
    assert traceback.extract_tb(raised.tb)[-1].name == "refused"


def test_a_call_that_only_tracing_cannot_make_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModuleError, match=r"Net takes at test_errors_of_forwards\.py:\d+"):
        bound(Net(lambda _, y: y * y.detach().numpy().sum()))(X)


def test_a_warning_of_another_plan_points_at_the_call() -> None:
    module = bound(Net(lambda _, y: y))
    module(X)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        module(X[:3])  # this line
    lines = [Path(w.filename).read_text().splitlines()[w.lineno - 1] for w in found if "again" in str(w.message)]
    assert lines == ["        module(X[:3])  # this line"]
