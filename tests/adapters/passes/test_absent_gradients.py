"""What is left of a joint graph without some gradients is what tracing with those outputs detached makes."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.joint import Joint, meta
from ogc_plan.adapters.pytorch.passes.absent_gradients import without_gradients
from torch import Tensor, fx, nn

from tests.modules.torch_modules import FusedSquares
from tests.modules.torch_training import bits

X = torch.randn(3, 6)

CALLS = {
    "linear": lambda net, number, a, b: net.layers[number](a),
    "same linear": lambda net, number, a, b: net.layers[0](a),
    "norm": lambda net, number, a, b: net.norm(a),
    "exp": lambda net, number, a, b: a.exp(),
    "softmax": lambda net, number, a, b: a.softmax(-1),
    "product": lambda net, number, a, b: a * b,
    "sum": lambda net, number, a, b: a + b,
    "matrix product": lambda net, number, a, b: a @ (b.t() @ b),
    "halves": lambda net, number, a, b: torch.cat([half.tanh() for half in a.split(3, -1)], -1),
    "a row": lambda net, number, a, b: a + b[0],
    "turned": lambda net, number, a, b: (a.t() * b.t()).t(),
    "scale": lambda net, number, a, b: a * net.scale,
    "heads": lambda net, number, a, b: net.heads(a, b),
}
Drawn = list[tuple[str, int, int]]


class Network(nn.Module):
    """The drawn calls, each of two values made before, and the values that are returned."""

    def __init__(self, calls: Drawn, returned: Sequence[int]) -> None:
        super().__init__()
        self.calls, self.returned = calls, returned
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in calls)
        self.norm, self.scale = nn.LayerNorm(6), nn.Parameter(torch.ones(6))
        self.cached: list[Tensor] = []

    def forward(self, x: Tensor) -> list[Tensor]:
        values, self.cached = [self.layers[0](x)], []
        for number, (name, one, other) in enumerate(self.calls):
            values.append(CALLS[name](self, number, values[one % len(values)], values[other % len(values)]))
        cached, self.cached = self.cached, []
        return [values[i % len(values)].clone() for i in self.returned] + cached

    def heads(self, a: Tensor, b: Tensor) -> Tensor:
        """Attention of two heads, whose keys and values are returned too, as generation wants them."""
        keys, values = (part.view(3, 2, 3).transpose(0, 1) for part in torch.cat([a.exp(), b.cos()], -1).split(6, -1))
        self.cached += [keys, values]
        return ((keys @ keys.transpose(1, 2)).softmax(-1) @ values).transpose(0, 1).reshape(3, 6)


def structure(joint: Joint) -> list[Any]:
    """The calls that anything reads, what they read, and what the gradients are.

    A ``detach`` is left out: of an output that is detached in any case there is one more.
    """
    number: dict[fx.Node, int] = {}
    for node in _read(joint):
        detached = node.target is torch.ops.aten.detach.default
        number[node] = number[node.args[0]] if detached else len(set(number.values()))
    calls = [
        (node.op, str(node.target), fx.map_arg((node.args, node.kwargs), number.get), _layout(node))
        for node in number
        if node.op == "call_function" and node.target is not torch.ops.aten.detach.default
    ]
    gradients = [(primal, number[node]) for primal, node in joint.gradients]
    return [calls, gradients, [tangent is None for tangent in joint.tangents]]


def left(joint: Joint, absent: Collection[int]) -> list[Any] | None:
    """The `structure` of what is left of a joint graph; None if that is not told."""
    found = without_gradients(joint, absent)
    return None if found is None else structure(found)


def _read(joint: Joint) -> list[fx.Node]:
    reached: set[fx.Node] = set()
    waiting = list(joint.graph.find_nodes(op="output"))
    while waiting:
        new = set(waiting.pop().all_input_nodes) - reached
        reached |= new
        waiting += new
    return [node for node in joint.graph.nodes if node in reached]


def _layout(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return meta(value) if isinstance(value, Tensor) else None


STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(CALLS)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8
)


@settings(max_examples=15, deadline=None)
@given(calls=STEPS, returned=st.lists(st.integers(0, 8), min_size=2, max_size=3), data=st.data())
def test_it_is_as_traced_with_the_outputs_detached(calls: Drawn, returned: list[int], data: st.DataObject) -> None:
    module = Network(calls, returned)
    full = capture(module, (X,))
    absent = data.draw(st.sets(st.integers(0, len(full.outputs) - 1), min_size=1, max_size=len(full.outputs) - 1))
    found = left(full, absent)
    event("not told" if found is None else "told")
    assert found in (None, structure(capture(module, (X,), detached=absent)))


class Classifier(nn.Module):
    """A loss, and the logits that it is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.second(self.first(x).relu())
        return logits.logsumexp(-1).sum(), logits


@pytest.mark.parametrize("absent", [0, 1])
def test_it_is_known_for_a_loss_and_logits(absent: int) -> None:
    module = Classifier()
    assert left(capture(module, (X,)), {absent}) == structure(capture(module, (X,), detached=[absent]))


def test_it_leaves_the_joint_graph_as_it_is() -> None:
    joint = capture(Classifier(), (X,))
    before = structure(joint)
    without_gradients(joint, [1])
    assert structure(joint) == before


