"""The stress run: what it calls bound, refused and wrong, and that nothing in the committed results is wrong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.architectures.case import Case, tokens
from models.architectures.cases import STRESSED
from models.architectures.outcome import examine
from models.architectures.stress import outcome, report

RESULTS = Path(__file__).resolve().parents[3] / "models" / "results"


class Small(nn.Module):
    """Tokens through an embedding, a norm with running statistics and dropout to a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(128, 16), nn.BatchNorm1d(16), nn.Linear(16, 128)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        hidden = nn.functional.dropout(self.norm(self.embed(input_ids).flatten(0, 1)).relu(), 0.1)
        return nn.functional.cross_entropy(self.head(hidden), labels.flatten())


class Randomly(Small):
    """Goes by a random number that is not PyTorch's."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return super().forward(input_ids, labels) * (2 if np.random.rand() < 0.5 else 1)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (1 + 2**-23)


def wrongly(module: nn.Module, inputs: Any, budget: str) -> nn.Module:
    """The bound module, its gradients one bit off: what a wrong plan would do."""
    from models.architectures.outcome import bind_within

    bound = bind_within(module, inputs, budget)
    cls = type(bound)
    bound.__class__ = type(
        cls.__name__, (cls,), {"__call__": lambda self, **kw: Doubled.apply(cls.__call__(self, **kw))}
    )
    return bound


def case(build: Any = Small) -> Case:
    return Case(
        "small", "encoder", "torch", lambda _: build(), lambda: {"input_ids": tokens(), "labels": tokens(seed=4)}
    )


def test_a_network_that_trains_as_eager_does_is_bound() -> None:
    assert examine(case())["result"] == "bound"


def test_a_gradient_that_is_one_bit_off_is_wrong() -> None:
    found = examine(case(), binder=wrongly)
    assert (found["result"], "gradients: " in found["why"]) == ("wrong", True)


def test_a_network_that_cannot_be_traced_is_refused_with_the_reason() -> None:
    found = examine(case(Randomly))
    assert (found["result"], "Randomly" in found["why"], bool(found["remedy"])) == ("refused", True, True)


def test_an_error_that_is_not_ours_is_wrong() -> None:
    def broken(module: nn.Module, inputs: Any, budget: str) -> nn.Module:
        raise IndexError("out of range")

    assert examine(case(), binder=broken)["why"] == "IndexError: out of range"


def test_a_network_that_the_library_cannot_build_is_unbuilt() -> None:
    assert examine(case(lambda: 1 / 0))["result"] == "unbuilt"


def test_a_process_that_ends_is_a_wrong_outcome() -> None:
    found = outcome("bert", module="models.no_such_module")
    assert (found["name"], found["result"], "exit status 1: " in found["why"]) == ("bert", "wrong", True)


def test_the_report_gives_the_reason_of_a_refusal() -> None:
    row = {"name": "bert", "kind": "encoder", "library": "torch", "result": "refused", "why": "because"}
    assert "- bert (refused): because" in report([row])


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / "stress_architectures.json").read_text())["rows"]
    return found


class TestCommittedResults:
    def test_the_page_names_every_network_that_is_wrong(self, rows: list[dict[str, Any]]) -> None:
        page = (RESULTS.parent / "README.md").read_text()
        assert [row["name"] for row in rows if row["result"] == "wrong" and row["name"] not in page] == []

    def test_every_outcome_is_of_a_network_of_the_list_in_its_order(self, rows: list[dict[str, Any]]) -> None:
        names = {row["name"] for row in rows}
        assert [row["name"] for row in rows] == [name for name in STRESSED if name in names]

    def test_at_least_sixty_networks_are_bound(self, rows: list[dict[str, Any]]) -> None:
        assert Counter(row["result"] for row in rows)["bound"] >= 60

    def test_every_refusal_has_a_reason_and_a_remedy(self, rows: list[dict[str, Any]]) -> None:
        refused = [row for row in rows if row["result"] == "refused"]
        assert [row["name"] for row in refused if not (row["why"] and row["remedy"])] == []
