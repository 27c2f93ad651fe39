"""``python -m tests.conformance write FOLDER`` writes the cases, ``check FOLDER`` checks what a runtime left there."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conformance.cases import CASES, write_cases
from tests.conformance.check import complaints


def main(command: str, folder: Path) -> int:
    """Run one command; the exit code is 1 where a case fails."""
    if command == "write":
        write_cases(folder)
        return 0
    found = {name: complaints(folder / name) for name in CASES}
    for name, wrong in found.items():
        print(f"{name}: {'; '.join(wrong) or 'as planned'}")
    return int(any(found.values()))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        sys.exit("usage: python -m tests.conformance write|check FOLDER")
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
