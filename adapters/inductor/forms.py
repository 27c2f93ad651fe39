"""How functions, sums, and library calls are computed, which decides their last bits, and how it is done as elsewhere.

A function of vectors has other last bits than the same function of scalars. A sum's last bits depend on the order in
which its elements are added: by the lanes of vectors, by threads, or one after the other. A library has other kernels
for other layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from .torch_private import Loops, computes, steer_loops, thread_count
from .work import rounds, sums

COPY_OF = "ogc_plan_copy_of"
"""In the description of a node: the call that it is a copy of."""

_CHUNK = 4096
"""More elements than these Inductor adds chunk by chunk, but for the scalars that its vectors leave over."""

Bodies = tuple[Any, ...]
"""One kind of body that computes all elements, or which elements each kind computes."""


class Sum(NamedTuple):
    """The order of a sum: what is summed, how many elements, its loops unless they run in turn, how bodies add."""

    kind: str
    elements: int
    levels: tuple[tuple[int, int, int], ...]
    bodies: Bodies

    @property
    def along_vectors(self) -> bool:
        """Whether the lanes of vectors are summands."""
        return any(step > 1 for _, step, _ in self.levels)

    @property
    def shared(self) -> bool:
        """Whether threads share the summands."""
        return any(threads for *_, threads in self.levels)


Layout = tuple[tuple[int, ...], tuple[int, ...]] | None


class Call(NamedTuple):
    """A call of a library kernel: the node it comes from, and the (size, strides) of each tensor that it is given."""

    node: fx.Node
    layouts: tuple[Layout, ...]


Form = Bodies | Sum
"""Equal where the last bits are equal. That of a library call is the layout of what it is given."""

Forms = Mapping[str, frozenset[Form]]
"""For each function, sum, and library call, by name, the forms in which it is computed."""


def call_of(origin: fx.Node) -> str:
    """The call that a node is, or is a copy of."""
    return str(origin.meta.get(COPY_OF, origin.name))


def wanted(node: fx.Node) -> bool:
    """Whether a call's last bits depend on the loops that compute it."""
    return rounds(node) or sums(node)


def forms_of(written: Iterable[Loops], calls: Iterable[Call]) -> Forms:
    """The forms of library calls, and of all functions and sums in loops."""
    found: dict[str, frozenset[Form]] = {}
    for call in calls:
        name = call_of(call.node)
        found[name] = found.get(name, frozenset()) | {tuple(map(layout_form, _read(call)))}
    for loops in written:
        for name, kind in _calls(loops.parts):
            form = _sum(loops, kind) if kind else _bodies(loops)
            found[name] = found.get(name, frozenset()) | {form}
    return found


def steer(backend: Any, plain: Forms) -> None:
    """Let a backend of the graph that is being lowered compute functions and sums as in ``plain``, where it can."""

    def vectorizes(parts: Iterable[Any], along_summands: bool) -> bool:
        for name, kind in _calls(parts):
            forms = plain.get(name, frozenset[Form]())
            if forms and not kind and forms <= {(False,)}:
                return False
            if forms and kind and along_summands and not any(isinstance(it, Sum) and it.along_vectors for it in forms):
                return False
        return True

    def shares_sums(parts: Iterable[Any]) -> bool | None:
        names = [name for name, kind in _calls(parts) if kind]
        found = {it.shared for name in names for it in plain.get(name, ()) if isinstance(it, Sum)}
        return found.pop() if len(found) == 1 else None

    steer_loops(backend, vectorizes, shares_sums)


def _read(call: Call) -> tuple[Layout, ...]:
    """The layouts of what a call computes with: for the gradient of its filters a convolution reads no filters."""
    if call.node.target is torch.ops.aten.convolution_backward.default and not call.node.args[-1][0]:
        return call.layouts[:2]
    return call.layouts


def layout_form(given: tuple[Sequence[int], Sequence[int]] | None) -> Any:
    """Sizes and strides, where a size of one has no stride."""
    return given and tuple((size, stride if size > 1 else 0) for size, stride in zip(*given, strict=True))


def _calls(parts: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Functions and sums that parts of a kernel compute: the call, and the kind of the sum."""
    for part in parts:
        origins = part.node.get_origins()
        # Inductor counts calls among the origins that it ends up computing in another kernel.
        yield from ((call_of(origin), "") for origin in origins if rounds(origin) and computes(part, origin))
        # Calls before a sum that are computed inside of it are among its origins too.
        origin = max(filter(sums, origins), default=None) if part.is_reduction() else None
        if origin is not None:
            yield call_of(origin), str(part.node.data.reduction_type)


def _lanes(loops: Loops) -> int | None:
    """The loop along which the lanes of vectors lie. Of two that are vectorized, sums run along the other."""
    vectorized = [i for i, (_, step, *_) in enumerate(loops.levels) if step > 1]
    if not vectorized or not any(vectors for vectors, sizes in loops.bodies if all(sizes)):
        return None
    return vectorized[0] if loops.levels[vectorized[-1]][2] else vectorized[-1]


def _bodies(loops: Loops, kind: Callable[[bool, tuple[int, ...]], bool] = lambda vectors, _: vectors) -> Bodies:
    bodies = [(kind(*body), body[1]) for body in loops.bodies if all(body[1])]
    kinds = tuple({found for found, _ in bodies})
    return kinds if len(kinds) == 1 else (tuple(bodies), tuple(size for size, *_ in loops.levels))


def _sum(loops: Loops, kind: str) -> Sum:
    lanes, levels = _lanes(loops), enumerate(loops.levels)
    summed = tuple(
        (size, step if i == lanes else 1, shared) for i, (size, step, is_summed, shared) in levels if is_summed
    )
    count = math.prod(size for size, *_ in summed)
    alone = all(step == 1 for _, step, _ in summed)
    shared = summed[0][2] if summed else 0
    if alone and math.prod(size for size, *_ in summed[:shared]) % thread_count() == 0:
        summed = ((count, 1, min(shared, 1)),)  # each thread takes as many in a row, whichever loops these are
    in_turn = alone and not shared
    if kind.startswith("welford") or not alone:
        bodies = _bodies(loops)
    elif count > _CHUNK:
        bodies = _bodies(loops, lambda vectors, left_over: vectors or not left_over)
    else:
        bodies = ()
    return Sum(kind, count, () if in_turn else summed, bodies)
