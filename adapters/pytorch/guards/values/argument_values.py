"""Guards on the values of arguments, buffers and draws that decide which way a forward takes, such as `if mask.all()`.

If such a value follows from arguments and buffers alone, it is computed from the example during the trace, and the
trace takes the branch that eager training takes. A guard keeps the calls that lead to the value, and the value. A step
whose arguments give another value needs another graph. Random numbers of the CPU's default generator follow from its
state, if each call that draws before them takes as many numbers as its arguments have places for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ... import torch_private
from ...torch_private import OpOverload, TorchDispatchMode, pytree, schema_of
from ...value_shapes import Decider, decider
from .assertions import Assertion, assertion
from .value_tape import GENERATOR, Call, Draw, Guard, Known, Like, Source

LARGEST_NUMEL = 2**22
"""The values of larger tensors are not computed during the trace."""

_DECISIONS = frozenset({
    torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default, torch.ops.aten.is_nonzero.default,
    torch.ops.aten.allclose.default,
})  # fmt: skip
"""Calls that return a plain value."""

_UNIFORM = frozenset({torch.ops.aten.rand.default, torch.ops.aten.rand_like.default})
"""Calls that return random numbers in [0, 1)."""

_SMALL_NUMEL = 64
"""Random numbers may decide a branch if they are no more than these."""

_DRAWS = frozenset({
    *_UNIFORM, torch.ops.aten.randn.default, torch.ops.aten.randn_like.default, torch.ops.aten.native_dropout.default,
    torch.ops.aten.bernoulli_.float, torch.ops.aten.bernoulli.p, torch.ops.aten.uniform_.default,
    torch.ops.aten.normal_.default, torch.ops.aten.randint.default, torch.ops.aten.randint.low,
    torch.ops.aten.randperm.default,
})  # fmt: skip
"""Calls that move the CPU's generator by the layouts of their arguments, whatever the values are."""

_NO_DRAWS = frozenset({torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default})
"""Calls that could draw and do not."""

_NEVER = {
    torch.ops.aten.lt.Scalar: 0,
    torch.ops.aten.le.Scalar: -1,
    torch.ops.aten.ge.Scalar: 1,
    torch.ops.aten.gt.Scalar: 1,
}
"""Comparison -> the limit at which it is false for every number in [0, 1): at most (lt, le) or at least (ge, gt)."""

_SELECTIONS = frozenset({
    torch.ops.aten.index.Tensor, torch.ops.aten.index_select.default, torch.ops.aten.gather.default,
})  # fmt: skip
"""Calls that select from their first argument: if its values are all equal, so are those of the result."""


@dataclass(slots=True)
class ValueGuards:
    """Follows the values of argument ``leaves`` and of buffers through a forward."""

    leaves: Sequence[Any]
    names: Sequence[str]
    guards: list[Guard] = field(default_factory=list)
    _mode: _Following | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Follow the values through the backward too: it selects by the masks that the forward wrote by."""
        differentiate = torch.autograd.grad

        def followed(*args: Any, **kwargs: Any) -> Any:
            with self._mode or nullcontext():
                return differentiate(*args, **kwargs)

        with torch_private.patched(torch.autograd, "grad", followed):
            yield
        self._mode, self.leaves = None, ()  # what a trace leaves behind waits for the collector

    def wrap(self, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` of ``module`` with its values followed; `guards` are those of the last call."""
        real = dict(module.named_buffers(remove_duplicate=False))

        def followed(*args: Any, **kwargs: Any) -> Any:
            mode = _Following(self.names)
            for index, (leaf, traced) in enumerate(zip(self.leaves, pytree.tree_leaves((args, kwargs)), strict=True)):
                if isinstance(leaf, torch.Tensor):
                    mode.source(traced, leaf, Source(index, ""))
            for name, traced in module.named_buffers(remove_duplicate=False):
                mode.source(traced, real[name], Source(-1, name))
            with mode:
                made = forward(*args, **kwargs)
            self.guards, self._mode = mode.guards, mode
            return made

        return followed


