"""One training step by a plan beside a plain one of the same module: their bits, peaks and times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...planner.errors import AdapterError, OgcPlanError, PlanMismatchError, UsageError
from ...planner.plan_file.record import Plan
from ...planner.solver import Solver
from . import torch_private
from .api import bind, plan_of, predict
from .binding.bound_module import bound
from .binding.make_executor import planned_quietly
from .binding.request import Request
from .capture.diagnostics import first_line
from .capture.tensor_attributes import attributes_of
from .memory.allocator_record import Event, recording
from .torch_private import pytree

_ROUNDS = 3
_LONG_S = 10.0
"""Steps that take longer are timed once."""
_SEED = 0
_SMALLEST = 5e-324
"""The difference of two zeros with different signs."""

Loss = Callable[[Any], Tensor]
Values = dict[str, dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far the values of one kind lie apart: 0 if every bit is equal, infinite where one side has no value.

    ``where`` names the tensor with the largest difference, and ``scale`` is its largest number.
    """

    count: int
    largest: float = 0.0
    scale: float = 0.0
    where: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step takes, as measured: the peak of all that it holds in bytes, and its median time."""

    peak_nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BesidePlain:
    """What a planned step gave and took beside a plain one.

    ``plain`` is None where plain training ran out of memory: then nothing is compared. ``repeats`` says whether plain
    steps have the same gradients each time. ``plan`` is the one that ran, and ``predicted_nbytes`` its peak of all that
    the step holds. ``snapshot`` is a planned step in the form of PyTorch's viewer of memory.
    """

    module: str
    device: str
    plan: Plan
    planned_anew: bool
    predicted_nbytes: int
    planned: Taken
    plain: Taken | None
    differences: dict[str, Difference]
    repeats: bool
    snapshot: bytes | None

    @property
    def equal(self) -> bool:
        """Whether every bit is equal."""
        return all(difference.largest == 0 for difference in self.differences.values())


def train_beside_plain(
    plan: Plan,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Loss | None,
    *,
    snapshot: bool = False,
    now: Callable[[str], None] = lambda _: None,
) -> BesidePlain:
    """Train a step by ``plan`` and a plain step of ``module``, from the same state.

    Where a plan of a bare ONNX file cannot be bound, as its peak on PyTorch's kernels is above its budget, the step is
    planned anew within that budget. Buffers and random generators stay as they are; gradients are dropped.

    Args:
        plan: the plan, verified.
        module: what is called in training.
        args, kwargs: what it is called with.
        loss: makes a number of what the module returns; without it each output gets a random gradient.
        snapshot: record the memory of a planned step.
        now: is told what is done.

    Returns:
        What the two gave and took.

    Raises:
        PlanMismatchError, UnsupportedModuleError: the plan cannot be bound.
        InfeasibleBudgetError: PyTorch's own step has no plan within the budget of a bare file's plan.
        UsageError: a plain step fails, the module is in evaluation mode, or is not on CUDA for a snapshot.
        AdapterError: only the planned step fails.
    """
    name = type(module).__name__
    if not module.training:
        raise UsageError(f"{name} is in evaluation mode, in which no step is planned", remedy="call train() first")
    steps = _Steps(module, args, kwargs, loss)
    if snapshot and steps.device.type != "cuda":
        raise UsageError(
            f"a memory snapshot is of PyTorch's CUDA allocator, but {name} is on {steps.device}",
            remedy="leave out --snapshot, or build the module and its arguments on a CUDA device",
        )
    now(f"planning {name}")
    anew = False
    try:
        trained = bind(module, plan, args, kwargs=kwargs)
    except PlanMismatchError:
        if plan.model.annotations is not None:
            raise
        anew, trained = True, bound(module, planned_quietly(_as_asked(plan), module, args, kwargs))
    made, plain = plan_of(trained), None
    with steps.from_one_state():
        now("training without the plan")
        try:
            plain = steps.recorded(module, UsageError)
        except torch.OutOfMemoryError:
            now("plain training ran out of memory")
        now("training by the plan")
        mine = steps.recorded(trained, AdapterError)
        now("timing steps")
        seconds, last = steps.timed([trained] if plain is None else [trained, module])
        shown = steps.snapshot(trained) if snapshot else None
    return BesidePlain(
        name,
        str(steps.device),
        made,
        anew,
        predict(trained).total_nbytes - made.graph.stationary.optimizer_nbytes,
        Taken(mine[0], seconds[0]),
        None if plain is None else Taken(plain[0], seconds[1]),
        {} if plain is None else {kind: _difference(plain[1][kind], mine[1][kind]) for kind in plain[1]},
        plain is None or _difference(plain[1]["gradients"], last["gradients"]).largest == 0,
        shown,
    )


def _as_asked(plan: Plan) -> Request:
    """What a plan was asked for."""
    asked = plan.budget
    return Request(
        asked.text, asked.scope, f"{asked.headroom_nbytes}B", (), (), asked.optimizer, asked.grad_accumulation, None,
        Solver("optimal", "default", None, 0),
    )  # fmt: skip


class _Steps:
    """Training steps of a module and of what is bound to it, which shares its tensors."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], loss: Loss | None) -> None:
        self._module, self._args, self._kwargs = module, args, kwargs
        self._loss = _random_gradients if loss is None else loss
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        self._inputs = {f"argument {position}": leaf for position, leaf in enumerate(leaves)}
        tensors = [*module.parameters(), *self._inputs.values()]
        self.device = tensors[0].device if tensors else torch.device("cpu")

    @contextmanager
    def from_one_state(self) -> Iterator[None]:
        """Every step inside starts with the buffers, and the block ends with the generators, that are there now."""
        self._before = {name: buffer.detach().clone() for name, buffer in self._module.named_buffers()}
        cards = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(cards, device_type="cuda"):
            try:
                yield
            finally:
                self._reset()

    def recorded(self, module: nn.Module, refusal: type[OgcPlanError]) -> tuple[int, Values]:
        """The peak of all that a step holds, and what it leaves behind."""
        self._reset()
        held = [*self._module.parameters(), *self._module.buffers(), *attributes_of(self._module).values()]
        stores = {torch_private.storage_key(t): t.untyped_storage().nbytes() for t in (*held, *self._inputs.values())}
        with recording(self.device) as record, record.span(0):
            outputs = self._step(module, refusal)
        return sum(stores.values()) + _peak(record.events(0)), self._left(outputs)

    def timed(self, ways: list[nn.Module]) -> tuple[list[float], Values]:
        """The median seconds of each way, which take turns, and what the last step leaves behind."""
        found: list[list[float]] = [[] for _ in ways]
        for _ in range(_ROUNDS):
            for way, times in zip(ways, found, strict=True):
                self._reset()
                self._wait()
                begun = time.perf_counter()
                outputs = self._step(way)
                self._wait()
                times.append(time.perf_counter() - begun)
            left = self._left(outputs)
            del outputs
            if sum(times[0] for times in found) > _LONG_S:
                break
        return [statistics.median(times) for times in found], left

    def snapshot(self, module: nn.Module) -> bytes:
        """A step as PyTorch's viewer of memory reads it."""
        self._reset()
        with torch_private.memory_snapshot() as made:
            self._step(module)
        return made[0]

    def _reset(self) -> None:
        with torch.no_grad():
            for name, buffer in self._module.named_buffers():
                buffer.copy_(self._before[name])
        for tensor in (*self._module.parameters(), *self._inputs.values()):
            tensor.grad = None
        torch.manual_seed(_SEED)

    def _step(self, module: nn.Module, refusal: type[OgcPlanError] = AdapterError) -> Any:
        try:
            outputs = module(*self._args, **self._kwargs)
            self._loss(outputs).backward()
        except (OgcPlanError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            how = "by the plan" if refusal is AdapterError else "without a plan"
            raise refusal(
                f"a step of {type(self._module).__name__} {how} fails: {first_line(error)}",
                remedy="build a module, arguments and a loss that train together; --debug shows the whole error",
            ) from error
        return outputs

    def _left(self, outputs: Any) -> Values:
        found = [leaf.detach() for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
        leaves = {**dict(self._module.named_parameters()), **self._inputs}
        generators = {"the CPU's": torch.get_rng_state()}
        if self.device.type == "cuda":
            generators["the card's"] = torch.cuda.get_rng_state(self.device)
        kinds = {
            "outputs": {f"output {position}": leaf for position, leaf in enumerate(found)},
            "gradients": {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None},
            "buffers": dict(self._module.named_buffers()),
            "random stream": generators,
        }
        return {kind: {name: t.detach().cpu().clone() for name, t in kinds[kind].items()} for kind in kinds}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class _RandomGradient(torch.autograd.Function):  # type: ignore[misc]
    """A number whose gradient is a random one of its argument, laid out like it: that of a sum would be one number."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, position: int) -> Tensor:
        """Zero."""
        ctx.like, ctx.position = value, position
        return torch.zeros((), device=value.device)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        """The gradient."""
        generator = torch.Generator(ctx.like.device).manual_seed(ctx.position)
        return torch.empty_like(ctx.like).normal_(generator=generator), None


def _random_gradients(outputs: Any) -> Tensor:
    """The loss of a module that has none; the module's own where it returns a number."""
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not leaves:
        raise AdapterError("no output takes a gradient", remedy="return what the loss is made of from forward")
    if len(leaves) == 1 and leaves[0].dim() == 0 and not leaves[0].is_complex():
        return leaves[0]
    numbers = [_RandomGradient.apply(leaf, position) for position, leaf in enumerate(leaves)]
    total: Tensor = sum(numbers[1:], numbers[0])
    return total


def _peak(events: list[Event]) -> int:
    """The most bytes that were alive of those that the events take."""
    alive: dict[int, int] = {}
    held = most = 0
    for event in events:
        if event.nbytes > 0:
            alive[event.address] = event.nbytes
            held += event.nbytes
            most = max(most, held)
        else:
            held -= alive.pop(event.address, 0)  # otherwise it frees memory older than the step
    return most


def _difference(plain: dict[str, Tensor], planned: dict[str, Tensor]) -> Difference:
    found = Difference(len(plain))
    for name in plain.keys() | planned.keys():
        here = _apart(plain.get(name), planned.get(name))
        if here > found.largest:
            scale = plain[name].abs().max().item() if name in plain else 0.0
            found = Difference(len(plain), here, scale, name)
    return found


def _apart(one: Tensor | None, other: Tensor | None) -> float:
    """0 if two tensors have the same bits, else their largest difference; infinite if that is no number."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))):
        return 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    largest = (one.to(wide) - other.to(wide)).abs().max().item()
    return max(float(largest), _SMALLEST) if largest < float("inf") else float("inf")
