"""A backward that runs a call of the forward again as often as a plan says, each time as a copy of its own.

Torch's own cut has one copy of each call that runs again, whose result lives from the first use to the last: on a long
chain a step that saves nothing then holds as much as one that saves all. Inductor does not merge the copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from torch import fx

from .forms import COPY_OF
from .work import node_flops


class Entry(NamedTuple):
    """One step of the backward: ``run`` calls of the forward ``again``, run calls of the ``backward``, or ``drop``.

    ``names`` are calls of the graph; of a run ``kept`` are those whose values others find until they are dropped.
    """

    what: str
    names: frozenset[str]
    kept: frozenset[str] = frozenset()


class _Copier:
    def __init__(self, old: fx.Graph, again: frozenset[str]) -> None:
        self.graph = fx.Graph()
        self._again = again
        self._position = {node.name: position for position, node in enumerate(old.nodes)}
        self._named = {node.name: node for node in old.nodes}
        self._made: dict[str, fx.Node] = {}  # what is there once: inputs, and calls of the backward
        self._alive: dict[str, fx.Node] = {}
        self.copied: list[str] = []
        for node in old.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._made[node.name] = self.graph.node_copy(node)

    def enter(self, entry: Entry) -> None:
        """Append the nodes of an entry."""
        if entry.what == "drop":
            for name in entry.names:
                self._alive.pop(name, None)
            return
        found: dict[str, fx.Node] = {}
        for name in sorted(entry.names & self._named.keys(), key=self._position.__getitem__):
            if (name in self._again) == (entry.what == "again"):
                self.of(self._named[name], found)
        self._alive.update({name: found[name] for name in entry.kept & found.keys()})

    def of(self, node: fx.Node, found: dict[str, fx.Node]) -> fx.Node:
        """The copy of a node that one entry reads; ``found`` are the copies that the entry has made."""
        waiting = [node]
        while waiting:
            current = waiting[-1]
            if self._known(current, found) is not None:
                waiting.pop()
                continue
            missing = [read for read in current.all_input_nodes if self._known(read, found) is None]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            made = self.graph.node_copy(current, lambda read: self._known(read, found))
            if current.name in self._again:
                made.meta[COPY_OF] = current.name
                found[current.name] = made
                self.copied.append(current.name)
            else:
                self._made[current.name] = made
        result = self._known(node, found)
        assert result is not None
        return result

    def _known(self, node: fx.Node, found: dict[str, fx.Node]) -> fx.Node | None:
        name = node.name
        return self._made.get(name) or found.get(name) or self._alive.get(name)


def with_copies(
    backward: fx.GraphModule, again: Iterable[str], entries: Sequence[Entry]
) -> tuple[fx.GraphModule, list[str]]:
    """The backward in the order of ``entries``, and the calls of the forward that it runs, once for each copy."""
    copier = _Copier(backward.graph, frozenset(again))
    for entry in entries:
        copier.enter(entry)
    output = next(node for node in backward.graph.nodes if node.op == "output")
    found: dict[str, fx.Node] = {}
    copied = copier.graph.node_copy(output, lambda read: copier.of(read, found))
    copied.meta = dict(output.meta)
    return fx.GraphModule(backward, copier.graph), copier.copied


def read_alone(backward: fx.GraphModule, again: Set[str], costly: Set[str]) -> list[Entry]:
    """The backward in its own order, where what lies between two products finds cheap values computed for it alone.

    A costly call of those that run ``again`` runs once, and its value is alive from the first reader to the last.
    """
    entries, part = list[Entry](), set[str]()
    for node in backward.graph.nodes:
        if node.op != "call_function":
            continue
        own = frozenset({node.name})
        if node.name not in again:
            part.add(node.name)
            if node_flops(node):
                entries.append(Entry("backward", frozenset(part)))
                part = set()
        elif node.name in costly:
            entries.append(Entry("again", own, own))
    return [*entries, Entry("backward", frozenset(part))]
