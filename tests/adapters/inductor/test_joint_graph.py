"""The forward of a compiled step hands inputs to the backward as they are."""

from __future__ import annotations

import pytest
import torch
from ogc_plan.adapters.inductor import scheduling
from ogc_plan.adapters.inductor.joint_graph import return_inputs_as_given
from torch import fx


def forward(memory_format: torch.memory_format) -> fx.GraphModule:
    """A convolution whose image and filter the backward finds."""
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in ("image", "weight")]
    for node in inputs:
        node.meta["val"] = torch.empty(2, 3, 4, 4, device="meta").to(memory_format=memory_format)
    made = graph.call_function(
        torch.ops.aten.convolution.default, (*inputs, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    )
    graph.output((made, *inputs))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    ("memory_format", "expected"),
    [
        (torch.contiguous_format, ["as_strided_default", "as_strided_default_1"]),
        (torch.channels_last, ["image", "weight"]),
    ],
    ids=["another layout", "its own layout"],
)
def test_a_convolution_reads_what_it_would_copy_apart_from_what_is_saved(
    memory_format: torch.memory_format, expected: list[str]
) -> None:
    step = forward(memory_format)
    return_inputs_as_given(step)
    (read,) = step.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    assert [node.name for node in read.args[:2]] == expected


def test_the_backward_finds_the_inputs_themselves() -> None:
    step = forward(torch.contiguous_format)
    return_inputs_as_given(step)
    (output,) = step.graph.find_nodes(op="output")
    assert [node.op for node in output.args[0][1:]] == ["placeholder", "placeholder"]


def test_a_graph_that_is_to_hold_few_bytes_marks_no_other_that_was_cut_from_the_same() -> None:
    lean, plain = (forward(torch.contiguous_format) for _ in range(2))
    for one, other in zip(lean.graph.nodes, plain.graph.nodes, strict=True):
        one.meta = other.meta  # as the partitioner cuts graphs
    scheduling.hold_few_bytes(lean)
    assert [scheduling.is_marked(step.graph) for step in (lean, plain)] == [True, False]
