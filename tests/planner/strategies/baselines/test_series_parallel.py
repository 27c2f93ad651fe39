"""Independent segments: what hangs together with the rest of a graph by one vertex before and one behind."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ogc_plan.planner.strategies.baselines.series_parallel import SINK, SOURCE, independent_segments


@st.composite
def connected(draw):
    """Edges of an acyclic graph on up to 12 vertices, every one of them between SOURCE and SINK."""
    count = draw(st.integers(1, 12))
    edges = set()
    for vertex in range(count):
        edges.update(
            (maker, vertex) for maker in draw(st.sets(st.integers(SOURCE, vertex - 1), min_size=1, max_size=3))
        )
    ends = set(range(count)) - {maker for maker, _ in edges}
    return count, edges | {(vertex, SINK) for vertex in ends}


def reduced_once(edges: set[tuple[int, int]]) -> set[int]:
    """The vertices with one edge in and one out."""
    makers, readers = [a for a, _ in edges], [b for _, b in edges]
    return {vertex for vertex in readers if vertex >= 0 and readers.count(vertex) == makers.count(vertex) == 1}


@given(graph=connected())
@settings(max_examples=100, deadline=None)
def test_nothing_but_begin_feeds_a_segment_and_nothing_but_end_reads_it(graph):
    _, edges = graph
    across = {
        (segment.begin if b in segment.inside else segment.end, b if a in segment.inside else a)
        for segment in independent_segments(edges)
        for a, b in edges
        if (a in segment.inside) != (b in segment.inside)
    }
    assert all(first == second for first, second in across)


@given(graph=connected())
@settings(max_examples=100, deadline=None)
def test_no_vertex_is_in_two_segments(graph):
    inside = [vertex for segment in independent_segments(graph[1]) for vertex in segment.inside]
    assert len(inside) == len(set(inside))


@given(graph=connected())
@settings(max_examples=100, deadline=None)
def test_what_is_left_around_the_segments_can_be_reduced_no_further(graph):
    _, edges = graph
    segments = independent_segments(edges)
    inside = {vertex for segment in segments for vertex in segment.inside}
    left = {(a, b) for a, b in edges if not {a, b} & inside} | {(s.begin, s.end) for s in segments}
    assert not reduced_once(left)


def test_a_series_parallel_graph_is_one_segment():
    edges = [(SOURCE, 0), (0, 1), (0, 2), (1, 3), (2, 3), (0, 3), (3, SINK)]
    assert [(s.begin, s.end, s.inside) for s in independent_segments(edges)] == [(SOURCE, SINK, (0, 1, 2, 3))]


def test_a_chain_between_two_vertices_of_a_tangle_is_a_segment():
    tangle = [(SOURCE, 0), (SOURCE, 1), (0, 2), (1, 2), (0, 3), (2, 3), (1, 4), (3, 4), (2, 4), (4, SINK), (3, SINK)]
    edges = [edge for edge in tangle if edge != (2, 3)] + [(2, 5), (5, 6), (6, 3)]
    assert [(s.begin, s.end, s.inside) for s in independent_segments(edges)] == [(2, 3, (5, 6))]
