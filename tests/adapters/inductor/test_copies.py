"""A backward may run a call of the forward several times, each time as a copy."""

from __future__ import annotations

import pytest
import torch
from ogc_plan.adapters.inductor.copies import Entry, read_alone, with_copies
from torch import Tensor, fx


class Chain(torch.nn.Module):
    """The backward of a chain whose forward values sin and cos are run again: both gradients read the first."""

    def forward(self, x: Tensor, tangent: Tensor) -> tuple[Tensor]:
        first = torch.sin(x)
        second = torch.cos(first)
        return ((tangent * second) * first,)


GRAPH = fx.symbolic_trace(Chain())
AGAIN = ("sin", "cos")
TWICE = (
    Entry("again", frozenset({"sin"}), frozenset({"sin"})),
    Entry("again", frozenset({"cos"}), frozenset({"cos"})),
    Entry("drop", frozenset({"sin"})),
    Entry("backward", frozenset({"mul"})),
    Entry("drop", frozenset({"cos"})),
    Entry("backward", frozenset({"mul_1"})),
)


def test_a_value_that_was_dropped_is_run_again_for_its_next_reader() -> None:
    assert sorted(with_copies(GRAPH, AGAIN, TWICE)[1]) == ["cos", "sin", "sin"]


def test_a_value_that_is_kept_is_run_once() -> None:
    kept = [entry for entry in TWICE if entry.what != "drop"]
    assert sorted(with_copies(GRAPH, AGAIN, kept)[1]) == ["cos", "sin"]


def test_what_no_entry_names_is_run_where_it_is_read() -> None:
    assert sorted(with_copies(GRAPH, AGAIN, ())[1]) == ["cos", "sin"]


@pytest.mark.values
def test_copies_change_no_value() -> None:
    x, tangent = torch.randn(5), torch.randn(5)
    copied, _ = with_copies(GRAPH, AGAIN, TWICE)
    assert torch.equal(copied(x, tangent)[0], GRAPH(x, tangent)[0])


def two_readers() -> fx.GraphModule:
    """A backward in which a product, and what follows it, read the sine of an input."""
    graph, value = fx.Graph(), torch.empty(4, 4, device="meta")
    x, tangent = graph.placeholder("x"), graph.placeholder("tangent")
    sine = graph.call_function(torch.ops.aten.sin.default, (x,))
    product = graph.call_function(torch.ops.aten.mm.default, (tangent, sine))
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (product, sine)),))
    for node in graph.nodes:
        node.meta["val"] = value
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(("costly", "expected"), [((), ["sin_default"] * 2), (("sin_default",), ["sin_default"])])
def test_only_cheap_values_are_run_again_for_each_part_between_products(
    costly: tuple[str, ...], expected: list[str]
) -> None:
    entries = read_alone(two_readers(), {"sin_default"}, set(costly))
    assert with_copies(two_readers(), ["sin_default"], entries)[1] == expected
