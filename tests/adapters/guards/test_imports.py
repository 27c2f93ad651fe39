"""What an import does inside a forward is not the forward's doing; a forward that runs in an import is guarded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import InputMismatchError
from torch import Tensor, nn

from tests.modules.generators import seeded
from tests.modules.torch_training import planned, train

ROOT = Path(__file__).resolve().parents[3]
X = (torch.randn(4, 6, generator=seeded(0)),)


class CountingFinder:
    """An import hook that keeps a count, as those of test runners, profilers and loggers do."""

    def __init__(self) -> None:
        self.asked, self.names = 0, {"": 0}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Finds nothing."""
        self.asked += 1
        self.names[name] = self.asked


@pytest.fixture
def import_hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "meta_path", [CountingFinder(), *sys.meta_path])
    yield
    sys.modules.pop("needed_by_a_forward", None)


class Importing(nn.Module):
    """Imports what it needs when it needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        from needed_by_a_forward import scaled  # type: ignore[import-not-found]

        result: Tensor = scaled(self.linear(x)).square().sum()
        return result


@pytest.mark.usefixtures("import_hook")
def test_a_forward_may_import_a_module_past_an_import_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needed_by_a_forward.py").write_text("SCALE = 2.0\ndef scaled(x):\n    return x * SCALE\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = Importing()
    assert train(planned(module, X), X) == train(module, X)


@pytest.mark.usefixtures("import_hook")
def test_what_the_imported_module_holds_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needed_by_a_forward.py").write_text("SCALE = 2.0\ndef scaled(x):\n    return x * SCALE\n")
    monkeypatch.syspath_prepend(tmp_path)
    trained = planned(Importing(), X)
    sys.modules["needed_by_a_forward"].SCALE = 3.0  # type: ignore[attr-defined]
    with pytest.raises(InputMismatchError, match="'SCALE' of needed_by_a_forward changed"):
        trained(*X)


def test_a_script_that_trains_while_it_is_imported_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trains_when_imported.py").write_text(
        "import torch\n"
        "from tests.modules.torch_training import planned\n"
        "SCALE = 2.0\n"
        "class Scaled(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x) * SCALE\n"
        "X = torch.ones(4, 6)\n"
        "trained = planned(Scaled(6, 6), (X,))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import trains_when_imported  # type: ignore[import-not-found]

    trains_when_imported.SCALE = 3.0
    with pytest.raises(InputMismatchError, match="'SCALE' of trains_when_imported changed"):
        trains_when_imported.trained(trains_when_imported.X)


def test_a_module_trains_though_the_path_of_this_package_has_dots_in_it() -> None:
    """Code names its files by such a path, and a guard asks whose code it is that reads."""
    lines = [
        "import sys",
        f"sys.path[:0] = [{str(ROOT / 'tests' / '..' / '.src')!r}]",
        "import ogc_plan, torch",
        "from ogc_plan.adapters.pytorch import within_budget",
        "assert '..' in ogc_plan.__file__",
        "net = within_budget(torch.nn.Linear(3, 3), budget='100%', device='cpu', strategy='greedy')",
        "net(torch.ones(2, 3)).sum().backward()",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
