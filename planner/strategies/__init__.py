"""Strategies by name: one module and one signature each; a new one is registered here.

Modules are imported only when a strategy is asked for, so naming them costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from ..errors import UsageError
from ..solution import Solution

STRATEGIES: dict[str, str] = {
    "optimal": "optimal.strategy",
    "greedy": "baselines.greedy",
    "layers": "baselines.per_layer",
    "knapsack": "baselines.torch_knapsack",
    "checkmate": "baselines.checkmate",
    "ogc": "baselines.ogc",
    "sqrt": "baselines.sqrt_n",
    "rotor": "baselines.rotor",
    "speed": "baselines.keep_expensive",
    "segments": "baselines.checkpoint_sequential",
    "keep-all": "baselines.keep_all",
}
"""Strategy name -> module of this package that holds its `solve`."""

FIXED = ("ogc", "sqrt", "speed", "segments", "keep-all")
"""Strategies that take no budget: each has one plan, with a peak of its own."""


def strategy_named(text: str) -> Callable[..., Solution]:
    """The `solve` of a strategy; ``segments:4`` passes a number of segments.

    Raises UsageError for a name or an argument that does not exist.
    """
    name, colon, argument = text.partition(":")
    if name not in STRATEGIES:
        known = ", ".join("segments:K" if known == "segments" else known for known in STRATEGIES)
        raise UsageError(f"strategy {text!r} is unknown", remedy=f"choose one of {known}")
    solve: Callable[..., Solution] = import_module(f".{STRATEGIES[name]}", __package__).solve
    if name == "segments":
        if colon and not (argument.isascii() and argument.isdigit() and 1 <= int(argument) <= 10**6):
            raise UsageError(f"strategy {text!r} needs a number of segments", remedy="write for example segments:4")
        return partial(solve, segments=int(argument) if colon else 2)
    if colon:
        raise UsageError(f"strategy {name!r} takes no argument, got {argument!r}", remedy=f"write --strategy {name}")
    return solve