class Pair(torch.autograd.Function):
    """Two results; the gradient of the second passes as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, y.clone()

    @staticmethod
    def backward(ctx: Any, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return one * 2, other


class OfPair(nn.Module):
    """Eager gives the second layer a gradient of zeros where its output has none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one, other = Pair.apply(self.first(x), self.second(x))
        return one.exp(), other


class Scaled(torch.autograd.Function):
    """Two results; the gradient of each is found in a call of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return one * 2, other * 3


class OfScaled(OfPair):
    """Has no parameter that two gradients lead to."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return Scaled.apply(self.first(x), self.second(x))  # type: ignore[no-any-return]


def test_calls_of_one_autograd_node_are_known_by_its_number() -> None:
    """Even if it were not known that there is a function of several gradients."""
    joint = replace(capture(OfScaled(), (X,)), takes_several_gradients=False)
    assert without_gradients(joint, [1]) is None


class Parts(nn.Module):
    """Two results of one call, each with a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one, other = self.layer(x).split(3, -1)
        return one.exp(), other.exp()


@pytest.mark.parametrize("module", [OfPair(), Parts()], ids=["a function", "a call"])
@pytest.mark.parametrize("absent", [0, 1])
def test_it_is_not_told_where_zeros_stand_for_one_of_several_gradients(module: nn.Module, absent: int) -> None:
    assert without_gradients(capture(module, (X,)), [absent]) is None


def test_it_is_known_for_attention_that_returns_its_keys_and_values() -> None:
    """Their gradients lie in memory otherwise than those of the products, and are viewed with no copy."""
    module = Network([("heads", 0, 0)], [1])
    assert left(capture(module, (X,)), {1, 2}) == structure(capture(module, (X,), detached=[1, 2]))


def test_it_is_not_told_where_a_gradient_of_another_layout_reaches_a_product() -> None:
    class Turned(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = super().forward(x)
            return h.exp(), h.t().contiguous()

    assert without_gradients(capture(Turned(6, 4), (X,)), [1]) is None


class Balanced(torch.autograd.Function):
    """Passes its first argument on; the second, a loss of its own, gets a gradient of ones, as routers balance load."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.ones_like(ctx.saved_tensors[0])


class OfBalanced(OfPair):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x)
        return h.exp(), Balanced.apply(h, self.second(x).square().mean()) * 2


class OfFusedLoss(OfPair):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x)
        loss = FusedSquares.apply(h)
        return self.second(h).exp(), loss


class Hooked(OfPair):
    """A hook gives a gradient of ones."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.second(x)
        h.register_hook(lambda gradient: torch.ones(3, 6, device=gradient.device))
        return self.first(x).exp(), (h * 3).tanh()


class Rearranged(OfPair):
    """Its steps are traced again: the plan cannot be followed without."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p, q = torch.cat([self.first(x)] * 2, 1).chunk(2, 1)
        _, t = torch.cat([q, p], 1).chunk(2, 1)
        return t, p * 2


@pytest.mark.parametrize("module", [OfBalanced(), OfFusedLoss(), Hooked()], ids=lambda module: type(module).__name__)
def test_it_is_not_told_where_a_gradient_does_not_follow_from_another(module: nn.Module) -> None:
    assert without_gradients(capture(module, (X,)), [1]) is None


@pytest.mark.values
@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("kind", [OfPair, Parts, OfBalanced, OfFusedLoss, Hooked, Rearranged, Classifier])
def test_a_loss_of_one_output_gives_the_gradients_of_eager(kind: type[nn.Module], used: int) -> None:
    module = kind()
    bound = within_budget(copy.deepcopy(module), budget="100%", device="cpu", strategy="greedy")
    for net in (module, bound):
        net(X)[used].square().sum().backward()
    found = [[None if p.grad is None else bits(p.grad) for p in net.parameters()] for net in (module, bound)]
    assert found[0] == found[1]


class Attention(nn.Module):
    """Attention that returns its keys and values too, as a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.last = (nn.Linear(8, 8, bias=False) for _ in range(4))

    def forward(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = self.key(source), self.value(source)
        return self.last((self.query(x) @ keys.transpose(-1, -2)).softmax(-1) @ values), keys, values


class Scaling(nn.Module):
    """The norm of T5."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Caching(nn.Module):
    """A layer of T5's encoder and one of its decoder, which returns the caches beside the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.own, self.across = (Attention() for _ in range(3))
        self.norms = nn.ModuleList(Scaling() for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        first, encoded, second, third = self.norms
        source = first(x)
        source = encoded(x + self.encoder(source, source)[0])
        y = second(0.5 * x)
        y, *own = self.own(y, y)
        y = y + 0.5 * x
        z, *across = self.across(third(y), source)
        return (y + z).square().mean(), [*own, *across]


def test_a_backward_waits_for_what_it_takes_where_a_cache_is_left_out() -> None:
    torch.manual_seed(0)
    module, x = Caching(), torch.randn(2, 6, 8)
    module(x)[0].backward()
    expected = [bits(parameter.grad) for parameter in module.parameters()]
    module.zero_grad()
    within_budget(module, (x,), budget="55%", device="a100")(x)[0].backward()
    assert [bits(parameter.grad) for parameter in module.parameters()] == expected
