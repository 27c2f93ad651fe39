"""Whether dictionaries were written since they were last looked at, at the cost of one call each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .. import torch_private


class Unwritten:
    """A check that is made only when a dictionary was written, or exchanged, since it was last true.

    It costs a fraction of the check. Where PyTorch gives no versions of dictionaries, the check is made each time.
    """

    def __init__(self, dictionaries: Callable[[], Iterable[dict[Any, Any]]], check: Callable[[], bool]) -> None:
        """``dictionaries`` gives what the check looks at, as it is then. Nothing else may change what it finds."""
        self._dictionaries, self._check = dictionaries, check
        self._version_of = torch_private.dictionary_version()
        self._known: list[int] | None = None

    def __bool__(self) -> bool:
        if self._version_of is None:
            return self._check()
        now = list(map(self._version_of, self._dictionaries()))  # before the check, which others may write during
        if now == self._known:
            return True
        self._known = now if (found := self._check()) else None
        return found
