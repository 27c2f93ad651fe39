"""What holds for every committed results file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[2] / "models" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.iterdir()), ids=lambda path: path.name)
def test_no_path_of_a_machine_is_in_it(path: Path) -> None:
    assert re.findall(r"/(?:tmp|home|root|work|mnt|opt|usr|var|Users)/\S*", path.read_text()) == []
