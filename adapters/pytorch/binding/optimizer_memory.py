"""What an optimizer holds and takes, learned from two steps of a copy whose tensors have no data."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ....planner.errors import AdapterError
from ..capture.diagnostics import first_line
from ..torch_private import TorchDispatchMode, pytree, storage_key


@dataclass(frozen=True, slots=True)
class OptimizerMemory:
    """The states of an optimizer once its first step is done, and what a step takes for a moment.

    ``temporaries_nbytes`` is None where it is not known. ``foreach`` says that a step works on all parameters at once.
    """

    name: str
    states_nbytes: int
    temporaries_nbytes: int | None
    foreach: bool

    @property
    def text(self) -> str:
        """The states as the planner takes them."""
        return f"{self.name}:{self.states_nbytes}B"


def memory_of(optimizer: Any, module: nn.Module) -> OptimizerMemory:
    """What ``optimizer`` holds and takes for the parameters of ``module`` that are trained now.

    States that it has count as they are. Raises AdapterError for what is no optimizer of them, and for a class whose
    step does not run without data.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise AdapterError(
            f"optimizer {optimizer!r} is no torch.optim.Optimizer and no name",
            remedy='pass the optimizer, a name such as "adamw", or "none" to leave its states out',
        )
    name, trained = type(optimizer).__name__, [p for p in module.parameters() if p.requires_grad]
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    mine = [p for p in trained if id(p) in held]
    if not mine:
        raise AdapterError(
            f"{name} holds none of the trained parameters of {type(module).__name__}",
            remedy="make it from the parameters of the module that is bound",
        )
    fused = any(group.get("fused") for group in optimizer.param_groups)
    try:
        copied = _without_data(optimizer, mine)
        foreach = any(group.get("foreach") for group in copied.param_groups)
        temporaries = _step_twice(copied)
        on_card = mine[0].is_cuda and not (fused or any(g.get("capturable") for g in optimizer.param_groups))
        states = _nbytes(copied.state.values(), without_host=on_card)
    except Exception as error:  # the step of a class that nothing is known of
        raise AdapterError(
            f"the states of {name} are not known: a step of a copy without data ended with {first_line(error)}",
            remedy=f'pass its name and the size of its states, such as optimizer="{name}:340MB"',
        ) from error
    return OptimizerMemory(name, states, 0 if fused else temporaries, foreach)


def _without_data(optimizer: torch.optim.Optimizer, mine: list[nn.Parameter]) -> torch.optim.Optimizer:
    """A copy without hooks for these parameters alone, whose tensors are on the meta device, with gradients."""
    memo: dict[int, Any] = {}
    for leaf in pytree.tree_leaves([optimizer.state[p] for p in mine if p in optimizer.state]):
        if isinstance(leaf, Tensor):  # counters stay numbers
            memo[id(leaf)] = leaf.detach().to("meta" if leaf.ndim else "cpu", copy=True)
    for parameter in mine:
        memo[id(parameter)] = made = nn.Parameter(torch.empty_like(parameter, device="meta"))
        made.grad = torch.empty_like(made)
    left = ("state", "param_groups", "step")  # schedulers wrap the step
    own = {k: value for k, value in optimizer.__dict__.items() if k not in left and not k.endswith("_hooks")}
    copied: torch.optim.Optimizer = object.__new__(type(optimizer))
    for key, value in own.items():
        copied.__dict__[key] = copy.deepcopy(value, memo)
    states = {memo[id(p)]: copy.deepcopy(optimizer.state[p], memo) for p in mine if p in optimizer.state}
    copied.state = defaultdict(dict, states)
    copied.param_groups = [_group(group, memo) for group in optimizer.param_groups]
    return copied


def _group(group: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    """A group of the copy: its own parameters, and options that run without a card and make the same states."""
    made = {key: value.item() if isinstance(value, Tensor) else value for key, value in group.items()}
    made["params"] = [memo[id(parameter)] for parameter in group["params"] if id(parameter) in memo]
    if made.get("foreach", True) is None:  # torch's own choice
        made["foreach"] = not made.get("fused") and any(parameter.is_cuda for parameter in group["params"])
    return made | {key: False for key in ("fused", "capturable", "differentiable") if key in made}


def _step_twice(copied: torch.optim.Optimizer) -> int | None:
    """Take two steps; the most bytes that one takes beyond the states, None if only the states are known."""
    step: Callable[..., Any] = inspect.unwrap(type(copied).step)
    taken: list[int] = []
    with torch.no_grad(), torch.random.fork_rng([]):
        try:
            for _ in range(2):
                before = _nbytes(copied.state.values())
                with _Taken() as meter:
                    step(copied)
                taken.append(meter.peak_nbytes - (_nbytes(copied.state.values()) - before))
        except RuntimeError:
            if not type(copied).__module__.startswith("torch.optim"):
                raise
            _make_states(copied, step)
            return None
    return max(taken)


def _make_states(copied: torch.optim.Optimizer, step: Callable[..., Any]) -> None:
    """The first step of a class that asks for numbers; torch's own make the states of a group before."""
    groups = copied.param_groups
    for group in groups:
        copied.param_groups = [group]
        with suppress(RuntimeError):
            step(copied)
    if any(parameter not in copied.state for group in groups for parameter in group["params"]):
        raise RuntimeError("it made no states")


def _nbytes(states: Iterable[Any], *, without_host: bool = False) -> int:
    leaves = [leaf for leaf in pytree.tree_leaves(list(states)) if isinstance(leaf, Tensor)]
    counted = [leaf for leaf in leaves if leaf.is_meta or not without_host]
    return sum({storage_key(leaf): leaf.untyped_storage().nbytes() for leaf in counted}.values())


class _Taken(TorchDispatchMode):  # type: ignore[misc]
    """The most bytes of storages that calls make while it is active, of those that are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_nbytes = self._alive_nbytes = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage_key(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and (key := storage_key(leaf)) not in given | self._alive:
                storage = leaf.untyped_storage()
                self._alive.add(key)
                self._alive_nbytes += storage.nbytes()
                weakref.finalize(storage, self._let_go, key, storage.nbytes()).atexit = False
        self.peak_nbytes = max(self.peak_nbytes, self._alive_nbytes)
        return result

    def _let_go(self, key: int, nbytes: int) -> None:
        self._alive.discard(key)
        self._alive_nbytes -= nbytes
