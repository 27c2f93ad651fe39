"""The distinct outputs of a module: a tensor returned several times is one output, views of one storage are several.

Tracing would make an output, with its own gradient, of each time a tensor is returned; the gradients would be summed in
another order than autograd sums the uses of one tensor. For outputs that share a storage, tracing would take only the
gradient of the storage, and sum the module's own uses of a view after the caller's; so each such output passes through
an autograd node of its own at the end of the forward. An argument, parameter or buffer that is returned and takes no
gradient comes back as the same object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any

import torch
from torch import nn

from .. import torch_private
from ..errors import UnsupportedModuleError
from ..guards.assignments import Assignment, assigned, attributes, put_back
from ..guards.attribute_reads import AttributeReads, Read
from ..guards.object_parts import held_by, take_apart
from ..guards.sources import MISSING
from ..torch_private import pytree


class _Unalias(torch.autograd.Function):  # type: ignore[misc]
    """Passes an output through that shares memory; to autograd the result shares none."""

    @staticmethod
    def forward(_: Any, output: torch.Tensor) -> torch.Tensor:
        """The same memory."""
        return output.detach()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """The gradient unchanged."""
        return gradients[0]


class DistinctOutputs:
    """The structure of the last result of a forward, and which of its leaves are the same tensor.

    Attributes:
        detached: distinct outputs that take no gradient on request.
        leaf_outputs: for each leaf the index of its distinct output.
        assigned: the attributes that the forward sets and the step sets too; their tensors are outputs after those of
            the result.
        returned_inputs: for each distinct output without gradient that shares memory with an argument leaf (by index),
            a parameter or a buffer (by name): that index or name, and whether it is the same tensor.
        take_several_gradients: whether the backward of some `torch.autograd.Function` takes several gradients.
    """

    def __init__(self, detached: Collection[int] = ()) -> None:
        self.detached = frozenset(detached)
        self.spec: pytree.TreeSpec = pytree.tree_flatten(None)[1]
        self.leaf_outputs: tuple[int, ...] = ()
        self.assigned: dict[Read, Assignment] = {}
        self.returned_inputs: dict[int, tuple[int | str, bool]] = {}
        self.take_several_gradients = False

    def wrap(self, module: nn.Module, forward: Callable[..., Any], reads: AttributeReads) -> Callable[..., Any]:
        """``forward`` of ``module`` returning the distinct leaves of its result and of what it sets."""

        def distinct(*args: Any, **kwargs: Any) -> list[Any]:
            inputs: dict[int | str, Any] = dict(enumerate(pytree.tree_leaves((args, kwargs))))
            inputs |= {
                **dict(module.named_parameters()),
                **dict(module.named_buffers()),
            }  # the forward may replace them
            kept, before = held_by(module), attributes(module)
            leaves, self.spec = pytree.tree_flatten(take_apart(forward(*args, **kwargs), kept))
            before |= {target: value for target, (_, value) in reads.before.items()}
            found = assigned(module, reads, kept, before)
            values = {target: pytree.tree_flatten(value) for target, value in found.items()}
            leaves += [leaf for own, _ in values.values() for leaf in own]
            put_back(module, before, values)  # torch runs the forward twice; the second must find what the first found
            first: dict[int, int] = {}
            outputs: list[Any] = []
            leaf_outputs = []
            for leaf in leaves:
                known = first.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None
                if known is None:
                    known = first[id(leaf)] = len(outputs)
                    outputs.append(leaf)
                leaf_outputs.append(known)
            self.leaf_outputs = tuple(leaf_outputs[: self.spec.num_leaves])
            rest = iter(leaf_outputs[self.spec.num_leaves :])
            self.assigned.clear()  # the mode that refuses side effects has it
            for target, (own, spec) in values.items():
                was = before.get(target, MISSING)
                empty = (was,) if was is None or was is MISSING else ()
                filling = tuple(islice(rest, len(own)))
                self.assigned[target] = Assignment(target, reads.written[target], spec, filling, empty)
            if any(isinstance(leaf, torch.Tensor) and leaf.retains_grad for leaf in outputs):
                raise UnsupportedModuleError(
                    f"the forward of {type(module).__name__} asks to keep the gradient of a tensor that it returns",
                    remedy="leave out its retain_grad(), and compute what is needed of the gradient in the forward",
                )
            return self._unaliased(outputs, inputs)

        return distinct

    def _unaliased(self, outputs: list[Any], inputs: dict[int | str, Any]) -> list[Any]:
        """The distinct outputs of a forward, each for autograd in memory of its own, or detached."""
        self.take_several_gradients |= torch_private.some_function_takes_several_gradients(outputs)
        owners = {key: name for name, tensor in inputs.items() for key in _storage(tensor)}
        users = Counter(owners.keys()) + Counter(key for output in outputs for key in _storage(output))
        self.returned_inputs = {}
        found = []
        for i, output in enumerate(outputs):
            for key in _storage(output):
                if not output.requires_grad and key in owners:
                    self.returned_inputs[i] = owners[key], inputs[owners[key]] is output
                if output.requires_grad and i in self.detached:
                    output = output.detach()
                elif output.requires_grad and users[key] > 1:
                    output = _Unalias.apply(output)
            found.append(output)
        return found


def _storage(leaf: Any) -> list[int]:
    """The key of a dense tensor's storage in a list; empty for other values."""
    dense = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    return [torch_private.storage_key(leaf)] if dense else []
