"""Decides which placements of the batch a file is read with: the likeliest ones under which every node fits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps as quoted
from typing import Generic, TypeVar

from ...errors import InvalidModelError, OgcPlanError, OversizeError, UsageError
from .batch_placements import Sizes
from .rebatch import Choice, Conflict, Rebatch

READINGS = 60
"""At most so many readings find the placements; a file that needs more is refused by its first conflict."""

SUSPECTS = 6
"""So many of the nearest choices may explain a conflict, which need not be a fault."""

R = TypeVar("R")
Decisions = Mapping[Hashable, int]


@dataclass(slots=True)
class _Attempt(Generic[R]):
    """One reading: its result, or why there is none."""

    rebatch: Rebatch
    result: R | None = None
    error: OgcPlanError | None = None
    conflict: str = ""


class BatchSearch(Generic[R]):
    """Finds a reading of a file at a new batch.

    Args:
        change: the batch of the file, and the new one.
        before: the shapes of a reading at the old batch.
        read: reads the file; raises OgcPlanError or Conflict.
        sizes: the bytes of each tensor of a reading.
    """

    def __init__(
        self,
        change: tuple[int, int],
        before: Mapping[str, Sizes],
        read: Callable[[Rebatch], R],
        sizes: Callable[[R], object],
    ) -> None:
        self._change, self._before, self._read, self._sizes = change, before, read, sizes
        self._left = READINGS
        self._failed: set[tuple[frozenset[tuple[Hashable, int]], frozenset[str]]] = set()

    def run(self) -> R:
        """The reading. Raises the error of the first one, or UsageError where two placements fit and differ."""
        first = self._attempt({}, frozenset())
        found = self._from(first, {}, frozenset())
        if found is None:
            error = first.error
            if isinstance(error, InvalidModelError) and not isinstance(error, OversizeError):
                # The file fits its own batch, so it is not at fault.
                raise self._unplaced(error, first.rebatch.suspects())
            raise error or self._across_samples(first.conflict)
        attempt, decisions, accepted = found
        if accepted and decisions and self._change[0] == 1:
            # At batch 1 sizes say nothing, and what mixes samples says nothing either: no evidence is left.
            raise self._across_samples(min(accepted))
        self._refuse_ambiguous(attempt, decisions, accepted)
        assert attempt.result is not None
        return attempt.result

    def _unplaced(self, error: InvalidModelError, suspects: Sequence[Choice]) -> UsageError:
        """The error for a file that no placement found fits; it names what may have been placed wrong."""
        old, new = self._change
        places = "; ".join(map(str, suspects[:2]))
        tried = f", wherever the batch is placed ({places})" if places else ""
        return UsageError(
            f"the batch of the file, {old}, cannot be changed to {new}: {error.message}{tried}",
            remedy=f"export the model at batch {new}, or with a named batch",
        )

    def _across_samples(self, node: str) -> UsageError:
        old, new = self._change
        return UsageError(
            f"the batch of the file, {old}, cannot be changed: node {quoted(node)} would work across samples",
            remedy=f"export the model at batch {new}, or with a named batch",
        )

    def _attempt(self, decisions: Decisions, accepted: frozenset[str]) -> _Attempt[R]:
        self._left -= 1
        rebatch = Rebatch(self._change, self._before, decisions, accepted=accepted)
        try:
            return _Attempt(rebatch, result=self._read(rebatch))
        except Conflict as conflict:
            return _Attempt(rebatch, conflict=str(conflict))
        except OgcPlanError as error:
            return _Attempt(rebatch, error=error)

    def _from(
        self, attempt: _Attempt[R], decisions: Decisions, accepted: frozenset[str]
    ) -> tuple[_Attempt[R], Decisions, frozenset[str]] | None:
        """A reading that fits, reached from one attempt by other decisions on what its fault depends on.

        A node for which none helps does work across samples, as the loss of contrastive learning does.
        """
        if attempt.result is not None:
            return attempt, decisions, accepted
        suspects = {choice.form: choice for choice in attempt.rebatch.suspects()}
        for form, choice in [*suspects.items()][: SUSPECTS if attempt.conflict else None]:
            for other in range(choice.taken + 1, len(choice.options)):
                found = self._tried({**decisions, form: other}, accepted)
                if found is not None:
                    return found
        return self._tried(decisions, accepted | {attempt.conflict}) if attempt.conflict else None

    def _tried(
        self, decisions: Decisions, accepted: frozenset[str]
    ) -> tuple[_Attempt[R], Decisions, frozenset[str]] | None:
        key = frozenset(decisions.items()), accepted
        if self._left <= 0 or key in self._failed:
            return None
        self._failed.add(key)
        return self._from(self._attempt(decisions, accepted), decisions, accepted)

    def _refuse_ambiguous(self, attempt: _Attempt[R], decisions: Decisions, accepted: frozenset[str]) -> None:
        assert attempt.result is not None
        sizes = self._sizes(attempt.result)
        for choice in {choice.form: choice for choice in attempt.rebatch.choices.values() if choice.doubtful}.values():
            for other in range(len(choice.options)):
                changed = {**decisions, choice.form: other}
                key = frozenset(changed.items()), accepted
                if other == choice.taken or key in self._failed or self._left <= 0:
                    continue
                found = self._attempt(changed, accepted)
                if found.result is not None and self._sizes(found.result) != sizes:
                    raise self._ambiguous(choice)

    def _ambiguous(self, choice: Choice) -> UsageError:
        old, new = self._change
        return UsageError(
            f"where the batch is cannot be told from a file at batch {old}: {choice}",
            remedy=f"export the model at batch {new}, or at another one than {old}, or with a named batch",
        )
