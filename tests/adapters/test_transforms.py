"""A bound module under torch.func and other transforms: exact with exchanged parameters, else refused in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwad
from ogc_plan.adapters.pytorch import InputMismatchError
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.nn.utils import parametrizations, parametrize

from tests.modules.generators import seeded
from tests.modules.torch_training import bits, planned

X = (torch.randn(4, 6, generator=seeded(0)),)


class Network(nn.Module):
    """Two layers with a norm between them: [4, 6] -> []."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm: nn.Module = nn.BatchNorm1d(6)

    def forward(self, x: Tensor, *, shift: Tensor | None = None) -> Tensor:
        return self.second(self.norm(self.first(x)).tanh()).square().mean()


def exchanged(module: nn.Module, names: str) -> list[bytes | None]:
    """Gradients of tensors in the parameters' places and of those, and the buffers of both, after one step."""
    state = {
        name: tensor.detach().clone().requires_grad_(tensor.requires_grad)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if re.match(names, name)
    }
    scaled = {name: tensor * 2 if tensor.requires_grad else tensor for name, tensor in state.items()}
    functional_call(module, scaled, X).backward()
    tensors = [*state.values(), *module.parameters(), *module.buffers()]
    return [bits(tensor.grad if tensor.grad is not None else tensor.detach()) for tensor in tensors] + [
        None if tensor.grad is None else bits(tensor.grad) for tensor in tensors
    ]


@pytest.mark.parametrize("names", [".*", ".*weight", "norm.running"])
def test_exchanged_parameters_get_the_gradients_of_eager_training(names: str) -> None:
    torch.manual_seed(0)
    module = Network()
    trained = planned(module, X)
    found = exchanged(trained, names)
    module.zero_grad()
    torch.manual_seed(0)
    assert found == exchanged(Network(), names)


def dual(module: nn.Module) -> Any:
    with fwad.dual_level():
        return module(fwad.make_dual(X[0], torch.ones_like(X[0])))


def of_parameters(module: nn.Module) -> Any:
    return grad(lambda parameters: functional_call(module, parameters, X))(dict(module.named_parameters()))


TRANSFORMS: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "a gradient": (lambda module: grad(module)(*X), r"torch\.func"),
    "a gradient of parameters": (of_parameters, r"torch\.func"),
    "a batch": (lambda module: vmap(module, randomness="different")(torch.stack([*X, *X])), r"torch\.func"),
    "a Jacobian": (lambda module: jacrev(module)(*X), r"torch\.func"),
    "a directional derivative": (lambda module: jvp(module, X, X), r"torch\.func"),
    "dual numbers": (dual, "forward-mode differentiation"),
    "a trace of TorchScript": (lambda module: torch.jit.trace(module, X), r"torch\.jit\.trace"),
    "an export": (lambda module: torch.export.export(module, X), r"torch\.export"),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_a_planned_step_cannot_run_under_is_refused(transform: str) -> None:
    do, message = TRANSFORMS[transform]
    with pytest.raises(InputMismatchError, match=f"a planned step cannot run (inside|under) .*{message}"):
        do(planned(Network(), X))


def test_parametrized_tensors_that_forwards_share_are_refused() -> None:
    module = planned(nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 6))), (torch.ones(4, 6),))
    with parametrize.cached(), pytest.raises(InputMismatchError, match=r"inside parametrize\.cached\(\)"):
        module(torch.ones(4, 6))


def test_other_modules_may_run_where_parametrized_tensors_are_shared() -> None:
    module = nn.Sequential(nn.Linear(6, 6))
    with parametrize.cached():
        found = planned(module, (torch.ones(4, 6),))(torch.ones(4, 6))
    assert bits(found) == bits(module(torch.ones(4, 6)))


def test_the_planned_module_itself_may_be_transformed_as_the_remedy_says() -> None:
    module = Network()
    module.norm = nn.Identity()  # torch.func refuses running statistics itself
    planned(module, X)
    assert of_parameters(module).keys() == dict(module.named_parameters()).keys()


@pytest.mark.parametrize(("args", "message"), [((), "needs 'x', missing"), (X * 2, "these arguments: too many")])
def test_a_step_whose_arguments_do_not_fit_says_so(args: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(InputMismatchError, match=message):
        planned(Network(), X)(*args)
