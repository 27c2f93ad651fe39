"""Runs of Python on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any


def on_terminal(*words: Any, **environment: str) -> str:
    """What a run of Python shows on a pseudo-terminal, stdout and stderr together."""
    main_end, process_end = pty.openpty()
    variables = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    running = subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdin=process_end, stdout=process_end, stderr=process_end,
        env={**variables, "TERM": "xterm-256color", "COLUMNS": "90", **environment},
    )  # fmt: skip
    os.close(process_end)
    shown = b""
    while True:
        try:
            part = os.read(main_end, 65536)
        except OSError:  # Linux ends a pseudo-terminal with EIO
            break
        if not part:
            break
        shown += part
    running.wait()
    os.close(main_end)
    return shown.decode()
