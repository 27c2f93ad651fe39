"""Sizes that a remedy offers, tried on the model before they are offered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...errors import ModelError, OgcPlanError, UnboundDimensionError, UnsupportedOpError, shell_word

SIZES = (64, 512, 224, 16, 100, 4, 2, 1)
"""Sizes to try for a dimension: of channels, texts, images; then smaller ones."""
COMMON = tuple((batch, size) for batch in (8, 1, 2) for size in (512, *SIZES))
"""Sizes to try for a batch and any other dimension of an input."""
_TRIALS, _SECONDS = 100, 5.0
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Values for named dimensions, and whole shapes."""

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def options(self) -> str:
        """As options of the command line."""
        dims = [f"--dim {shell_word(f'{name}={size}')}" for name, size in self.dims.items()]
        return " ".join(
            (*dims, *(f"--shape {shell_word(name)}={'x'.join(map(str, s)) or '1'}" for name, s in self.shapes.items()))
        )

    def asked(self) -> str:
        """The same options with a letter for every size."""
        dims = [f"--dim {shell_word(name)}=N" for name in self.dims]
        return " ".join(
            (*dims, *(f"--shape {shell_word(n)}={'x'.join('N' * len(s)) or '1'}" for n, s in self.shapes.items()))
        )

    def and_then(self, more: Sizes) -> Sizes:
        """Both."""
        return Sizes({**self.dims, **more.dims}, {**self.shapes, **more.shapes})


class UnboundSizesError(UnboundDimensionError):
    """An input without a size; ``offers`` are sizes that may fit, the likeliest first."""

    def __init__(self, message: str, offers: Sequence[Sizes], further: str = "") -> None:
        super().__init__(message)
        self.offers, self.ending, self.instead = offers, f" with your sizes{further}", ""


class UnknownSizesError(UnsupportedOpError):
    """A tensor inside whose shape is not known; ``offers`` are shapes that may fit, the likeliest first."""

    def __init__(self, message: str, offers: Sequence[Sizes], instead: str = "") -> None:
        super().__init__(message)
        self.offers, self.ending, self.instead = offers, " with its sizes, to plan for one shape", instead


def with_tried_remedy(error: UnboundSizesError | UnknownSizesError, read: Callable[[Sizes], object]) -> ModelError:
    """``error`` with a remedy by which ``read`` reads the model, if one is found in a few trials.

    A size that leads to the question for another one is offered together with that one. If no trial reads the whole
    model, the first is offered that fails for an op which is refused at every size.
    """
    until, trials = time.monotonic() + _SECONDS, iter(range(_TRIALS))

    def found(asked: UnboundSizesError | UnknownSizesError, given: Sizes) -> Sizes | None:
        for offer in asked.offers:
            if time.monotonic() > until or next(trials, None) is None:
                return None
            offered = given.and_then(offer)
            try:
                read(offered)
            except (UnboundSizesError, UnknownSizesError) as next_question:
                further = found(next_question, offered)
                if further is not None:
                    return further
            except UnsupportedOpError:  # the sizes may be right, and something else in the way
                leading_on.append(offered)
            except OgcPlanError:
                continue
            else:
                return offered
        return None

    leading_on: list[Sizes] = []
    sizes = found(error, Sizes()) or next(iter(leading_on), None)
    error.remedy = (
        error.instead or f"pass {error.offers[0].asked()} with the sizes that the model was made for"
        if sizes is None
        else f"pass {sizes.options()}{error.ending if sizes.shapes else ''}"
    )
    return error
