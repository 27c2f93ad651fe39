"""What one way to run a block costs: its computations, the bytes it holds and its peaks, compiled with numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..evaluation.evaluator import Arrays, Labels, Scratch
from ..kernels.jit import compiled

Measured = tuple[int, int, int, int, int]
"""Bytes held, peak of the forward, peak of the backward, extra_ns and again_ns, as in chain_options.Option."""


@compiled
def block_events(a: Arrays, labels: Labels, w: Scratch, wanted: NDArray[np.bool_]) -> tuple[int, int]:
    """Fill ``w.events`` from the number of ops on with the backward of a block; returns (end, recomputation ns).

    Before each backward the dropped storages it needs are made again, in forward order, and then live to their last
    use. ``wanted`` (shape [S]) gets the storages that the backward takes from the forward.
    """
    ops = len(a.forward_ns)
    for s in range(len(a.nbytes)):
        wanted[s] = False
    for op in range(ops):
        w.ran_at[op] = 0
    count, extra = ops, 0
    for position in range(len(a.order)):
        begin, top = count, 0
        for q in range(a.needs_start[position], a.needs_start[position + 1]):
            s = a.needs[q]
            if labels[s] == 0:
                w.stack[top] = s
                top += 1
            else:
                wanted[s] = True
        while top > 0:
            top -= 1
            op = a.producer[w.stack[top]]
            if w.ran_at[op]:
                continue
            w.ran_at[op] = 1
            extra += a.forward_ns[op]
            at = count
            while at > begin and w.events[at - 1] > op:
                w.events[at] = w.events[at - 1]
                at -= 1
            w.events[at] = op
            count += 1
            for q in range(a.reads_start[op], a.reads_start[op + 1]):
                s = a.reads[q]
                if labels[s] == 0:
                    w.stack[top] = s
                    top += 1
                else:
                    wanted[s] = True
        w.events[count] = ~a.order[position]
        count += 1
    return count, extra


@compiled
def measure(
    a: Arrays, outgoing: NDArray[np.bool_], last: bool, labels: Labels, w: Scratch, wanted: NDArray[np.bool_]
) -> tuple[int, int, int, int, int]:
    """(held, forward peak, backward peak, extra_ns, again_ns); ``last``: no later block needs what leaves the block."""
    count, extra = block_events(a, labels, w, wanted)
    ops, live, held, states = len(a.forward_ns), 0, 0, 0
    alive = w.start
    for op in range(ops):
        if w.ran_at[op]:
            states += a.random_state[op]
    for s in range(len(a.nbytes)):
        wanted[s] |= outgoing[s] and not last
        alive[s] = wanted[s]
        if wanted[s]:
            held += a.nbytes[s]
    forward, live, again = states, held, extra
    for op in range(ops - 1, -1, -1):  # what the forward alone makes lives to its last reader
        made = False
        for q in range(a.writes_start[op], a.writes_start[op + 1]):
            made |= wanted[a.writes[q]]
        if made:
            again += a.forward_ns[op]
        elif last:
            continue
        for q in range(a.writes_start[op], a.writes_start[op + 1]):
            s = a.writes[q]
            if not alive[s]:
                live += a.nbytes[s]
        for q in range(a.reads_start[op], a.reads_start[op + 1]):
            s = a.reads[q]
            wanted[s] |= made
            if not alive[s]:
                live += a.nbytes[s]
                alive[s] = 1
        forward = max(forward, states + live + a.workspace[op])
        for q in range(a.writes_start[op], a.writes_start[op + 1]):
            live -= a.nbytes[a.writes[q]]
            alive[a.writes[q]] = 0
    backward, live, position = 0, states, len(a.order)
    for s in range(len(a.nbytes)):
        alive[s] = 0
    for event in range(count - 1, ops - 1, -1):  # a copy lives from its run to its last use before the next
        entry = w.events[event]
        if entry < 0:
            position -= 1
            for q in range(a.needs_start[position], a.needs_start[position + 1]):
                s = a.needs[q]
                if not alive[s]:
                    live += a.nbytes[s]
                    alive[s] = 1
            backward = max(backward, live + a.during[position])
            continue
        for q in range(a.reads_start[entry], a.reads_start[entry + 1]):
            s = a.reads[q]
            if not alive[s]:
                live += a.nbytes[s]
                alive[s] = 1
        for q in range(a.writes_start[entry], a.writes_start[entry + 1]):
            if not alive[a.writes[q]]:
                live += a.nbytes[a.writes[q]]
        backward = max(backward, live + a.between[position] + a.workspace[entry])
        for q in range(a.writes_start[entry], a.writes_start[entry + 1]):
            live -= a.nbytes[a.writes[q]]
            alive[a.writes[q]] = 0
    return held + states, forward, backward, extra, again
