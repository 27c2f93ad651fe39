"""A pool of the CUDA allocator for planned steps: one large segment, in which only steps place their tensors.

The allocator serves the default pool from segments of many sizes; what a plan frees in one of them is of no use for a
larger request. In one segment free neighbours merge. Nothing else is placed there, so that each step finds the pool as
the one before it did, and takes what was predicted. Nothing stays there, either, that the caller may hold for long: the
outputs of a step, and gradients that others are added to.

The segment is not expandable under ``expandable_segments`` either. An expandable one would grow as a step needs it; of
one that does not grow the best size can be chosen, and where its blocks lie. What a step needs beyond it, and small
requests, take expandable segments of the pool then.

Steps use the default pool where another would not help or would do harm: on other streams than the default one, as
blocks belong to streams, and a graph that is captured there has a pool of its own; while another thread runs a step;
and with expandable segments where PyTorch could not give a pool back (`torch_private.frees_expandable_pools`).
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

import torch

from .. import torch_private
from ..memory.caching_allocator import DEFAULT_POOL, AllocatorSettings, CachingAllocator, from_snapshot
from .step_space import StepSpace

_LONGEST_WAIT = 13
"""After at most so many steps the pool is looked at again that was in use when another segment was wanted.

A look takes a fraction of a millisecond. A prime: of a cycle of steps that accumulate gradients, it falls on each.
"""
_MOST_LOOKS = 64
"""So many looks are remembered for a step."""
_FIRST = 4
"""So many of its first parameters tell a module from another; some may be shared, as embeddings are."""


class PendingStep(Protocol):
    """A step that has begun, and is pending until its backward has run or its saved tensors are gone."""

    @property
    def is_pending(self) -> bool:
        """Whether it holds memory of the pool."""
        ...


Owner = tuple[int, ...]
"""What tells modules apart that share a pool (`owner_of`)."""


def owner_of(parameters: Iterable[torch.Tensor]) -> Owner:
    """What tells a module with these parameters from others: some of them are its own."""
    return tuple(map(id, islice(parameters, _FIRST)))


class StepPool:
    """The pool of one device, which all planned steps share.

    Its free memory serves others when they would run out of memory. It is given back when the last of its users is
    gone, unless tensors of a step outlive it.

    Attributes:
        id: how the allocator's snapshots name the pool.
    """

    _of_device: ClassVar[dict[int, StepPool]] = {}

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch_private.memory_pool(device)  # as long as this object lives
        self.id: tuple[int, int] = self._pool.id
        self._segment_nbytes = 0
        self._busy = threading.Lock()  # held by the thread that runs a step, or empties the pool
        self._thread: int | None = None  # the one that runs a step
        self._users = 0
        self._runs: list[weakref.ref[PendingStep]] = []
        self._takes_fillers = False
        self._wait, self._waited = 1, 0
        # For a step that was found to stay within its budget, what the device had reserved then.
        self._served: WeakKeyDictionary[StepSpace, int] = WeakKeyDictionary()
        self._last: weakref.ref[StepSpace] | None = None  # of the step that began last
        # For a step that was looked at beside what is cached outside, what was reserved then, and after which step.
        self._looked: WeakKeyDictionary[StepSpace, set[tuple[int, int]]] = WeakKeyDictionary()
        self._preceding = 0  # the identity of the space of the step before the one that began last
        self._outputs: dict[Owner, tuple[weakref.ref[PendingStep], dict[int, int]]] = {}  # bytes by address
        # What was reserved when the cache was emptied, until a step fits; what is reserved at most after the step that
        # it was emptied for; and whether other code has filled it since.
        self._emptied_at, self._filled_by_others = 0, False
        self._foreseen_nbytes: int | None = None

    @classmethod
    def of(cls, device: torch.device) -> StepPool:
        """The pool of a device."""
        index = torch.cuda.current_device() if device.index is None else device.index
        if index not in cls._of_device:
            cls._of_device[index] = cls(torch.device("cuda", index))
        return cls._of_device[index]

    @classmethod
    def forget_all(cls) -> None:
        """Let go of all pools, as long as CUDA is there, but for those that a thread is in."""
        for pool in cls._of_device.values():
            if pool._busy.acquire(blocking=False):  # for good: nothing enters it any more
                pool._pool = None

    @classmethod
    def release_idle(cls) -> None:
        """Give the memory of all pools back that no tensor lives in, and what the allocator has cached."""
        for pool in cls._of_device.values():
            pool.release()
        torch.cuda.empty_cache()

    @property
    def reserved_nbytes(self) -> int:
        """What the pool takes of the device now."""
        return sum(segment["total_size"] for segment in self.segments())

    def usable(self) -> bool:
        """Whether a step that begins now on the current stream would be placed in the pool."""
        return torch_private.on_default_stream(self.device)

    def serve(self, user: object) -> None:
        """Keep the memory as long as the user lives."""
        self._users += 1
        weakref.finalize(user, self._user_gone).atexit = False

    def _user_gone(self) -> None:
        self._users -= 1
        if not self._users:
            self.release()

    def model(self, settings: AllocatorSettings) -> CachingAllocator:
        """A model of the pool as it is."""
        return from_snapshot(self.segments(), settings, self.id)

    def takes(self, space: StepSpace) -> bool:
        """Whether a step that begins now would empty the pool and take a new segment."""
        if self._suits(space, self._reserved_of_device()) or self._waited + 1 < self._wait or self._in_use():
            return False
        return space.segment_nbytes > self._segment_nbytes or not space.is_within(self.segments(), self.id)

    def begin(self, run: PendingStep, space: StepSpace, *, is_unused: bool) -> bool:
        """Have the space for a step that begins; whether to `look_outside` before it runs.

        Steps that run from now on have fillers if this one finds the pool as it was planned for: ``is_unused`` is
        whether no gradients of others live in it.
        """
        reserved_nbytes = self._reserved_of_device() if space.most_nbytes is not None else 0
        if self._foreseen_nbytes is not None and space.most_nbytes is not None:
            self._filled_by_others |= reserved_nbytes > self._foreseen_nbytes
            self._foreseen_nbytes = None
        if not self._suits(space, reserved_nbytes):
            self.require(space)
            reserved_nbytes = self._reserved_of_device()
        pending = [ref for ref in self._runs if (other := ref()) is not None and other.is_pending]
        self._takes_fillers = is_unused and not pending and space.segment_nbytes <= self._segment_nbytes
        self._runs = [*pending, weakref.ref(run)]
        self._preceding, self._last = self._last_number(), weakref.ref(space)
        return self._is_to_look_outside(space, (reserved_nbytes, self._preceding))

    def require(self, space: StepSpace) -> None:
        """Have the segment of a step, and no more beside it than its budget allows.

        It is not had while tensors live in the pool, nor where memory is short; and a pool that was in use is not
        looked at again in every step.
        """
        if self._suits(space, self._reserved_of_device()) or not self.usable():
            return
        self._waited += 1
        if self._waited < self._wait:
            return
        self._waited, self._wait = 0, (wait := min(2 * self._wait + 1, _LONGEST_WAIT))
        if self._in_use() or self._serves(space) or (self.reserved_nbytes and not self.release()):
            return
        nbytes = space.segment_nbytes
        try:
            self._take(nbytes)
        except torch.OutOfMemoryError:
            # Within a pool PyTorch 2.11 does not give back what is cached outside of it.
            torch.cuda.empty_cache()
            try:
                self._take(nbytes)
            except torch.OutOfMemoryError:
                return  # the step may fit in the pieces that it asks for
        # After one of its own kind, a step exceeds its budget by itself, beside a pending one, and may do so again.
        self._segment_nbytes, self._wait = nbytes, wait if self._last is not None and self._last() is space else 1
        self._served[space] = self._reserved_of_device()

    def outputs_are(self, outputs: Iterable[torch.Tensor], run: PendingStep, owner: Owner) -> None:
        """The outputs of a step, which the caller may hold until the next one of the same owner has returned some."""
        storages = [output.untyped_storage() for output in outputs]
        self._outputs[owner] = weakref.ref(run), {storage.data_ptr(): storage.nbytes() for storage in storages}

    def replaced_outputs(self, owner: Owner, arguments: Iterable[torch.Tensor]) -> dict[int, int]:
        """Bytes by address of the outputs that a step with these arguments replaces: none of a pending step."""
        reference, outputs = self._outputs.get(owner, (None, {}))
        run = None if reference is None else reference()
        if not outputs or (run is not None and run.is_pending):
            return {}
        kept = {argument.untyped_storage().data_ptr() for argument in arguments}
        return {address: nbytes for address, nbytes in outputs.items() if address not in kept}

    def is_to_look_outside(self, space: StepSpace) -> bool:
        """Whether it is not known if a step exceeds its budget beside what others left cached in the default pool."""
        if space.most_beyond_nbytes is None:
            return False
        return self._is_to_look_outside(space, (self._reserved_of_device(), self._last_number()))

    def _is_to_look_outside(self, space: StepSpace, state: tuple[int, int]) -> bool:
        if space.most_beyond_nbytes is None or state in self._looked.get(space, ()):
            return False
        return self.usable()

    def _last_number(self) -> int:
        return 0 if self._last is None else id(self._last())

    def empties_cache(self, space: StepSpace, outputs: Mapping[int, int], *, gradients_present: bool) -> bool:
        """Whether a step that begins now gives back what is cached in the default pool (`look_outside`)."""
        if not self.is_to_look_outside(space) or not self._may_help():
            return False
        look = _Look(self, space, outputs, gradients_present)
        return not look.fits() and look.fits(emptied=True)

    def is_outgrown(self, space: StepSpace, outputs: Mapping[int, int], *, gradients_present: bool) -> bool:
        """Whether a step exceeds its budget for outputs that the caller still holds, whatever is given back."""
        look = _Look(self, space, outputs, gradients_present)
        return look.outputs_are_held and not look.fits() and not look.fits(emptied=True)

    def look_outside(self, space: StepSpace, outputs: Mapping[int, int], *, gradients_present: bool) -> None:
        """Give back what is cached in the default pool, if a step that has begun fits in its budget only then.

        Args:
            space: that of the step.
            outputs: the `replaced_outputs`.
            gradients_present: whether it adds to gradients outside of the pool.
        """
        reserved_nbytes = self._reserved_of_device()
        look = _Look(self, space, outputs, gradients_present)
        if look.fits():
            self._emptied_at = 0
        elif self._may_help() and look.fits(emptied=True):
            self._emptied_at, self._filled_by_others = reserved_nbytes, False
            self._foreseen_nbytes = reserved_nbytes - look.present_nbytes + look.reserves(emptied=True)
            torch.cuda.empty_cache()
        left_nbytes = self._reserved_of_device()
        looked = self._looked.setdefault(space, set())
        if len(looked) >= _MOST_LOOKS:
            looked.clear()
        looked.add((left_nbytes, self._preceding))
        if self._served.get(space) == reserved_nbytes:  # of the pool itself nothing was given back
            self._served[space] = left_nbytes

    def _may_help(self) -> bool:
        """Whether to empty the cache can keep a step within its budget.

        What a loss or an optimizer makes fills it again in each step. That exceeds the budget by itself, and each step
        would be slower. So the cache is not emptied at the same height again if more than the step has filled it.
        """
        return not self._filled_by_others or self._reserved_of_device() > self._emptied_at

    def _suits(self, space: StepSpace, reserved_nbytes: int) -> bool:
        """Whether it is known without a look, from what the device has reserved, that a step needs no new segment."""
        if space.segment_nbytes > self._segment_nbytes:
            return False
        return space.most_nbytes is None or self._served.get(space) == reserved_nbytes

    def _serves(self, space: StepSpace) -> bool:
        """Whether a step needs no new segment in the idle pool; it is known from then on."""
        if space.segment_nbytes > self._segment_nbytes or not space.is_within(self.segments(), self.id):
            return False
        self._served[space] = self._reserved_of_device()
        self._wait = 1
        return True

    def segments(self) -> list[dict[str, Any]]:
        """Those of this pool."""
        return torch_private.pool_segments(self.id, self.device)

    def default_segments(self) -> list[dict[str, Any]]:
        """The segments of the default pool for the current stream."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        segments = torch_private.pool_segments(DEFAULT_POOL, self.device)
        return [segment for segment in segments if segment["stream"] == stream]

    def _reserved_of_device(self) -> int:
        return torch_private.reserved_nbytes(self.device)

    def _take(self, nbytes: int) -> None:
        with self.entered(), torch_private.plain_segments():
            torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def _in_use(self) -> bool:
        return any(segment["active_size"] for segment in self.segments())

    def release(self) -> bool:
        """Give the memory of the pool back, unless tensors live in it, a thread runs a step, or a graph is captured."""
        if torch.cuda.is_current_stream_capturing() or not self._busy.acquire(blocking=False):
            return False
        try:
            segments = self.segments()
            grown = any(segment["is_expandable"] for segment in segments)
            idle = not any(segment["active_size"] for segment in segments)
            idle = idle and (not grown or torch_private.frees_expandable_pools())
            if idle:
                if grown:
                    self._renew()
                else:
                    torch_private.empty_pool(self.id, self.device)
                self._segment_nbytes, self._wait, self._waited = 0, 1, 0
                self._served.clear()
        finally:
            self._busy.release()
        return idle

    def _renew(self) -> None:
        self._pool = torch_private.memory_pool(self.device)  # the old one is destroyed, which frees its memory
        self.id = self._pool.id
        torch.cuda.empty_cache()  # as `torch_private.empty_pool` does

    def fill(self, *sizes: int) -> list[torch.UntypedStorage]:
        """Fillers of so many bytes, as far as there is memory.

        None for a step that is not placed in the pool, or where the last one that began found it in another state than
        planned: they would take memory beside the segment.
        """
        found: list[torch.UntypedStorage] = []
        if self._takes_fillers and self.is_entered:
            with contextlib.suppress(torch.OutOfMemoryError):
                for nbytes in sizes:  # no tensors, which deterministic algorithms would fill
                    found.append(torch.UntypedStorage(nbytes, device=self.device))
        return found

    def outside(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function whose results do not lie in the pool, within a stay in it or not."""
        if not self.is_entered:
            return function(*args, **kwargs)
        torch_private.leave_pool(self.id, self.device)
        try:
            return function(*args, **kwargs)
        finally:
            torch_private.enter_pool(self.id, self.device)

    @property
    def is_entered(self) -> bool:
        """Whether this thread is in a stay in the pool."""
        return self._thread == threading.get_ident()

    def entered(self) -> AbstractContextManager[None]:
        """Place what this thread allocates in the pool, where it can be used."""
        return _Stay(self, self._busy)


class _Look:
    """What a step that begins reserves in the default pool, beside what is there, and in its own."""

    def __init__(self, pool: StepPool, space: StepSpace, outputs: Mapping[int, int], gradients_present: bool) -> None:
        self._space, self._outputs, self._gradients_present = space, outputs, gradients_present
        own, self._default = pool.segments(), pool.default_segments()
        self.present_nbytes = sum(segment["total_size"] for segment in (*own, *self._default))
        if pool.takes(space):
            self._own_nbytes = space.reserved_nbytes
        elif any(segment["active_size"] for segment in own):
            self._own_nbytes = max(space.reserved_nbytes, sum(segment["total_size"] for segment in own))
        else:
            self._own_nbytes = space.reserves_in(own, pool.id)
        found = from_snapshot(self._default, space.settings)
        held_nbytes = sum(block.nbytes for block in found.held_as(outputs))
        self.outputs_are_held = held_nbytes > 0
        self._others_nbytes = found.now.allocated_nbytes - held_nbytes

    def reserves(self, *, emptied: bool = False) -> int:
        """The bytes of both pools, with or without what is cached."""
        outside = self._space.reserves_outside(
            self._default, self._outputs, gradients_present=self._gradients_present, emptied=emptied
        )
        return self._own_nbytes + outside

    def fits(self, *, emptied: bool = False) -> bool:
        """Whether the step is within its budget."""
        most_nbytes = self._space.most_beyond_nbytes
        return most_nbytes is None or self.reserves(emptied=emptied) - self._others_nbytes <= most_nbytes


class _Stay:
    """A thread's stay in the pool. It is entered for each part of a step, hence no generator, which takes longer."""

    __slots__ = ("_busy", "_inside", "_pool")

    def __init__(self, pool: StepPool, busy: threading.Lock) -> None:
        self._pool, self._busy, self._inside = pool, busy, False

    def __enter__(self) -> None:
        if not self._pool.usable() or not self._busy.acquire(blocking=False):
            return
        try:
            torch_private.enter_pool(self._pool.id, self._pool.device)
        except BaseException:
            self._busy.release()
            raise
        self._inside, self._pool._thread = True, threading.get_ident()

    def __exit__(self, *_: object) -> None:
        if self._inside:
            self._pool._thread = None
            try:
                torch_private.leave_pool(self._pool.id, self._pool.device)
            finally:
                self._busy.release()


atexit.register(StepPool.forget_all)
