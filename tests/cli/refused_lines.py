"""What a command line that cannot be followed ends in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest


def refused(
    main: Callable[[Sequence[str]], object], given: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """The exit code and the last line on standard error; ``{}`` in ``given`` stands for a file in ``folder``."""
    file = folder / "file"
    file.touch()
    with pytest.raises(SystemExit) as ended:
        main([text.format(file) for text in given])
    return ended.value.code, capsys.readouterr().err.splitlines()[-1]
