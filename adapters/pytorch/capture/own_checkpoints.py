"""Takes the checkpoints that a module makes itself (`torch.utils.checkpoint`) out of its trace.

What they recompute is for the plan to decide. The values are the same: a checkpoint draws the same random numbers
again. Only the statistics of a batch norm inside differ, which a recomputation moves twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from .. import torch_private
from ..errors import UnsupportedModuleError


@contextmanager
def without_own_checkpoints(found: Callable[[], None]) -> Iterator[None]:
    """Trace the functions of checkpoints as if they were called; ``found`` is told of each.

    Raises UnsupportedModuleError for a checkpoint that would draw other random numbers when it recomputes.
    """

    def run(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        # A reentrant checkpoint gives no gradients, to parameters neither, if none of its arguments takes one.
        takes_gradient = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
        with around(preserve, None), torch.set_grad_enabled(torch.is_grad_enabled() and takes_gradient):
            return function(*args)

    @contextmanager
    def around(preserve: bool, context: AbstractContextManager[Any] | None) -> Iterator[None]:
        found()
        with context or nullcontext(), nullcontext() if preserve else _RefuseDraws():
            yield

    with torch_private.without_checkpoints(run, around):
        yield


class _RefuseDraws(torch_private.TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise UnsupportedModuleError(
                f"a checkpoint with preserve_rng_state=False draws random numbers ({func}), which its recomputation "
                "draws anew: no plan would have its gradients",
                remedy="leave out preserve_rng_state=False",
            )
        return func(*args, **(kwargs or {}))
