"""One trace of a training step under the modes that make it the step that eager training runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from .. import torch_private
from ..errors import UnsupportedModuleError
from ..guards.attribute_reads import AttributeReads
from ..guards.frozen_objects import FROZEN
from ..guards.globals_and_closures import SourceGuards
from ..guards.host_rng import refuse_host_draws
from ..guards.memoised_tensors import backward_with_memoised_tensors, memoising, with_memoised_tensors
from ..guards.module_wide_hooks import module_wide_hooks_inside
from ..guards.side_effects import refuse_kept_tensors, refuse_side_effects
from ..guards.tensors_from_elsewhere import without_tensors_from_elsewhere
from ..guards.values.argument_values import ValueGuards
from ..torch_private import TracedGraph, pytree
from ..unbind import method_of
from .argument_identity import Same, with_arguments_as_given
from .attributes_of_tensors import refuse_attributes_of_tensors
from .autocast import eager_autocast
from .calling import Prints, called_as_a_module
from .data_assignments import data_assignments
from .inplace_strides import inplace_strides
from .kernel_strides import kernel_strides
from .module_checks import HOOKS, REGISTRIES, tensors_of
from .module_scopes import record_scopes
from .output_identity import DistinctOutputs
from .own_checkpoints import without_own_checkpoints
from .tensor_attributes import attributes_as_buffers
from .tied_parameters import one_name_each


def _without_own_hooks(module: nn.Module) -> nn.Module:
    bare: nn.Module = object.__new__(type(module))
    bare.__dict__.update(module.__dict__)
    bare.__dict__.update({name: type(module.__dict__[name])() for name in HOOKS})
    if "forward" in module.__dict__:
        bare.__dict__["forward"] = method_of(bare, module.__dict__["forward"])
    return bare


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _restored(*modules: nn.Module) -> Iterator[None]:
    """Restore the attributes, parameters, buffers, submodules and hooks of modules and their submodules at the end."""
    own = {child: dict(child.__dict__) for module in modules for child in module.modules()}
    registries = (held for state in own.values() for key, held in state.items() if key in REGISTRIES)
    inside = [(held, dict(held)) for held in registries if isinstance(held, dict)]  # a scripted module has others
    try:
        yield
    finally:
        for child, state in own.items():
            child.__dict__.clear()
            child.__dict__.update(state)
        for held, content in inside:
            held.clear()
            held.update(content)


def _with_arguments_unchanged(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """``forward``, refused if it changes a list or dict among its arguments: the trace is given copies of them."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        before, spec = pytree.tree_flatten((args, kwargs))
        result = forward(*args, **kwargs)
        after, now = pytree.tree_flatten((args, kwargs))
        if now != spec or any(one is not other for one, other in zip(before, after, strict=True)):
            raise UnsupportedModuleError(
                f"the forward of {type(module).__name__} changes a container among its arguments, which a planned step "
                "would not",
                remedy="work on a copy of the container, and return what is stored in it",
            )
        return result

    return checked


TangentStrides = Sequence["tuple[int, ...] | None"]


class Trace:
    """What is traced, and what the modes record meanwhile.

    Attributes:
        prints: what the forward prints.
        same: which argument leaves are one tensor.
        bare: the module without its own hooks; they run around the planned step and must not run inside it too.
        eager_dropout: whether dropout is traced as eager training composes it.
        follow_values: whether values that decide a branch are computed, and guarded.
        memoised: whether tensors that memoised functions keep are constants.
        tangent_strides: the strides of the gradients of the outputs that take one, None for those that torch expects.
        tensors: the arguments, parameters, buffers and tensor attributes.
        outputs: the structure of the result, and which of its leaves are the same tensor.
        values: guards on the values that decide a branch.
        reads: attributes that the forward reads of its modules and their plain objects.
        sources: guards on data outside of the module that the forward's code names.
        unknown_strides: calls whose result's strides are unknown -> what their kernel objected to.
        enters_autocast: whether the forward enters autocast itself.
        checkpoints: whether the forward checkpoints parts of itself.
        memoises: whether memoised functions have kept tensors of the trace.
    """

    def __init__(
        self,
        module: nn.Module,
        leaves: Sequence[Any],
        names: Sequence[str],
        detached: Collection[int],
        *,
        same: Same,
        prints: Prints,
        eager_dropout: bool,
        follow_values: bool,
        memoised: bool,
        tangent_strides: TangentStrides = (),
    ) -> None:
        self.module, self.same, self.prints = module, same, prints
        self.bare = _without_own_hooks(module)
        self.eager_dropout, self.follow_values, self.memoised = eager_dropout, follow_values, memoised
        self.tangent_strides = tangent_strides
        self.tensors = tensors_of(module, leaves)
        self._leaves = leaves
        self.outputs = DistinctOutputs(detached)
        self.values = ValueGuards(leaves, names)
        self.reads = AttributeReads()
        self.sources = SourceGuards()
        self.unknown_strides: dict[str, str] = {}
        self.enters_autocast = self.checkpoints = self.memoises = False

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracedGraph:
        """Trace the step. Raises what torch or a mode raises."""
        FROZEN.look()
        with ExitStack() as stack:
            for mode in MODES:
                stack.enter_context(mode(self))
            return torch_private.joint_graph(self.bare, args, kwargs)

    @contextmanager
    def wrapped_forward(self) -> Iterator[None]:
        """Let the bare module's forward return distinct outputs, and record its sources and values."""
        forward = self.outputs.wrap(
            self.bare,
            without_tensors_from_elsewhere(
                _with_arguments_unchanged(self.module, self.sources.wrap(self.bare.forward)), self.sources.is_old
            ),
            self.reads,
        )
        forward = self.values.wrap(self.bare, forward) if self.follow_values else forward
        # Around values, whose mode then sees these tensors first: it knows the values of real ones.
        forward = with_memoised_tensors(forward) if self.memoised else forward
        self.bare.__dict__["forward"] = self.prints.wrap(
            with_arguments_as_given(self.bare, forward, self._leaves, self.same)
        )
        with backward_with_memoised_tensors() if self.memoised else nullcontext():
            yield

    def forget_kept(self, tensors: list[torch.Tensor]) -> None:
        """Let memoised functions forget the traced tensors that they keep, and note that there were any."""
        for function in memoising(tensors):
            function.cache_clear()
            self.memoises = True

    def note_autocast(self) -> None:
        """Note that the forward entered autocast itself."""
        self.enters_autocast = True

    def note_checkpoint(self) -> None:
        """Note that the forward checkpoints a part of itself."""
        self.checkpoints = True


