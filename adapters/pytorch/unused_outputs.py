"""Outputs without a part in the loss: their gradients are zeros, and what those are added to must lie as it did.

Eager training adds nothing where an output is not used. A planned step adds zeros: the same values, but the sum
lies as tracing laid it out, and a reduction of it goes through memory in that order.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import fx

from .blocks import tensors
from .capture import Joint, UnsupportedModuleError
from .segments import tangents_needed
from .strides import lies_like


class _Term(NamedTuple):
    """One operand of a sum: the tangents it depends on, those of the other, and whether the sum lies like it."""

    needs: frozenset[int]
    others: frozenset[int]
    alike: bool


class UnusedOutputs:
    """Knows of a joint graph with which outputs unused a sum of gradients would lie otherwise than in eager."""

    def __init__(self, joint: Joint) -> None:
        needed = tangents_needed(joint)
        self._terms: list[_Term] = []
        for node in joint.graph.nodes:
            if node.target is not torch.ops.aten.add.Tensor or len(node.args) != 2:
                continue
            one, other = node.args
            if one in needed and other in needed:
                self._terms += [_term(node, one, other, needed), _term(node, other, one, needed)]
        self._terms = [term for term in self._terms if not term.alike]

    def check(self, absent: Collection[int]) -> None:
        """Raise UnsupportedModuleError where zeros for the ``absent`` tangents decide how a sum lies."""
        for term in self._terms if absent else ():
            if term.others <= set(absent) and not term.needs <= set(absent):
                places = ", ".join(str(place) for place in sorted(term.others))
                raise UnsupportedModuleError(
                    f"the loss leaves out output {places} of those that take a gradient, and the gradients summed "
                    "there lie otherwise in memory than with it: bits would differ from eager training",
                    remedy="plan a module that returns only what the loss uses, or detach the others",
                )


def _term(total: fx.Node, one: fx.Node, other: fx.Node, needed: dict[fx.Node, frozenset[int]]) -> _Term:
    (made,), (given,) = tensors(total), tensors(one)
    return _Term(needed[one], needed[other], lies_like(made, given))