class _Following(TorchDispatchMode):  # type: ignore[misc]
    """Computes each traced call on real values too, if all of its operands are known."""

    supports_higher_order_operators = True

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.guards: list[Guard] = []
        self._names = names
        self._tape: list[Call] = []
        self._known: weakref.WeakKeyDictionary[Any, tuple[Known, torch.Tensor]] = torch_private.by_tensor()
        self._kept: list[Any] = []  # keeps real results alive, so that no storage key is used twice
        self._uniform: weakref.WeakKeyDictionary[Any, bool] = torch_private.by_tensor()
        self._lost: set[int] = set()  # storages with unknown content
        self._generator = torch.get_rng_state()  # that of the step, before the calls in `_drawn`
        self._drawn: list[Call] | None = []  # None once it is not known how far the generator has moved

    def source(self, traced: Any, real: torch.Tensor, source: Source) -> None:
        """Note that ``traced`` stands for ``real``."""
        if real.layout is not torch.strided or real.numel() > LARGEST_NUMEL:
            return
        with torch_private.outside_of_modes():
            value = real.detach().clone()
        self._kept.append(value)
        self._known[traced] = (Known(len(self._tape), 0), value)
        self._tape.append(Call(None, (source,), {}, frozenset([torch_private.storage_key(value)])))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the call, and run it on real values too if they are known."""
        kwargs = kwargs or {}
        if func in _NEVER and args[0] in self._uniform and _is_never(func, args[1]):
            return self._never(func, args)
        deciding = decider(func, args)
        if deciding is not None and torch.Tag.dynamic_output_shape in func.tags and self._is_known(deciding.values):
            return self._sized(func, args, kwargs, deciding)
        if not isinstance(func, OpOverload) or torch.Tag.nondeterministic_seeded in func.tags:
            made = self._unknown(func, args, kwargs)
            if func in _UNIFORM:
                self._uniform[made] = True
            self._draw(func, args, kwargs, made)
            return made
        operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not all(self._is_known(operand) for operand in operands) or func.namespace != "aten":
            if func in _SELECTIONS and self._is_known(args[0]) and _all_equal(self._of(args[0], 1)):
                return self._selected(func, args, kwargs)
            found = assertion() if func in _DECISIONS and len(operands) == 1 else None
            if found is not None:
                return _asserted(found, *operands)
            return self._unknown(func, args, kwargs)
        references, values = self._of((args, kwargs), 0), self._of((args, kwargs), 1)
        if func in _DECISIONS:
            value = self._decide(func, references, values)
            return self._unknown(func, args, kwargs) if value is None else value
        traced = func(*args, **kwargs)
        made = [leaf for leaf in pytree.tree_leaves(traced) if isinstance(leaf, torch.Tensor)]
        if made and not any(leaf.numel() > LARGEST_NUMEL for leaf in made) and "empty" not in schema_of(func).name:
            self._record(func, references, values, pytree.tree_leaves(traced))
        return traced

    def _is_known(self, tensor: torch.Tensor) -> bool:
        if torch_private.is_plain(tensor):
            return True
        known = self._known.get(tensor)
        return known is not None and torch_private.storage_key(known[1]) not in self._lost

    def _of(self, arguments: Any, which: int) -> Any:
        def found(leaf: Any) -> Any:
            known = self._known.get(leaf) if isinstance(leaf, torch.Tensor) else None
            return leaf if known is None else known[which]

        return pytree.tree_map(found, arguments)

    def _never(self, func: Any, args: Any) -> Any:
        """A comparison that is false whatever random number is drawn, as in a layer drop of rate 0."""
        traced = func(*args)
        with torch_private.outside_of_modes():
            value = torch.zeros(traced.shape, dtype=torch.bool, device=traced.device)
        self._kept.append(value)
        self._known[traced] = (Known(len(self._tape), 0), value)
        self._tape.append(Call(torch.ops.aten.clone.default, (value,), {}, _storages(value)))
        return traced

    def _draw(self, func: Any, args: Any, kwargs: Any, traced: Any) -> None:
        """Note a call that moves the CPU's generator, and its value if it is uniform, small, and known before."""
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs, traced)) if isinstance(leaf, torch.Tensor)]
        if func in _NO_DRAWS or (leaves and leaves[0].device.type != "cpu"):
            return
        if func not in _DRAWS or kwargs.get("generator") is not None:
            self._drawn = None
        if self._drawn is None:
            return
        kept = func in _UNIFORM and traced.numel() <= _SMALL_NUMEL
        args, kwargs = pytree.tree_map_only(torch.Tensor, Like.of, (args, kwargs))
        draw, moved = Draw(func, kept, repr((str(func), args, kwargs))), frozenset([GENERATOR])
        call = Call(draw, args, kwargs, moved, moved)
        self._drawn.append(call)
        if kept:
            with torch_private.outside_of_modes(), torch.no_grad(), torch.random.fork_rng([]):
                torch.set_rng_state(self._generator)
                real = [each.function(*each.args, **each.kwargs) for each in self._drawn][-1]
                self._generator = torch.get_rng_state()
            self._drawn.clear()
            self._kept.append(real)
            self._known[traced] = (Known(len(self._tape), 0), real)
            call.writes |= _storages(real)
        self._tape.append(call)

    def _sized(self, func: Any, args: Any, kwargs: Any, deciding: Decider) -> Any:
        """A call whose result has a size that known values decide: it is traced for that size, which is guarded."""
        self._decide(deciding.count, self._of(((deciding.values,), {}), 0), self._of(((deciding.values,), {}), 1))
        operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        known = all(map(self._is_known, operands))

        def shown(leaf: Any) -> Any:  # the values of other operands do not matter for the size
            unknown = isinstance(leaf, torch.Tensor) and not self._is_known(leaf)
            return torch.zeros((), dtype=leaf.dtype, device=leaf.device).expand(leaf.shape) if unknown else leaf

        with torch_private.outside_of_modes(), torch.no_grad():
            values = self._of(pytree.tree_map(shown, (args, kwargs)), 1)
            real = func(*values[0], **values[1])
        with torch_private.described(func, real):
            traced = func(*args, **kwargs)
        if known:
            self._record(func, self._of((args, kwargs), 0), values, pytree.tree_leaves(traced))
        return traced

    def _selected(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What is selected, by unknown indices, from known values that are all equal, which is guarded."""
        reference, value = self._of(args[0], 0), self._of(args[0], 1)
        self._decide(_all_equal, ((reference,), {}), ((value,), {}))
        traced = func(*args, **kwargs)
        shape = tuple(traced.shape)
        self._record(_repeated, ((reference, shape), {}), ((value, shape), {}), [traced])
        return traced

    def _unknown(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a call whose result is unknown; what it writes into becomes unknown too."""
        for leaf in pytree.tree_leaves(_written(func, args, kwargs)):
            known = self._known.get(leaf) if isinstance(leaf, torch.Tensor) else None
            if known is not None:
                self._lost.add(torch_private.storage_key(known[1]))
        return func(*args, **kwargs)

    def _record(self, func: Any, references: Any, values: Any, traced: list[Any]) -> None:
        with torch_private.outside_of_modes(), torch.no_grad():
            real = pytree.tree_leaves(func(*values[0], **values[1]))
        self._kept.append(real)
        reads = _storages(values)
        for index, (leaf, value) in enumerate(zip(traced, real, strict=True)):
            if isinstance(leaf, torch.Tensor):
                self._known[leaf] = (Known(len(self._tape), index), value)
        mutable = isinstance(func, OpOverload) and schema_of(func).is_mutable
        writes = _storages(real) | (reads if mutable else frozenset())
        self._tape.append(Call(func, references[0], references[1], writes, reads))

    def _decide(self, func: Any, references: Any, values: Any) -> Any:
        """The value of a call, which is guarded; None for a random number that is taken out of its tensor."""
        with torch_private.outside_of_modes(), torch.no_grad():
            value = func(*values[0], **values[1])
        needed, kept = set(_storages(values)), []
        for number in range(len(self._tape) - 1, -1, -1):
            call = self._tape[number]
            if call.writes & needed:
                kept.append((number, call))
                needed |= call.reads
        calls = (*reversed(kept), (len(self._tape), Call(func, references[0], references[1])))
        sources = [call.args[0] for _, call in calls if call.function is None]
        names = [source.name or self._names[source.index] for source in sources]
        drawn = any(isinstance(call.function, Draw) for _, call in calls)
        if drawn and isinstance(value, float):
            return None  # it is never drawn again
        names += ["random numbers"] * drawn
        if names:  # a value that follows from constants alone never changes
            self.guards.append(Guard(calls, value, tuple(names)))
        return value


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """What a call writes into."""
    if not isinstance(func, OpOverload):
        return args, kwargs
    arguments = schema_of(func).arguments
    named = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    return [named.get(a.name) for a in arguments if a.alias_info is not None and a.alias_info.is_write]


def _all_equal(values: torch.Tensor) -> bool:
    with torch_private.outside_of_modes():
        return values.numel() > 0 and bool((values == values.flatten()[0]).all())


def _repeated(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return values.flatten()[0].expand(shape)


def _asserted(found: Assertion, value: torch.Tensor) -> bool:
    """The truth that a check needs to go on; the step checks the value."""
    holds = value != 0 if found.needed else value == 0
    torch.ops.aten._assert_async.msg(holds, f"the check at {found.place} fails")
    return found.needed


def _is_never(func: Any, number: Any) -> bool:
    limit = _NEVER[func]
    return bool(number >= limit if limit > 0 else number <= limit)


def _storages(values: Any) -> frozenset[int]:
    found = (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))
    return frozenset(torch_private.storage_key(leaf) for leaf in found)
