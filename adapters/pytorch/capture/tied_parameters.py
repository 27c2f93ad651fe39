"""Traces a parameter that a module holds under several names as one input.

Tracing gives every name an input and a gradient of its own. Autograd would add those gradients up after the step,
where no plan sees the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import fx, nn
from torch.nn.modules.module import register_module_forward_pre_hook


@contextmanager
def one_name_each(module: nn.Module) -> Iterator[None]:
    """Remove every name but the first of a tied parameter, except while the forward of ``module`` runs.

    The caller restores the names. The names of one submodule under several paths stay. The names of a graph module
    stay, because its calls run without its forward (merge_tied_parameters).
    """
    first: dict[int, tuple[nn.Module, str]] = {}
    others: list[tuple[nn.Module, str, nn.Module, str]] = []
    for owner in [] if isinstance(module, fx.GraphModule) else list(module.modules()):
        for key, parameter in list(owner._parameters.items()):
            if parameter is not None and id(parameter) in first:
                others.append((owner, key, *first[id(parameter)]))
                del owner._parameters[key]
            elif parameter is not None:
                first[id(parameter)] = (owner, key)

    def fill(child: nn.Module, _: object) -> None:
        for owner, key, source, name in others if child is module else ():
            owner._parameters[key] = source._parameters[name]

    def empty(*_: object) -> None:
        for owner, key, _source, _name in others:
            owner._parameters.pop(key, None)

    # The first hook is a global one: it runs before the hooks that look at the module.
    with register_module_forward_pre_hook(fill), module.register_forward_hook(empty, always_call=True):
        yield
