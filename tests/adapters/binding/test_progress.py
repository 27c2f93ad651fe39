"""What within_budget shows while it plans and says at the end, and what Ctrl-C does to it."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import original, plan_of, plans_of, within_budget
from ogc_plan.planner.display.terminal import Activity
from ogc_plan.planner.limits import Limits
from torch import Tensor, nn

from tests.cli.terminals import on_terminal
from tests.modules.devices import cpu_only

X = torch.randn(64, 16)
LINE = r"Sequential planned in \d+\.\d s: budget 80%: activation peak .*, gap .*; the budget covers activations"
PROGRAM = """
import sys, time, torch
from ogc_plan.adapters.pytorch import within_budget
from ogc_plan.adapters.pytorch.binding import make_executor
patience, traced = float(sys.argv[1]), make_executor.traced
make_executor._PATIENCE_S = patience
make_executor.traced = lambda *given: time.sleep(0.3) or traced(*given)
module = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(6)))
within_budget(module, (torch.randn(64, 16),), budget="80%")
"""


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1)) for _ in range(8)))


class TestShown:
    def test_a_log_gets_one_record_and_standard_error_nothing(
        self, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with caplog.at_level(logging.INFO, "ogc_plan"):
            within_budget(network(), (X,), budget="80%")
        (record,) = [record for record in caplog.records if record.name == "ogc_plan"]
        assert (record.levelname, capsys.readouterr().err) == ("INFO", "")
        assert re.match(LINE, record.getMessage())

    @pytest.mark.parametrize(("patience", "shows"), [("0.1", True), ("100", False)])
    def test_a_terminal_shows_what_takes_long(self, patience: str, shows: bool) -> None:
        assert ("planning Sequential: tracing" in on_terminal("-c", PROGRAM, patience)) == shows

    def test_a_terminal_keeps_one_line(self) -> None:
        (line,) = on_terminal("-c", PROGRAM, "100").splitlines()
        assert re.match(LINE, line)

    def test_a_notebook_shows_it_in_the_cell(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shown: list[str] = []

        def display(data: dict[str, str], *, raw: bool, display_id: bool = False) -> Any:
            shown.append(data["text/plain"])
            return SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))

        shell = SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
        monkeypatch.setattr("ogc_plan.adapters.pytorch.binding.make_executor._PATIENCE_S", 0)
        within_budget(network(), (X,), budget="80%")
        assert shown[1] == "planning Sequential: tracing"
        assert shown[-2:] == ["", plan_line(shown[-1])]


def plan_line(text: str) -> str:
    """The line itself if it is one on a plan."""
    return text if re.match(LINE, text) else LINE


class Interrupting:
    """Ctrl-C, ``times`` times, once the search has a plan, or before it begins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, *, before: bool = False) -> None:
        self.left = times

        def limits(line: Activity, store_all_ns: int, prefix: str = "", stop: Any = None, keeps: str = "") -> Limits:
            def show(doing: str, best_ns: int | None, bound_ns: int) -> None:
                while self.left and best_ns is not None:
                    self.press()

            if before:
                self.press()
            return Limits(stop=stop, progress=show)

        monkeypatch.setattr(Activity, "limits", limits)

    def press(self) -> None:
        self.left -= 1
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("usual_interrupts")
class TestCtrlC:
    def test_the_first_keeps_the_best_plan_so_far(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Interrupting(monkeypatch, 1)
        made = plan_of(within_budget(network(), (X,), budget="80%", effort="high"))
        assert made.certificate.stopped_on_request

    def test_the_second_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Interrupting(monkeypatch, 2)
        with pytest.raises(KeyboardInterrupt):
            within_budget(network(), (X,), budget="80%", effort="high")

    def test_it_is_told(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        Interrupting(monkeypatch, 1)
        with caplog.at_level(logging.INFO, "ogc_plan"):
            within_budget(network(), (X,), budget="80%", effort="high")
        assert "s, stopped by Ctrl-C: budget 80%" in caplog.records[-1].getMessage()

    @cpu_only("a card takes less workspace: the plan is there before the search begins")
    def test_before_there_is_a_plan_it_raises_and_a_later_step_plans(self, monkeypatch: pytest.MonkeyPatch) -> None:
        smallest = plan_of(within_budget(network(), (X,), budget="min")).peak.activation_nbytes
        trained = within_budget(network(), budget=smallest, scope="activations")
        with monkeypatch.context() as patched:
            Interrupting(patched, 1, before=True)
            with pytest.raises(KeyboardInterrupt):
                trained(X)
        assert plans_of(trained) == ()
        trained(X)
        assert len(plans_of(trained)) == 1

    def test_while_it_is_traced_it_raises_and_the_module_stays_as_it_was(self) -> None:
        class Pressed(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                self.scale = 2.0
                os.kill(os.getpid(), signal.SIGINT)
                return super().forward(x)

        module = Pressed(16, 16)
        before = dict(module.__dict__)
        with pytest.raises(KeyboardInterrupt):
            within_budget(module, (X,), budget="80%")
        assert (module.__dict__, original(module) is module) == (before, True)

    def test_a_strategy_that_cannot_be_stopped_is_interrupted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Interrupting(monkeypatch, 1, before=True)
        with pytest.raises(KeyboardInterrupt):
            within_budget(network(), (X,), budget="80%", strategy="greedy")
