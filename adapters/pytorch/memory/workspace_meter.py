"""Measures the memory inside one call, and its time: each distinct call runs alone, while the allocator is recorded."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from ....planner.errors import AdapterError
from .. import torch_private
from ..torch_private import pytree
from ..value_shapes import decider
from .allocator_record import AllocatorRecord, DevicePeak, Event, recording
from .call_time import CallTime, call_time
from .example_inputs import example_arguments
from .inplace_kernels import InPlace
from .long_products import Part, part_of
from .plain_calls import form_of, is_layout, is_number
from .strides import Layout


@dataclass(frozen=True, slots=True)
class Change:
    """Memory allocated, or (negative) freed, inside a call, and the outputs that live in it.

    ``number`` tells the allocations of one call apart: that of what is freed is that of its allocation.
    """

    nbytes: int
    positions: frozenset[int]
    number: int


_ENOUGH_NS = 10_000_000
"""Runs that together took less say little about the noise of a machine: the clock is as coarse."""


class _Call(NamedTuple):
    """What the step calls for a node, with example arguments, or a ``part`` of it."""

    target: Callable[..., Any]
    args: Any
    kwargs: Any
    part: Part | None = None

    def run(self) -> Any:
        return self.target(*self.args, **self.kwargs)


class _Run(NamedTuple):
    """A call that was made: its number in the record, and the addresses of its outputs.

    ``part_nbytes`` are those of the result of a part; None if the whole call was made.
    """

    node: fx.Node
    number: int
    addresses: list[int]
    part_nbytes: int | None


class WorkspaceMeter:
    """Measures calls on ``device``, each distinct one once.

    Calls differ by operator, constant arguments, and shapes, strides and dtypes of tensors. Nodes in ``in_place`` run
    in place. ``unmeasured`` names the operators of calls that could not run alone; their memory is unknown. ``peak`` is
    what measuring took of the device, None where its allocator does not tell. Times are measured along with the memory
    if the meter is ``timed``, otherwise once they are asked for. What the ``known`` meters of this device have measured
    is not measured again; it must hold still (backend_switches.py). Nor are calls that differ in size alone from such a
    one, where sizes cannot matter (plain_calls.py). Of a long matrix product a part runs (long_products.py).
    """

    def __init__(
        self,
        device: torch.device,
        in_place: Mapping[fx.Node, InPlace] | None = None,
        *,
        timed: bool = True,
        known: Iterable[WorkspaceMeter] = (),
    ) -> None:
        self.unmeasured: set[str] = set()
        self.peak: DevicePeak | None = None
        self.timed = timed
        self._device = device
        self._in_place = in_place or {}
        self._signature: dict[fx.Node, str] = {}
        self._returned: dict[str, Any] = {}  # layouts of the outputs, in their tuple
        self._changes: dict[str, list[Change]] = {}
        self._storage_nbytes: dict[str, list[int]] = {}
        self._time_ns: dict[str, int] = {}
        self._of_form: dict[str, list[Change]] = {}  # what a call of any size holds; the bytes of results are of one
        self._whole: set[fx.Node] = set()  # products of which no part may run
        self._spread_ns = self._repeated_ns = 0
        self._known = tuple(known)
        for meter in self._known:
            self._of_form |= meter._of_form

    def peak_without(self, node: fx.Node, positions: frozenset[int] = frozenset()) -> int:
        """Bytes inside the call at its worst moment, without its outputs at ``positions``; 0 if unknown.

        Positions count the tensors that tracing left on the node (allocations.ranks). Raises what `measure` raises.
        """
        self.measure([node])
        held = peak = 0
        for change in self._changes[self._signature[node]]:
            if not change.positions & positions:
                held += change.nbytes
                peak = max(peak, held)
        return peak

    def changes(self, node: fx.Node) -> list[Change]:
        """What the call takes and gives back, in order; empty if unknown. Positions as in `peak_without`."""
        self.measure([node])
        return self._changes[self._signature[node]]

    def is_measured(self, node: fx.Node) -> bool:
        """Whether the call could run alone."""
        self.measure([node])
        return self._signature[node] in self._storage_nbytes

    def storage_nbytes(self, node: fx.Node) -> list[int]:
        """Bytes of the device for the storage of each tensor that the call returned, in order; empty if unknown.

        Some kernels return a small view of a large storage: ``mse_loss`` returns its mean in the memory of the squares.
        """
        self.measure([node])
        return self._storage_nbytes.get(self._signature[node], [])

    def time_ns(self, node: fx.Node) -> int:
        """Nanoseconds of the call (call_time.py); 0 if unknown. Raises what `measure` raises."""
        self.measure([node])
        signature = self._signature[node]
        if signature in self._storage_nbytes and signature not in self._time_ns:
            with self._alone():
                try:
                    call = self._call(node)
                    if self._device.type == "cuda":
                        call.run()
                    self._note_time(signature, call, call_time(call.run, self._device))
                except torch.OutOfMemoryError as error:
                    raise self._too_large(node) from error
        return self._time_ns.get(signature, 0)

    @property
    def noise(self) -> float:
        """How much longer the second shortest runs of calls on a CPU were, as a share; 0 if too few were repeated."""
        return self._spread_ns / self._repeated_ns if self._repeated_ns > _ENOUGH_NS else 0.0

    def _note_time(self, signature: str, call: _Call, time: CallTime) -> None:
        self._time_ns[signature] = time.ns if call.part is None else round(call.part.times * time.ns)
        if time.spread_ns is not None:
            self._repeated_ns += time.ns
            self._spread_ns += time.spread_ns

    def measure(self, nodes: Iterable[fx.Node]) -> None:
        """Run the calls of ``nodes`` that are new, in order, under one record.

        Random generators, gradient mode and autocast are left as they are. Raises AdapterError while a profiler or a
        record of the CUDA allocator's history runs, which this one would end, and where the device runs out of memory.
        """
        waiting = [node for node in nodes if node not in self._signature]
        if not waiting:
            return
        runs: list[_Run] = []
        with self._alone(), recording(self._device) as record:
            for node in waiting:
                signature = self._signature[node] = self._sign(node)
                for meter in self._known:
                    self._take_over(signature, meter)
                if signature in self._changes:
                    if signature not in self._storage_nbytes:
                        self.unmeasured.add(str(node.target))
                    continue
                if self._is_carried_over(node, signature):
                    continue
                self._changes[signature] = []
                try:
                    runs.append(self._run(node, signature, record))
                except torch.OutOfMemoryError as error:
                    raise self._too_large(node) from error
                except Exception:  # a kernel may refuse its inputs in any way
                    self.unmeasured.add(str(node.target))
        self._known = ()  # they would keep those alive that are let go
        if runs and self._device.type == "cuda":
            torch.cuda.empty_cache()  # what measuring leaves cached is of sizes that the step may not ask for
        self.peak = max(filter(None, (self.peak, record.peak)), default=None)
        again = [run.node for run in runs if not self._read(run, _changes(record.events(run.number), run.addresses))]
        self._whole.update(again)
        self.measure(again)

    def _read(self, run: _Run, changes: list[Change]) -> bool:
        """Note what a call held. False if a part of it held more than its result: the whole must run."""
        signature = self._signature[run.node]
        results = self._results(run.node)
        if run.part_nbytes is not None:
            if [(change.nbytes, change.positions) for change in changes] != [(run.part_nbytes, frozenset({0}))]:
                del self._signature[run.node], self._changes[signature], self._storage_nbytes[signature]
                return False
            changes = [replace(changes[0], nbytes=results[0].nbytes)]
        self._changes[signature] = changes
        form = form_of(run.node, self._layouts, self._in_place.get(run.node))
        if form is not None and form.tells and self._holds_results(run.node, changes):
            self._of_form[form.key] = changes
        return True

    def _holds_results(self, node: fx.Node, changes: list[Change]) -> bool:
        """Whether a call returned what tracing says, in memory of its own if it is not in place, and held no other."""
        signature, results = self._signature[node], self._results(node)
        returned = pytree.tree_leaves(self._returned[signature], is_leaf=is_layout)
        made = [(position, change.nbytes) for change in changes for position in sorted(change.positions)]
        expected = [] if node in self._in_place else [(i, layout.nbytes) for i, layout in enumerate(results)]
        return (
            returned == results
            and self._storage_nbytes[signature] == [layout.nbytes for layout in results]
            and sorted(made) == expected
            and all(is_number(change.nbytes) for change in changes if not change.positions)
        )

    def _is_carried_over(self, node: fx.Node, signature: str) -> bool:
        """Note what a call holds that differs in size alone from one that was measured; False if there is none."""
        form = form_of(node, self._layouts, self._in_place.get(node))
        known = None if form is None else self._of_form.get(form.key)
        if known is None:
            return False
        results = self._results(node)
        self._returned[signature] = pytree.tree_map_only(torch.Tensor, Layout.of, node.meta["val"])
        self._storage_nbytes[signature] = [layout.nbytes for layout in results]
        self._changes[signature] = [
            replace(change, nbytes=results[min(change.positions)].nbytes) if change.positions else change
            for change in known
        ]
        return True

    @staticmethod
    def _results(node: fx.Node) -> list[Layout]:
        leaves = pytree.tree_leaves(node.meta["val"])
        return [Layout.of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def _take_over(self, signature: str, meter: WorkspaceMeter) -> None:
        """Note what another meter knows of a call, and of this one alone: most of its calls are of other sizes."""
        pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]] = (
            (self._returned, meter._returned),
            (self._changes, meter._changes),
            (self._storage_nbytes, meter._storage_nbytes),
            (self._time_ns, meter._time_ns),
        )
        for mine, theirs in pairs:
            if signature in theirs:
                mine[signature] = theirs[signature]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Calls that run inside leave random generators, gradient mode and autocast as they are."""
        generators = [self._device] if self._device.type == "cuda" else []
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(generators, device_type="cuda"))
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.autocast(self._device.type, enabled=False))
            yield

    def _sign(self, node: fx.Node) -> str:
        call = self._in_place.get(node)
        layouts = fx.map_arg((node.args, node.kwargs), self._layouts)
        if decider(node.target, node.args) is not None:  # its result has a size that its arguments do not tell
            layouts = layouts, self._layouts(node)
        return repr((str(node.target), layouts) if call is None else (str(node.target), layouts, call.argument))

    def _layouts(self, argument: fx.Node) -> Any:
        """The layouts of an argument: as a measured call returned it, else as traced."""
        if argument.target is operator.getitem:
            call, position = argument.args
            returned = self._returned.get(self._signature.get(call, ""))
            if returned is not None:
                return returned[position]
        value = argument.meta.get("val")
        if value is None and argument.op == "get_attr":
            value = getattr(argument.graph.owning_module, str(argument.target))
        return pytree.tree_map_only(torch.Tensor, Layout.of, value)

    def _too_large(self, node: fx.Node) -> AdapterError:
        """The error for a call that does not fit beside what the device holds."""
        values = [*(argument.meta.get("val") for argument in node.all_input_nodes), node.meta.get("val")]
        found = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        nbytes = sum({torch_private.storage_key(leaf): leaf.untyped_storage().nbytes() for leaf in found}.values())
        return AdapterError(
            f"{self._device} ran out of memory while {node.target} ran alone, to measure its workspace ({node.name}): "
            f"its arguments and results take {nbytes:,} B",
            remedy="free memory of the device before planning, or plan a smaller batch",
        )

    def _call(self, node: fx.Node) -> _Call:
        part = None if self._device.type == "cuda" or node in self._whole else part_of(node, self._layouts)
        if part is not None:
            return _Call(torch_private.direct(node.target), part.args, node.kwargs, part)
        args, kwargs = example_arguments(node, self._layouts)
        target, call = torch_private.direct(node.target), self._in_place.get(node)
        if call is not None:
            target, (args, kwargs) = call.kernel.call, call.bound(args, kwargs)
        return _Call(target, args, kwargs)

    def _run(self, node: fx.Node, signature: str, record: AllocatorRecord) -> _Run:
        call = self._call(node)
        if self._device.type == "cuda":  # the first call may also create handles and choose algorithms
            call.run()
        number = len(self._changes)
        with record.span(number):
            begun = time.perf_counter_ns()
            result = call.run()
            first_ns = time.perf_counter_ns() - begun
        addresses, held = [], []
        for given, traced in zip(pytree.tree_leaves(result), pytree.tree_leaves(node.meta["val"]), strict=True):
            storage = given.untyped_storage() if isinstance(given, torch.Tensor) else None
            if isinstance(traced, torch.Tensor):
                addresses.append(storage.data_ptr() if storage is not None else 0)
                if storage is None or storage.device.type != self._device.type:  # attention keeps its seeds on the host
                    held.append(0)
                else:
                    held.append(storage.nbytes())
        if call.part is not None:
            result, held = node.meta["val"], [layout.nbytes for layout in self._results(node)]
        self._returned[signature] = pytree.tree_map_only(torch.Tensor, Layout.of, result)
        self._storage_nbytes[signature] = held
        given = storage = result = None  # so that the device holds the result of one run at a time
        if self.timed:
            self._note_time(signature, call, call_time(call.run, self._device, first_ns))
        return _Run(node, number, addresses, None if call.part is None else call.part.result_nbytes)


def _changes(events: list[Event], outputs: list[int]) -> list[Change]:
    """The record of one call; each allocation has the positions of the outputs, given by address, that live in it."""
    alive: dict[int, int] = {}  # address -> position of the event that took it
    kept: list[tuple[int, int]] = []  # position of an event, and of the event that took the memory
    for position, event in enumerate(events):
        if event.nbytes > 0:
            alive[event.address] = position
            kept.append((position, position))
        elif event.address in alive:  # otherwise it frees memory older than the call
            kept.append((position, alive.pop(event.address)))
    positions: dict[int, set[int]] = {}
    for position, address in enumerate(outputs):
        if address in alive:
            positions.setdefault(alive[address], set()).add(position)
    return [Change(events[position].nbytes, frozenset(positions.get(position, ())), taken) for position, taken in kept]
