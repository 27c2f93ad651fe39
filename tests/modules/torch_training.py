"""Trains a module plainly and by a plan, so that tests can compare every bit and byte."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from ogc_plan.adapters.pytorch.api import predict
from ogc_plan.adapters.pytorch.binding.bound_module import bound, runner_of
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.execution.executor import Executor
from ogc_plan.adapters.pytorch.step.annotate import annotate
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from ogc_plan.planner import pipeline
from ogc_plan.planner.model import from_annotation
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.solver import CERTIFIED
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from models.meters.storage_meter import StorageMeter
from tests.modules.devices import STANDIN, random_state

Loss = Callable[[Any], Tensor]


def first(output: Any) -> Tensor:
    """The loss of a module that computes it: its only output."""
    loss: Tensor = pytree.tree_leaves(output)[0]
    return loss


def planned(
    module: nn.Module,
    args: tuple[Any, ...],
    budget: str = "100%",
    strategy: str = CERTIFIED,
    kwargs: dict[str, Any] | None = None,
    *,
    scope: Scope | None = None,
    grad_accumulation: bool = False,
    effort: str = "fast",
) -> nn.Module:
    """``within_budget`` without measured workspace and with little effort."""
    step = TracedStep(capture(module, args, kwargs))
    annotated = annotate(step, measure=False)
    annotation = annotated.annotation
    model = from_annotation(annotation, name="module", device="cpu", grad_accumulation=grad_accumulation)
    effort = effort if strategy == CERTIFIED else "default"
    made = pipeline.plan(model, budget, scope=scope, strategy=strategy, effort=effort)
    return bound(module, Executor(module, made, annotated))


@dataclass(frozen=True)
class Trained:
    """Everything that training left behind, as bytes: equality means equality of every bit."""

    outputs: tuple[bytes, ...]
    input_gradients: tuple[bytes, ...]
    gradients: tuple[bytes | None, ...]
    parameters: tuple[bytes, ...]
    buffers: tuple[bytes, ...]
    generator: bytes


def bits(tensor: Tensor) -> bytes:
    """The bytes of a tensor's values; as many zeros on the stand-in for CUDA, which computes none."""
    if STANDIN and tensor.is_cuda:
        return bytes(tensor.nbytes)
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def train(
    module: nn.Module,
    args: tuple[Any, ...],
    *,
    steps: int = 1,
    loss: Loss = first,
    kwargs: dict[str, Any] | None = None,
) -> Trained:
    """Train a copy of ``module`` with AdamW from a fixed seed; the result has the last step's gradients."""
    module = copy.deepcopy(module)
    leaves, spec = pytree.tree_flatten((args, kwargs or {}))
    leaves = [
        leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
        for leaf in leaves
    ]
    own, named = pytree.tree_unflatten(leaves, spec)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01)
    torch.manual_seed(5)
    for step in range(steps):
        if step:
            optimizer.step()
            optimizer.zero_grad()
        output = module(*own, **named)
        loss(output).backward()
    inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return Trained(
        tuple(bits(leaf) for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)),
        tuple(bits(leaf.grad) for leaf in inputs if leaf.grad is not None),
        tuple(None if p.grad is None else bits(p.grad) for p in module.parameters()),
        tuple(bits(p) for p in module.parameters()),
        tuple(bits(b) for b in module.buffers()),
        bits(random_state()),
    )


class CountedCalls(TorchDispatchMode):
    """Counts calls by aten name, without overload."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def backward_calls(module: nn.Module, args: tuple[Any, ...]) -> Counter[str]:
    """How often each aten call is made in the backward of one step."""
    loss = module(*args)
    with CountedCalls() as counted:
        loss.sum().backward()
    return counted.count


class _DenseSum(torch.autograd.Function):  # type: ignore[misc]
    """A sum whose gradient is laid out like its argument; that of ``sum`` is one expanded number."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        """The sum."""
        ctx.value = value
        return value.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Ones times the gradient."""
        return torch.empty_like(ctx.value).fill_(1).mul_(gradient)


def dense_sum(value: Tensor) -> Tensor:
    """The sum, with a gradient that takes the memory that a plan counts for it."""
    result: Tensor = _DenseSum.apply(value)
    return result


def measured(module: nn.Module, args: tuple[Any, ...], *, loss: Loss = first) -> tuple[int, int]:
    """Total and activation peak of one step under the storage meter, stationary memory in the total."""
    module.zero_grad(set_to_none=True)
    graph = runner_of(module).executor._joint.graph
    constants = [getattr(graph.owning_module, str(node.target)) for node in graph.find_nodes(op="get_attr")]
    inputs = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    stationary = [*module.parameters(), *module.buffers(), *inputs, *constants]
    with StorageMeter(stationary) as meter:
        output = module(*args)
        loss(output).backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    unique = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in stationary}
    return meter.peak().nbytes + sum(unique.values()), meter.activation_peak(gradients).nbytes


def predicted(module: nn.Module) -> tuple[int, int]:
    """The same two peaks as the plan predicts them."""
    peaks = predict(module, kernel_workspace=False)
    return peaks.total_nbytes, peaks.activation_nbytes


def alternating(module: nn.Module, batches: tuple[Tensor, ...]) -> list[bytes]:
    """Every bit that training on ``batches`` in turn leaves behind."""
    optimizer = torch.optim.AdamW(module.parameters())
    torch.manual_seed(3)
    for batch in batches:
        optimizer.zero_grad()
        module(batch).square().mean().backward()
        optimizer.step()
    return [bits(value) for value in module.state_dict().values()] + [bits(random_state())]