MODES: tuple[Callable[[Trace], AbstractContextManager[Any]], ...] = (
    # Outermost: the generators are compared after everything else has been restored.
    lambda trace: refuse_host_draws(trace.module),
    # Before any mode patches a class or registers a hook: it lists closures and defaults as the user made them.
    lambda trace: trace.sources.recorded(trace.module),
    # Before wrapped_forward, which follows the values of buffers, and before _restored, which saves the buffers.
    lambda trace: attributes_as_buffers(trace.bare),
    # Independent of the others: it changes the class only for calls of the bare module.
    lambda trace: called_as_a_module(trace.bare),
    # Before reads are recorded: looking up the forward and the buffers is not a read of the forward's.
    lambda trace: trace.wrapped_forward(),
    lambda trace: trace.values.recorded(),
    # Torch logs a call that cannot be traced, and warns; the error says it in one line. Independent of the others.
    lambda _: torch_private.silenced(torch_private.FakeTensorMode.__module__),
    lambda _: _without_warnings(),
    # The caller may plan under no_grad; a training step has gradients on.
    lambda _: torch.enable_grad(),
    # Before any mode registers hooks of all modules for itself.
    lambda trace: module_wide_hooks_inside(trace.bare),
    # Around _restored and refuse_side_effects, which let go of what the forward has set.
    lambda trace: refuse_kept_tensors(trace.bare, trace.forget_kept),
    # Around every mode that changes the module: tracing swaps its tensors, its forward sets attributes.
    lambda trace: _restored(trace.module, trace.bare),
    # Hooks run in the order of this list. First: calls of every later hook belong to a submodule too.
    lambda trace: record_scopes(trace.bare),
    # Inside _restored, which restores the names that this mode removes.
    lambda trace: one_name_each(trace.bare),
    # After one_name_each: filling in the tied names is not a side effect of the forward.
    lambda trace: refuse_side_effects(trace.bare, trace.outputs.assigned),
    # Fake tensors get the strides of real kernels, functional tensors keep theirs when they are written in place.
    lambda trace: kernel_strides(trace.unknown_strides),
    lambda _: inplace_strides(),
    # Its hooks run closest to the forward: the caller's cache of casts is on only while the forward runs.
    lambda trace: eager_autocast(trace.bare, trace.note_autocast),
    # After all modes that read the module when they start.
    lambda trace: trace.reads.recorded(trace.bare, trace.sources),
    # Corrections of torch's own rules and kernels: independent of the module and of each other.
    lambda _: data_assignments(),
    lambda trace: without_own_checkpoints(trace.note_checkpoint),
    lambda trace: refuse_attributes_of_tensors(trace.tensors),
    lambda trace: torch_private.without_python_kernels(eager_dropout=trace.eager_dropout),
    lambda _: torch_private.cudnn_batch_norms(),
    lambda _: torch_private.described_as_run(),
    lambda _: torch_private.composed_as_run(),
    lambda trace: torch_private.dense_tangents(trace.tangent_strides),
)
"""The modes under which a step is traced, outermost first."""


def names_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The names of argument leaves: ``args[0]``, ``kwargs['labels']``."""
    found = pytree.tree_flatten_with_path((args, kwargs))[0]
    return [("args" if path[0].idx == 0 else "kwargs") + pytree.keystr(path[1:]) for path, _ in found]
