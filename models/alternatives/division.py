"""Where a network is divided to be checkpointed: its blocks, and segments of its Sequentials.

Nothing that is checkpointed may begin with a module that acts in place: that module would overwrite the tensor from
which the recomputation starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

CONTAINERS = (nn.Sequential, nn.ModuleList)
POOLINGS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d)

Part = list[nn.Module]
"""Modules that run one after another and are checkpointed together."""


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The blocks a network is built of: what its containers list, and a container of plain layers as a whole."""
    found: list[nn.Module] = []
    for child in module.children():
        parts = list(child.children())
        if not parts:
            continue
        composite = any(next(part.children(), None) is not None for part in parts)
        if isinstance(child, CONTAINERS) and composite:
            found += blocks_of(child)
        else:
            found.append(child)
    return found


def stages_of(block: nn.Module) -> list[Part]:
    """The stages of a Sequential of layers, each closed by a pooling as in VGG; any other block is one stage."""
    if not isinstance(block, nn.Sequential):
        return [[block]]
    layers = list(block)
    starts = [
        place
        for place in range(1, len(layers))
        if isinstance(layers[place - 1], POOLINGS) and not begins_in_place(layers[place:])
    ]
    return _parts(layers, starts)


def chains_of(module: nn.Module) -> list[nn.Sequential]:
    """The outermost Sequentials of which `segments_of` makes several, which is what `checkpoint_sequential` is for."""
    return [chain for chain in _outermost(module) if len(segments_of(layers_of(chain))) > 1]


def _outermost(module: nn.Module) -> list[nn.Sequential]:
    found: list[nn.Sequential] = []
    for child in module.children():
        if isinstance(child, nn.Sequential):
            found.append(child)
        elif not isinstance(child, nn.ModuleList):
            found += _outermost(child)
    return found


def layers_of(chain: nn.Sequential) -> Part:
    """What a Sequential runs, the contents of Sequentials in it one by one."""
    return [layer for part in chain for layer in (part if isinstance(part, nn.Sequential) else [part])]


def segments_of(layers: Sequence[nn.Module]) -> list[Part]:
    """About sqrt(n) segments of n layers, as `checkpoint_sequential` cuts them, each start at the nearest that works.

    Its own are even, but for the last, which also gets what is left over and is not checkpointed.
    """
    count = max(1, round(math.sqrt(len(layers))))
    working = [place for place in range(1, len(layers)) if not begins_in_place(layers[place:])]
    starts: list[int] = []
    for number in range(1, count):
        own = number * (len(layers) // count)
        left = [place for place in working if not starts or place > starts[-1]]
        if left:
            starts.append(min(left, key=lambda place: (abs(place - own), place)))
    return _parts(layers, starts)


def begins_in_place(layers: Sequence[nn.Module]) -> bool:
    """Whether the first of ``layers`` that computes anything writes to what it is given."""
    for layer in layers:
        if isinstance(layer, nn.Sequential) and len(layer):
            return begins_in_place(list(layer))
        if not isinstance(layer, nn.Identity):
            return bool(getattr(layer, "inplace", False))
    return False


def _parts(layers: Sequence[nn.Module], starts: Sequence[int]) -> list[Part]:
    ends = [*starts, len(layers)]
    return [list(layers[start:end]) for start, end in zip([0, *starts], ends, strict=True)]
