"""Parts of a tangle that one vertex feeds and one vertex reads, found by series and parallel reductions.

Valdes, Tarjan and Lawler, "The recognition of series parallel digraphs", 1982: a vertex with one edge in and one
out becomes an edge, and edges between the same two vertices become one. What is left are the vertices at which a
graph that is not series-parallel hangs together, and edges that stand for what was reduced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

SOURCE, SINK = -1, -2
"""Vertices that stand for everything before and behind a tangle; they are never reduced."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The vertices ``inside`` that hang together with the rest at ``begin`` and ``end`` only, in ascending order."""

    begin: int
    end: int
    inside: tuple[int, ...]


def independent_segments(edges: Iterable[tuple[int, int]]) -> tuple[Segment, ...]:
    """The segments of an acyclic graph that reduction leaves, each as large as possible, in order of their vertices.

    Vertices are numbered from 0 on. Time is linear in the edges but for the lists that parallel edges join.
    """
    after: dict[int, dict[int, list[int]]] = {}
    before: dict[int, set[int]] = {}
    for first, second in edges:
        after.setdefault(first, {})[second] = []
        before.setdefault(second, set()).add(first)
    waiting = deque(sorted(vertex for vertex in before if vertex >= 0))
    while waiting:
        vertex = waiting.popleft()
        if len(before.get(vertex, ())) != 1 or len(after.get(vertex, ())) != 1:
            continue
        (begin,) = before.pop(vertex)
        ((end, behind),) = after.pop(vertex).items()
        inside = after[begin].pop(vertex)
        inside += [vertex, *behind]
        before[end].discard(vertex)
        before[end].add(begin)
        after[begin].setdefault(end, []).extend(inside)
        waiting += [each for each in (begin, end) if each >= 0]
    found = [
        Segment(begin, end, tuple(sorted(inside)))
        for begin, edges_of in after.items()
        for end, inside in edges_of.items()
        if inside
    ]
    return tuple(sorted(found, key=lambda segment: segment.inside))
