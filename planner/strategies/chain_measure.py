"""What one way to run a block costs: its computations, the bytes it holds and its peaks, compiled with numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .evaluate import Arrays, Labels, Scratch
from .kernels import compiled

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
    ops = len(a.forward_ns)
    count, extra = block_events(a, labels, w, wanted)
    held, states, again = 0, 0, extra
    for event in range(count + 1):
        w.memory[event] = 0
    for op in range(ops):
        if w.ran_at[op]:
            states += a.random_state[op]
    for s in range(len(a.nbytes)):
        wanted[s] |= outgoing[s] and not last
        w.start[s] = -1
        if wanted[s]:
            held += a.nbytes[s]
            w.memory[a.producer[s]] += a.nbytes[s]
            w.memory[ops] -= a.nbytes[s]
            w.start[s] = 0
            w.last[s] = ops - 1
    for op in range(ops - 1, -1, -1):  # what the forward alone makes lives to its last reader
        runs = not last
        for q in range(a.writes_start[op], a.writes_start[op + 1]):
            runs |= wanted[a.writes[q]]
        w.until[op] = runs
        made = False
        for q in range(a.writes_start[op], a.writes_start[op + 1]):
            made |= wanted[a.writes[q]]
            s = a.writes[q]
            if runs and w.start[s] < 0:
                w.memory[op] += a.nbytes[s]
                w.memory[op + 1] -= a.nbytes[s]
        if made:
            again += a.forward_ns[op]
        if runs:
            for q in range(a.reads_start[op], a.reads_start[op + 1]):
                s = a.reads[q]
                wanted[s] |= made
                if w.start[s] < 0:
                    w.start[s] = 0
                    w.memory[a.producer[s]] += a.nbytes[s]
                    w.memory[op + 1] -= a.nbytes[s]
    forward, running = 0, states
    for op in range(ops):
        running += w.memory[op]
        if w.until[op]:
            forward = max(forward, running + a.workspace[op])
    w.memory[ops] = 0
    position = 0
    for s in range(len(a.nbytes)):
        w.start[s] = ops  # the copy from the forward
        w.last[s] = ops - 1
    for event in range(ops, count):
        entry = w.events[event]
        if entry >= 0:
            for q in range(a.reads_start[entry], a.reads_start[entry + 1]):
                w.last[a.reads[q]] = event
            for q in range(a.writes_start[entry], a.writes_start[entry + 1]):
                s = a.writes[q]
                if w.last[s] >= ops:
                    w.memory[w.start[s]] += a.nbytes[s]
                    w.memory[w.last[s] + 1] -= a.nbytes[s]
                w.start[s] = event
                w.last[s] = event
        else:
            for q in range(a.needs_start[position], a.needs_start[position + 1]):
                w.last[a.needs[q]] = event
            position += 1
    for s in range(len(a.nbytes)):
        if w.last[s] >= ops:
            w.memory[w.start[s]] += a.nbytes[s]
            w.memory[w.last[s] + 1] -= a.nbytes[s]
    backward, running, position = 0, states, 0
    for event in range(ops, count):
        running += w.memory[event]
        entry = w.events[event]
        if entry < 0:
            backward = max(backward, running + a.during[position])
            position += 1
        else:
            backward = max(backward, running + a.between[position] + a.workspace[entry])
    return held + states, forward, backward, extra, again
