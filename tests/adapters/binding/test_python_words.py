"""Errors of the adapter's functions name their arguments, never the options of the command line."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import bind, export, plan_of, profile, within_budget
from ogc_plan.planner import read_device
from ogc_plan.planner.costs.devices import SPEC_EXAMPLE
from ogc_plan.planner.errors import AdapterError, OgcPlanError, UsageError
from torch import nn

ARGS = (torch.randn(8, 16),)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("budget", {"budget": "60"}, "write 60% for a share"),
    ("budget", {"budget": "3XB"}, "budget '3XB'"),
    ("budget", {"budget": 0.6}, "budget 0.6"),
    ("budget", {"budget": "1%"}, 'pass budget="'),
    ("kwargs", {"kwargs": {"absent": 1}}, "absent"),
    ("scope", {"scope": "all"}, "scope 'all'"),
    ("scope", {"scope": "total", "budget": "1%"}, 'pass budget="'),
    ("strategy", {"strategy": "magic"}, "strategy 'magic'"),
    ("strategy", {"strategy": "greedy:3"}, 'write strategy="greedy"'),
    ("strategy", {"strategy": "keep-all", "budget": "50%"}, 'use strategy="optimal"'),
    ("strategy", {"strategy": "greedy", "budget": "1%"}, 'with scope="activations" and strategy="optimal"'),
    ("headroom", {"headroom": "min"}, "headroom 'min' is not a size; write headroom=\"5%\""),
    ("headroom", {"headroom": "5"}, "headroom '5' has no unit"),
    ("headroom", {"headroom": 0.05}, "headroom 0.05"),
    ("headroom", {"headroom": "100%"}, "a smaller headroom"),
    ("headroom", {"headroom": "5%", "budget": "min"}, "leave headroom out"),
    ("keep", {"keep": "absent*"}, "keep 'absent*' matches no tensor"),
    ("keep", {"keep": "*", "recompute": "*"}, "matches both keep and recompute"),
    ("recompute", {"recompute": "absent*"}, "recompute 'absent*' matches no tensor"),
    ("recompute", {"recompute": "*"}, "recompute matches "),
    ("optimizer", {"optimizer": "hope"}, "optimizer 'hope'"),
    ("grad_accumulation", {"grad_accumulation": True, "budget": "1B"}, 'pass budget="'),
    ("device", {"device": "abacus"}, "device=read_device(FILE)"),
    ("time_limit_s", {"time_limit_s": 0}, "time limit 0"),
    ("seed", {"seed": -1}, "seed -1"),
    ("effort", {"effort": "none"}, "effort 'none'"),
    ("effort", {"effort": "high", "strategy": "greedy"}, 'use strategy="optimal"'),
    ("on_change", {"on_change": "any"}, "on_change is 'any'"),
    ("max_plans", {"max_plans": 0}, "max_plans is 0"),
    ("bucket", {"bucket": 128}, "bucket is 128"),
    ("compile", {"compile": True}, "has no meaning with compile=True"),
    ("profile", {"profile": "absent.json", "device": None}, 'profile "absent.json"'),
]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())))


def test_every_argument_is_refused_below() -> None:
    arguments = [*inspect.signature(within_budget).parameters][2:]
    assert sorted({name for name, _, _ in REFUSED}) == sorted(arguments)


@pytest.mark.parametrize(("name", "given", "says"), REFUSED)
def test_a_refused_argument_is_called_as_python_calls_it(
    network: nn.Module, name: str, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(OgcPlanError) as refused:
        within_budget(network, ARGS, **{"budget": "60%", "device": "cpu", **given})
    assert (says in str(refused.value), "--" in str(refused.value)) == (True, False)


@pytest.mark.parametrize(
    "given", [{"device": "abacus"}, {"scope": "all"}, {"optimizer": "hope"}, {"strategy": "magic"}]
)
def test_an_unknown_name_is_refused_before_the_first_step(network: nn.Module, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(given))} '{next(iter(given.values()))}' is unknown"):
        within_budget(network, budget="60%", **given)


def test_what_is_no_name_of_a_device_is_refused_then_too(network: nn.Module) -> None:
    with pytest.raises(AdapterError, match=r"device is device\(type='cpu'\); write the name of one"):
        within_budget(network, budget="60%", device=torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [profile, export, bind], ids=["profile", "export", "bind"])
def test_the_other_functions_use_the_words_of_python_too(network: nn.Module, call: Any, tmp_path: Path) -> None:
    given = {"profile": {"budget": "1%"}, "export": {"path": tmp_path / "m.onnx", "profile": "absent.json"}}
    with pytest.raises(OgcPlanError, match=r"^(?!.*--)"):
        call(network, *(("absent.json",) if call is bind else ()), ARGS, **given.get(call.__name__, {}))


def test_the_tensors_that_a_glob_may_match_are_in_the_plan_that_the_remedy_names(network: nn.Module) -> None:
    names = plan_of(within_budget(network, ARGS, budget="100%", device="cpu")).kept
    kept = plan_of(within_budget(network, ARGS, budget="80%", device="cpu", keep=names[0])).kept
    assert names[0] in kept


def test_a_device_from_a_file_gives_the_times(network: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(SPEC_EXAMPLE)
    made = within_budget(network, ARGS, budget="60%", device=read_device(tmp_path / "mine.json"))
    assert plan_of(made).time.source == "roofline:mine"
