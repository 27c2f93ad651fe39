"""The passes over a traced joint graph, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from ..joint import Joint
from .boundary import drop_unread_attributes, merge_tied_parameters, reattach_detached_outputs
from .buffer_writes import write_buffers_in_calls
from .calls import drop_redundant_copies, drop_unread_statistics, inline_scalar_fills

PASSES: tuple[Callable[[Joint], Joint], ...] = (
    drop_unread_attributes,  # first: the passes after it see only primals that the step reads
    merge_tied_parameters,  # before calls are dropped: its sums follow the calls of an autograd node
    reattach_detached_outputs,  # before drop_redundant_copies, whose precondition is that outputs are final
    drop_unread_statistics,
    drop_redundant_copies,
    inline_scalar_fills,
    write_buffers_in_calls,  # after drop_unread_statistics: nothing but the norm may read its statistics
)


def run_passes(joint: Joint) -> Joint:
    """Run all passes.

    Raises AssertionError, with the pass's name, where a pass leaves a Joint that names a node outside its graph.
    """
    for apply in PASSES:
        joint = apply(joint)
        nodes = set(joint.graph.nodes)
        lost = [node.name for node in _named(joint) if node not in nodes]
        assert not lost, f"{apply.__name__} erased nodes that the step needs: {lost}"
    return joint


def _named(joint: Joint) -> list[fx.Node]:
    """The nodes that a Joint refers to."""
    found = [primal.node for primal in joint.primals]
    found += [node for node in (*joint.outputs, *joint.tangents) if isinstance(node, fx.Node)]
    return found + [node for _, node in (*joint.gradients, *joint.updates, *joint.writes)]
