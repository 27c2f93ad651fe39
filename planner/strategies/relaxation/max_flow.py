"""Maximum flows from OR-Tools, and the integer check that makes one a proof.

Any flow within the capacities that conserves what enters each node is a lower bound on every cut (Ford and
Fulkerson 1956): the value counts only after that has been checked here, whatever the solver says of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import needed

Array = NDArray[np.int64]
Flags = NDArray[np.bool_]

MAX_TOTAL = 2**61
"""Capacities of a flow that is to be checked add up to less than this, so that no sum over its arcs leaves 64 bits."""


@dataclass(frozen=True, slots=True)
class Network:
    """Arcs tails[a] -> heads[a] between nodes 0..nodes - 1. Capacities come with each question."""

    nodes: int
    source: int
    sink: int
    tails: Array
    heads: Array


@dataclass(frozen=True, slots=True)
class Flow:
    """Flow per arc, and the source's side of the smallest and of the largest minimum cut, shape [nodes]."""

    flow: Array
    smallest: Flags
    largest: Flags


def maximum_flow(network: Network, capacity: Array) -> Flow:
    """A maximum flow by push-relabel (Goldberg and Tarjan 1988), or none at all when the solver gives up."""
    with needed("ortools"):
        from ortools.graph.python import max_flow

    solver = max_flow.SimpleMaxFlow()
    ends = network.tails.astype(np.int32), network.heads.astype(np.int32)
    arcs = solver.add_arcs_with_capacity(*ends, capacity)
    if len(arcs) == 0 or solver.solve(network.source, network.sink) != solver.OPTIMAL:
        side = np.zeros(network.nodes, dtype=np.bool_)  # the solver's failure costs a weak bound or a poor cut
        side[network.source] = True
        return Flow(np.zeros(len(arcs), dtype=np.int64), side, side)
    smallest = np.zeros(network.nodes, dtype=np.bool_)
    smallest[np.array(solver.get_source_side_min_cut(), dtype=np.int64)] = True
    largest = np.ones(network.nodes, dtype=np.bool_)
    largest[np.array(solver.get_sink_side_min_cut(), dtype=np.int64)] = False
    return Flow(np.asarray(solver.flows(arcs), dtype=np.int64), smallest, largest)


def checked_value(network: Network, capacity: Array, flow: Array) -> int | None:
    """What a flow carries to the sink; None when it is no flow: out of range, or not conserved at some node."""
    if capacity.dtype != np.int64 or flow.dtype != np.int64 or flow.shape != capacity.shape:
        return None
    if (capacity < 0).any() or float(capacity.sum(dtype=np.float64)) >= MAX_TOTAL:
        raise ValueError("capacities must be at least 0 and add up to less than MAX_TOTAL")
    if (flow < 0).any() or (flow > capacity).any():
        return None
    balance = np.zeros(network.nodes, dtype=np.int64)
    np.add.at(balance, network.heads, flow)
    np.subtract.at(balance, network.tails, flow)
    value = int(balance[network.sink])
    balance[[network.source, network.sink]] = 0
    return None if balance.any() else value
