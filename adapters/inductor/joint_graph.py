"""Inductor's joint graph of a training step: what must not run twice, what torch would save, and how it is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import torch
from torch import fx

from . import torch_private
from .forms import Forms, layout_form
from .scheduling import hold_few_bytes
from .work import draws_from_seed, sums

_AFTER_CHECKPOINTS = ("recompute", "ac_graph_id")
"""Marks that a checkpoint of the user's leaves on nodes: the plan decides what is recomputed."""

_IMAGES = 4
"""Inductor lays out tensors of so many dimensions anew."""


class JointGraph:
    """One joint graph that is cut into a forward and a backward, by the values that the backward finds saved."""

    def __init__(self, graph_module: fx.GraphModule, outputs: int, static: Iterable[int]) -> None:
        for node in graph_module.graph.nodes:
            for mark in _AFTER_CHECKPOINTS:
                node.meta.pop(mark, None)
        torch_private.prepared(graph_module)
        self._old_values = copy_what_changes(graph_module.graph, outputs)
        self.module = graph_module
        self.outputs, self.static = outputs, list(static)
        self.info = torch_private.classified(graph_module, self.static, outputs)
        self.node_named: dict[str, fx.Node] = {node.name: node for node in graph_module.graph.nodes}

    @property
    def graph(self) -> fx.Graph:
        """The aten calls of forward and backward."""
        return self.module.graph

    @cached_property
    def inputs(self) -> list[fx.Node]:
        """Parameters, buffers and arguments."""
        return list(self.info.inputs)

    @cached_property
    def input_nbytes(self) -> int:
        """Bytes of the storages of parameters, buffers and arguments, which the caller holds."""
        return self._storages_nbytes(self.inputs)

    @cached_property
    def static_nbytes(self) -> int:
        """Bytes of those that stay the same from step to step: parameters and buffers."""
        return self._storages_nbytes(self.info.static_lifetime_input_nodes)

    def _storages_nbytes(self, nodes: Iterable[fx.Node]) -> int:
        storages = {_storage(node): node.meta["val"].untyped_storage().nbytes() for node in nodes if _is_tensor(node)}
        return sum(map(int, storages.values()))

    @cached_property
    def results(self) -> list[fx.Node | None]:
        """What forward and backward return, in this order."""
        return _results(self.graph)

    @property
    def has_backward(self) -> bool:
        """Whether anything is left for the backward to do."""
        return len(self.info.required_bw_nodes) > 0

    def gradients(self) -> list[tuple[fx.Node, fx.Node]]:
        """Each input that takes a gradient, and the gradient."""
        primals = [node for node in self.graph.nodes if node.op == "placeholder" and "primals" in str(node.target)]
        made = zip(primals, self.results[self.outputs :], strict=False)
        return [(primal, gradient) for primal, gradient in made if gradient is not None]

    def values(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        """The tensors among the nodes that the forward can compute, in the order of the graph."""
        chosen = set(nodes)
        return [
            node
            for node in self.graph.nodes
            if node in chosen
            and node.op == "call_function"
            and node not in self.info.tangents_closure
            and _is_tensor(node)
        ]

    def nbytes(self, values: Iterable[fx.Node]) -> int:
        """Bytes of values that are saved each in memory of its own, as Inductor does but for few."""
        return sum(map(torch_private.size_of, values))

    def again(self, saved: Iterable[fx.Node]) -> list[fx.Node]:
        """The calls of the forward that the backward runs again if it finds these values, in the order of the graph."""
        kept, met = set(saved), set[fx.Node]()
        waiting = [node for node in self.results[self.outputs :] if node is not None]
        while waiting:
            node = waiting.pop()
            if node not in met and node not in kept:
                met.add(node)
                waiting += node.all_input_nodes
        return [
            node
            for node in self.graph.nodes
            if node in met and node.op == "call_function" and self.info.is_required_fw(node)
        ]

    def with_random_values(self, saved: Iterable[fx.Node]) -> list[fx.Node]:
        """The saved values, and those that keep the backward from drawing a random number again.

        A mask that is made from a seed is made again from the saved seed, to the same bits. The old value of a buffer
        that the forward writes over is not there any more.
        """
        return self._without(self._runs_once, saved)

    def with_sums(self, saved: Iterable[fx.Node]) -> list[fx.Node]:
        """The same, and sums: one that is made again in other loops may round otherwise."""
        return self._without(lambda node: self._runs_once(node) or sums(node), saved)

    def _runs_once(self, node: fx.Node) -> bool:
        """Whether a call would compute something else in the backward."""
        return _draws_from_generator(node) or node in self._old_values

    def _without(self, kind: Callable[[fx.Node], bool], saved: Iterable[fx.Node]) -> list[fx.Node]:
        """The saved values, and those without which the backward would run a call of that kind again."""
        kept = self.values(saved)
        while True:
            found = [node for node in self.again(kept) if kind(node)]
            values = [value for node in found for value in ([node] if _is_tensor(node) else node.users)]
            missing = [node for node in self.values(values) if node not in kept]
            if not missing:
                return self.values(kept)
            kept += missing

    def by_torch(self, share: float) -> list[fx.Node]:
        """What torch saves at that ``activation_memory_budget``, without drawing a random number again."""
        return self.with_random_values(torch_private.chosen_by_torch(self.graph, self.info, share))

    def read_later(self) -> list[fx.Node]:
        """The values of the forward that the backward reads: with these saved it runs nothing again."""
        forward = self.info.is_required_fw
        later = [node for node in self.graph.nodes if node.op == "call_function" and not forward(node)]
        return self.with_random_values(read for node in later for read in node.all_input_nodes if forward(read))

    def cuts_for(self, again: Iterable[fx.Node]) -> list[list[fx.Node]]:
        """The smallest set of saved values for which only these calls, and what fuses, run again.

        Random numbers that are drawn from a seed fuse. Where there are any, the second cut saves what is made of them.
        """
        drawn = [node for node in self.graph.nodes if node.op == "call_function" and draws_from_seed(node)]
        kinds = [[], drawn] if drawn else [[]]
        cuts = (torch_private.smallest_cut(self.graph, self.info, again, once)[0] for once in kinds)
        return list(map(self.with_random_values, cuts))

    @cached_property
    def costly(self) -> frozenset[fx.Node]:
        """The calls that torch runs again only for a budget: products, convolutions, reductions."""
        return frozenset(torch_private.smallest_cut(self.graph, self.info, ())[1])

    def cut(self, saved: Iterable[fx.Node], *, as_torch: bool = False) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Forward and backward, where the backward finds exactly these values of the forward.

        ``as_torch`` leaves it to Inductor in which layout the backward finds inputs.
        """
        forward, backward = torch_private.extracted(
            self.module, [*self.inputs, *self.values(saved)], self.info, self.outputs
        )
        if not as_torch:
            return_inputs_as_given(forward)
            hold_few_bytes(forward)
            hold_few_bytes(backward)
        return forward, backward


def copy_what_changes(graph: fx.Graph, outputs: int) -> frozenset[fx.Node]:
    """Let gradients follow from copies of what the forward writes over, buffers and arguments; returns the copies.

    All reads of the joint graph mean the old value. Inductor writes the new one when the forward ends, and what the
    backward reads or computes again would see that. In a step that is compiled without a budget it can.
    """
    inputs = [node for node in graph.find_nodes(op="placeholder") if "primals" in str(node.target)]
    changed = {node.args[0] for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)}
    changed |= {inputs[i] for i in torch_private.changed_after_forward() if i < len(inputs)}
    needed, waiting = set[fx.Node](), [node for node in _results(graph)[outputs:] if node is not None]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    copies = set[fx.Node]()
    first = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
    for node in (node for node in inputs if node in changed & needed):
        with graph.inserting_before(first), node.meta["val"].fake_mode:
            copy = graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta = {"val": torch.clone(node.meta["val"])}
        for user in list(node.users):
            writes = user.target is torch.ops.aten.copy_.default and user.args[0] is node
            if user is not copy and user.op != "output" and not writes:
                user.replace_input_with(node, copy)
        copies.add(copy)
    return frozenset(copies)


def return_inputs_as_given(forward: fx.GraphModule) -> None:
    """Let the backward find inputs themselves, not the copies that Inductor makes in a convolution's layout.

    Inductor lays an input out anew for all of its readers, the backward too, which then holds a copy of each filter.
    It leaves an input as it is that is read by as_strided.
    """
    graph = forward.graph
    output = next(node for node in graph.nodes if node.op == "output")
    first = next(node for node in graph.nodes if node.op != "placeholder")
    if not graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default):
        return
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        given = isinstance(value, torch.Tensor) and value.ndim == _IMAGES and value.is_contiguous()
        readers = [user for user in node.users if user is not output]
        if given and readers and output in node.users:
            with graph.inserting_before(first):
                read = graph.call_function(
                    torch.ops.aten.as_strided.default, (node, list(value.shape), list(value.stride()), 0)
                )
            read.meta = dict(node.meta)
            for reader in readers:
                reader.replace_input_with(node, read)
    forward.recompile()


def lay_inputs_out(forward: fx.GraphModule, backward: fx.GraphModule, plain: Forms) -> None:
    """Copy images that the backward of a convolution reads into the layout of ``plain``, just before they are read."""
    inputs = {node.name for node in forward.graph.find_nodes(op="placeholder")}
    for node in backward.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
        given, value = node.args[1], node.args[1].meta["val"]
        if given.name not in inputs or value.ndim != _IMAGES or not value.is_contiguous():
            continue
        strides = torch.empty(value.shape, device="meta").to(memory_format=torch.channels_last).stride()
        now, anew = (layout_form((value.shape, found)) for found in (value.stride(), strides))
        if now != anew and anew in {form[1] for form in plain.get(node.name, ())}:
            with backward.graph.inserting_before(node):
                options = {"memory_format": torch.channels_last}
                copy = backward.graph.call_function(torch.ops.aten.clone.default, (given,), options)
            copy.meta = {**given.meta, "val": torch_private.restrided(value, strides)}
            node.replace_input_with(given, copy)
    backward.recompile()


def _results(graph: fx.Graph) -> list[fx.Node | None]:
    output = next(node for node in graph.nodes if node.op == "output")
    leaves = torch_private.pytree.arg_tree_leaves(*output.args)
    return [leaf if isinstance(leaf, fx.Node) else None for leaf in leaves]


def _storage(node: fx.Node) -> int:
    return torch_private.storage_of(node.meta["val"])


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _draws_from_generator(node: fx.Node) -> bool:
    """Whether a call draws random numbers from a generator: a second run would draw others."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
