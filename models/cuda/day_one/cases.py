"""The networks of the first day, their precisions, and plans of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.planner.errors import InfeasibleBudgetError
from ogc_plan.planner.problem import Scope
from torch import Tensor, nn

from models.cuda.day_one.stage import NETWORKS
from models.networks.gpt2 import GPT2Config
from models.training.cases import CASES, Case, gpt_case, resnet_case, unet_case

STORE_ALL = "store-all"
WEIGHT_SEED = 1
chosen: tuple[str, ...] = NETWORKS
"""The networks that this process runs."""
Save = Callable[[Any], None]
"""Keeps what a stage has found so far."""


def _bfloat16() -> AbstractContextManager[Any]:
    return torch.autocast("cuda", dtype=torch.bfloat16)


PRECISIONS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {"bfloat16": _bfloat16, "float32": nullcontext}
"""What most people train in comes first."""


def precisions(small: bool) -> list[str]:
    """The precisions to run in."""
    return list(PRECISIONS)[: 1 if small else None]


def full_size(small: bool) -> dict[str, Case]:
    """ResNet-50, a GPT of 124M parameters and a U-Net at sizes that people train; with ``small``, tiny ones."""
    if small:
        return tiny()
    gpt = GPT2Config(vocabulary=50257, context=1024, layers=12, heads=12, width=768, dropout=0.1)
    cases = resnet_case(32, 224), gpt_case(4, gpt), unet_case(8, 256, (64, 128, 256, 512))
    return {case.name: case for case in cases if case.name in chosen}


def moderate(small: bool) -> dict[str, Case]:
    """The same networks at the sizes of the CPU figures."""
    return tiny() if small else {name: case for name, case in CASES.items() if name in chosen}


def tiny() -> dict[str, Case]:
    """Networks of the same kinds that are planned in a second."""
    gpt = GPT2Config(vocabulary=512, context=128, layers=3, heads=4, width=128, dropout=0.1)
    cases = resnet_case(32, 64, (1, 1, 1, 1)), gpt_case(16, gpt), unet_case(16, 64, (8, 16, 32))
    return {case.name: case for case in cases if case.name in chosen}


@dataclass(frozen=True, slots=True)
class Subject:
    """A case on the card: its module, its arguments, and the precision that its forward runs in."""

    case: Case
    module: nn.Module
    arguments: tuple[Tensor, ...]
    precision: str

    @classmethod
    def of(cls, case: Case, precision: str) -> Subject:
        """The case with the same weights each time."""
        torch.manual_seed(WEIGHT_SEED)
        return cls(case, case.build().to("cuda"), case.arguments(0, "cuda"), precision)

    def planned(self, budget: str | int, scope: Scope | None = Scope.ACTIVATIONS) -> nn.Module:
        """The module trained by a plan within a budget; `STORE_ALL` recomputes nothing."""
        with PRECISIONS[self.precision]():
            if budget == STORE_ALL:
                return within_budget(self.module, self.arguments, budget="100%", scope=scope, strategy="keep-all")
            return within_budget(self.module, self.arguments, budget=budget, scope=scope)

    def within(self, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The forward in this precision."""

        def run(*arguments: Tensor) -> Tensor:
            with PRECISIONS[self.precision]():
                return forward(*arguments)

        return run

    def step(self, forward: Callable[..., Tensor]) -> Callable[[], Tensor]:
        """One forward and backward."""
        inside = self.within(forward)

        def run() -> Tensor:
            loss = inside(*self.arguments)
            loss.backward()
            return loss

        return run


def line_of(error: BaseException) -> str:
    """An error as one line of at most 300 characters; the usual one in two words."""
    if isinstance(error, InfeasibleBudgetError):
        return "proven infeasible" if error.proven else "no plan found"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
