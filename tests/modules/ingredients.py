"""Random small modules made of what people's scripts do, and random training scripts around them, by a seed."""

from __future__ import annotations

import copy
import functools
import gc
import random
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

WIDTH = 8


@dataclass
class Options:
    """A configuration, of which a forward reads some attributes."""

    rate: float = 1.0
    power: int = 2
    note: str = "unread"


class Gauge:
    """An object whose methods a module keeps; what they read is in another object."""

    def __init__(self) -> None:
        self.options = types.SimpleNamespace(inner=Options())

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.options.inner.rate

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return self.scaled(output)


class Settings:
    """A class used as a configuration."""

    scale = 1.0


class Double(torch.autograd.Function):  # type: ignore[misc]
    """Twice a tensor, with a backward written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2 + ctx.saved_tensors[0] * 0


class Scaling:
    """A hook that is an object."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * self.factor


def noisy(module: nn.Module, args: Any) -> Any:
    """A pre-hook that draws."""
    return (args[0] + 0.1 * torch.rand_like(args[0]),)


class Block(nn.Module):
    """A layer, what its kind does with the result, and a state that some kinds write: [n, WIDTH] -> [n, WIDTH]."""

    KINDS = (
        "tanh", "inplace", "dropout", "batch norm", "layer norm", "running mean", "assigned mean", "counter", "gain",
        "options", "list", "function", "branch", "spectral norm", "functional dropout", "slice write", "detached",
        "noise", "residual", "global", "method", "partial", "unregistered", "class", "own class", "deep",
    )  # fmt: skip

    own = 1.0

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(WIDTH, WIDTH)
        self.gain, self.options, self.values = 1.0, Options(), [0.5, {"shift": 0.1}]
        self.drop, self.batch, self.norm = nn.Dropout(0.3), nn.BatchNorm1d(WIDTH), nn.LayerNorm(WIDTH)
        self.gauge = Gauge()
        self.scaled, self.partial = self.gauge.scaled, functools.partial(Gauge.scaled, self.gauge)
        self.held, self.settings = [nn.Dropout(0.2), nn.Tanh()], Settings
        if kind == "spectral norm":
            parametrizations.spectral_norm(self.layer)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return getattr(self, f"_{self.kind.replace(' ', '_')}", torch.tanh)(y)

    def _inplace(self, y: Tensor) -> Tensor:
        return (y * 2).mul_(0.7).add_(y.tanh()).relu_()

    def _dropout(self, y: Tensor) -> Tensor:
        return self.drop(y).tanh()

    def _batch_norm(self, y: Tensor) -> Tensor:
        return self.batch(y).relu()

    def _layer_norm(self, y: Tensor) -> Tensor:
        return nn.functional.gelu(self.norm(y))

    def _running_mean(self, y: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return (y - self.mean).tanh()

    def _assigned_mean(self, y: Tensor) -> Tensor:
        self.mean.data = self.mean.data * 0.9 + y.detach().mean(0) * 0.1
        return (y - self.mean).tanh()

    def _counter(self, y: Tensor) -> Tensor:
        self.count += 1
        return y.tanh() / self.count.float()

    def _gain(self, y: Tensor) -> Tensor:
        return y.tanh() * self.gain

    def _options(self, y: Tensor) -> Tensor:
        return y.tanh().pow(self.options.power) * self.options.rate

    def _list(self, y: Tensor) -> Tensor:
        return y.tanh() * self.values[0] + self.values[1]["shift"]  # type: ignore[index, operator]

    def _function(self, y: Tensor) -> Tensor:
        return Double.apply(y.tanh())

    def _branch(self, y: Tensor) -> Tensor:
        return y.tanh() if self.training else y * 3

    def _functional_dropout(self, y: Tensor) -> Tensor:
        return nn.functional.dropout(y, 0.2, self.training).sigmoid()

    def _slice_write(self, y: Tensor) -> Tensor:
        z = y + 1
        z[:, 0] = z[:, 0] * 2
        return z

    def _detached(self, y: Tensor) -> Tensor:
        return y.tanh() * y.detach().sigmoid()

    def _noise(self, y: Tensor) -> Tensor:
        return (y + torch.randn_like(y)).tanh()

    def _residual(self, y: Tensor) -> Tensor:
        return y + y.relu()

    def _global(self, y: Tensor) -> Tensor:
        return y.tanh() * SETTINGS["scale"]

    def _method(self, y: Tensor) -> Tensor:
        return self.scaled(y.tanh())

    def _partial(self, y: Tensor) -> Tensor:
        return self.partial(y.tanh())

    def _unregistered(self, y: Tensor) -> Tensor:
        for module in self.held:
            y = module(y)
        return y

    def _class(self, y: Tensor) -> Tensor:
        return y.tanh() * self.settings.scale

    def _own_class(self, y: Tensor) -> Tensor:
        return y.tanh() * type(self).own

    def _deep(self, y: Tensor) -> Tensor:
        return y.tanh() * self.gauge.options.inner.rate


SETTINGS = {"scale": 1.0}


class Random(nn.Module):
    """Blocks in a row; the result is a loss, a tensor, or several things: [n, WIDTH] -> result."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = random.Random(seed)
        self.blocks = nn.ModuleList(Block(draw.choice(Block.KINDS)) for _ in range(draw.randint(1, 5)))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.result = draw.choice(("loss", "tensor", "dict", "tuple", "view"))
        tied = draw.random() < 0.2 and self.blocks[0].kind != "spectral norm"
        if tied:
            self.head.weight = self.blocks[0].layer.weight
        self.uses_a_parameter_twice = tied or any(block.kind == "spectral norm" for block in self.blocks)
        if draw.random() < 0.2:
            self.blocks[-1].norm.requires_grad_(False)
        if draw.random() < 0.2:
            self.blocks[0].register_forward_hook(Scaling(1.5))
        if draw.random() < 0.1:
            self.head.register_forward_hook(draw.choice((Gauge(), self.blocks[0].gauge.__call__)))
        if draw.random() < 0.1:
            self.head.register_forward_pre_hook(noisy)
        if draw.random() < 0.1:
            self.forward = types.MethodType(_scaled_forward, self)  # type: ignore[method-assign]

    def forward(self, x: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Any:
        if other is not None:
            x = x * 1.5 if other is x else x + other.tanh()
        for block in self.blocks:
            x = block(x)
        y = self.head(x)
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        loss = y.square().mean()
        results = {"loss": loss, "tensor": y, "tuple": (loss, y), "view": y.view(-1)}
        return results.get(self.result, {"loss": loss, "features": x})


def _scaled_forward(self: Random, x: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Any:
    return Random.forward(self, x * 1.1, mask, other)


def loss_of(result: Any) -> Tensor:
    """A loss that depends on all of a result."""
    if isinstance(result, Tensor):
        return result.square().mean() if result.dim() else result
    values = list(result.values()) if isinstance(result, dict) else list(result)
    total = values[0]
    for value in values[1:]:
        total = total + value.mean()
    return total


Event = Callable[[Any, random.Random], object]

EVENTS: dict[str, Event] = {
    "nothing": lambda m, d: None,
    "gain": lambda m, d: setattr(m.blocks[0], "gain", d.random()),
    "an option that is read": lambda m, d: setattr(m.blocks[-1].options, "rate", d.random()),
    "an option that is not read": lambda m, d: setattr(m.blocks[-1].options, "note", str(d.random())),
    "an item": lambda m, d: m.blocks[0].values.__setitem__(0, d.random()),
    "an item deep inside": lambda m, d: m.blocks[0].values[1].update(shift=d.random()),
    "freeze": lambda m, d: d.choice(list(m.blocks)).requires_grad_(False),
    "thaw": lambda m, d: m.requires_grad_(True),
    "a block in evaluation": lambda m, d: d.choice(list(m.blocks)).eval(),
    "training again": lambda m, d: m.train(),
    "one more hook": lambda m, d: m.blocks[-1].register_forward_hook(Scaling(d.random())),
    "hooks removed": lambda m, d: m.blocks[0]._forward_hooks.clear(),
    "a state loaded": lambda m, d: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}),
    "an unread attribute": lambda m, d: setattr(m, "epoch", d.random()),
    "a global": lambda m, d: SETTINGS.update(scale=d.random()),
    "an object behind a method": lambda m, d: setattr(m.blocks[0].gauge.options.inner, "rate", d.random()),
    "another object": lambda m, d: setattr(m.blocks[-1].gauge.options, "inner", Options(d.random())),
    "another function": lambda m, d: setattr(m.blocks[0], "scaled", Gauge().scaled),
    "a module that is not registered": lambda m, d: d.choice(m.blocks[0].held).train(d.random() < 0.5),
    "one in its place": lambda m, d: m.blocks[-1].held.__setitem__(1, nn.Sigmoid()),
    "a hook on it": lambda m, d: m.blocks[0].held[1].register_forward_hook(Scaling(d.random())),
    "a class": lambda m, d: setattr(Settings, "scale", d.random()),
    "the module's class": lambda m, d: setattr(Block, "own", d.random()),
    "dropout of another rate": lambda m, d: setattr(m.blocks[0].drop, "p", d.choice((0.1, 0.5))),
    "no gradients": lambda m, d: m.zero_grad(),
    "gradients of zero": lambda m, d: m.zero_grad(set_to_none=False),
}
WAYS = (
    "plain",
    "twice",
    "retained",
    "scaled",
    "autocast",
    "evaluated",
    "no_grad",
    "one output",
    "mask",
    "copied",
    "input",
    "same argument",
    "other argument",
    "same input",
)


def run(bind: Callable[[nn.Module], nn.Module], seed: int, steps: int = 4) -> list[Any]:
    """All that ``steps`` of the training script of ``seed`` leave.

    That is results, gradients, state, random numbers, attributes, the hooks that were called, and how many tensors a
    step leaves alive; -1 for a step that was planned.
    """
    draw = random.Random(seed + 1)
    SETTINGS.update(scale=1.0)
    Settings.scale = Block.own = 1.0
    module: Any = bind(Random(seed))
    called: list[str] = []
    _register(module, called, draw)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(seed)
    left: list[Any] = []
    for _ in range(steps):
        EVENTS[draw.choice(list(EVENTS))](module, draw)
        way, rows = draw.choice(WAYS), draw.choice((6, 6, 6, 4))
        x = torch.randn(rows, WIDTH)
        if way == "copied":
            module = copy.deepcopy(module)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        alive = _alive_after(lambda: _step(module, x, way, left), module)  # noqa: B023
        left.append(-1 if way == "one output" else alive)  # its backward may be traced again
        if draw.random() < 0.7:
            optimizer.step()
            optimizer.zero_grad()
        left.append({name: value.clone() for name, value in module.state_dict().items()})
        left.append([None if p.grad is None else p.grad.clone() for p in module.parameters()])
        left.append(torch.get_rng_state())
        left.append(_attributes(module))
        # Within a backward those of parameters run after its parts.
        left += [[name for name in called if "gradient" not in name], sorted(called)]
    return left


def _register(module: Any, called: list[str], draw: random.Random) -> None:
    """Hooks around the module and on its parameters, which note that they are called."""
    for name, register in {
        "before": module.register_forward_pre_hook,
        "after": module.register_forward_hook,
        "backward": module.register_full_backward_hook,
    }.items():
        for number in range(draw.choice((0, 0, 1, 2)) if name != "backward" or module.result == "tensor" else 0):
            register(lambda *_, text=f"{name} {number}": called.append(text))
    if draw.random() < 0.3:
        for name, parameter in [named for named in module.named_parameters() if named[1].requires_grad]:
            parameter.register_hook(lambda _, name=name: called.append(f"gradient of {name}"))
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: called.append(f"gradient in {name}"))


def _attributes(module: nn.Module) -> dict[str, str]:
    """What the attributes of modules and of their objects hold that is no tensor."""
    kinds = (bool, int, float, str, list, dict, Options)
    found = {
        f"{path}.{key}": repr(value)
        for path, child in module.named_modules()
        for key, value in child.__dict__.items()
        if isinstance(value, kinds) and key not in nn.Module().__dict__
    }
    return found | {f"{path} training": repr(child.training) for path, child in module.named_modules()}


def _alive_after(step: Callable[[], None], module: Any) -> int:
    """How many tensors ``step`` leaves alive, with gradients; -1 if it was planned."""
    plans = module.__dict__.get("_ogc_plan_runner")
    before = None if plans is None else [id(plan) for plan in plans.plans]
    enabled = gc.isenabled()
    gc.disable()  # what only the collector lets go of counts
    gc.collect(0)  # what is made from here on is alone in the youngest generation
    try:
        step()
        gradients = [parameter.grad for parameter in module.parameters()]
        alive = sum(isinstance(found, Tensor) for found in gc.get_objects(generation=0))
    finally:
        if enabled:
            gc.enable()
    del gradients
    return alive if before is None or sorted(before) == sorted(id(plan) for plan in plans.plans) else -1


def _step(module: Any, x: Tensor, way: str, left: list[Any]) -> None:
    if way in ("evaluated", "no_grad"):
        module.train(way == "no_grad")
        with torch.no_grad():
            left.append(loss_of(module(x)).clone())
        module.train()
        return
    x.requires_grad_(way in ("input", "same input"))
    others = {"same argument": x, "same input": x, "other argument": x.detach().flip(0)}
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        named = {"mask": x > 1} if way == "mask" else {"other": others[way]} if way in others else {}
        result = module(x, **named)
        loss = loss_of(result).float()
        if way == "one output":
            values = (
                [result]
                if isinstance(result, Tensor)
                else list(result.values() if isinstance(result, dict) else result)
            )
            loss = values[0].sum()
        if way == "twice" and not module.uses_a_parameter_twice:  # their gradients are summed in another order
            loss = loss + loss_of(module(x * 2))
    if way == "scaled" and loss.grad_fn is not None:
        loss *= 2
    if loss.requires_grad:
        loss.backward(retain_graph=way == "retained")
        if way == "retained":
            loss.backward()
    left += [loss.detach().clone(), None if x.grad is None else x.grad.clone()]
