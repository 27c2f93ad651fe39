"""The quick check of a module's settings is true of a module left alone, and of none that changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from ogc_plan.adapters.pytorch.execution.module_settings import QuickCheck, Setting, hooks_of
from torch import nn


class Alike(nn.Linear):
    """Each is equal to every other."""

    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)


def network() -> nn.Sequential:
    """A module with submodules of submodules, an empty place, a hook, and none."""
    inner = nn.Sequential(Alike(3, 3), nn.Dropout(0.5), nn.Sequential())
    made = nn.Sequential(nn.BatchNorm1d(3), inner, nn.Sequential(nn.ReLU()), Alike(3, 3))
    made.register_module("empty", None)
    made[0].register_forward_hook(_hook)
    return made


def _hook(*_: Any) -> None:
    """Changes nothing."""


def check_of(module: nn.Module) -> QuickCheck:
    """The check, with the modes of all submodules."""
    found = [
        Setting(path, type(child) if path else None, child.training if path else None, hooks_of(child) if path else ())
        for path, child in module.named_modules()
    ]
    return QuickCheck(list(module.modules()), found)


def test_it_is_true_of_a_module_left_alone() -> None:
    assert check_of(network())


def test_it_is_true_again_once_a_change_was_taken_back() -> None:
    module = network()
    check = check_of(module)
    module[1][1].eval()
    verdicts = [bool(check)]
    module[1][1].train()
    assert [*verdicts, bool(check), bool(check)] == [False, True, True]


def test_a_hook_is_seen_in_registries_that_were_exchanged_before() -> None:
    module = network()
    check = check_of(module)
    assert check
    module[1][1]._forward_hooks = OrderedDict()
    assert not check  # another registry, though as empty
    module[1][1].register_forward_hook(_hook)
    assert not check


@pytest.mark.parametrize("root", ["a mode", "a hook"])
def test_the_root_may_have_another(root: str) -> None:
    module = network()
    check = check_of(module)
    if root == "a mode":
        module.training = False
    else:
        module.register_forward_hook(_hook)
    assert check


def moved(net: Any) -> None:
    """A submodule goes to another parent, and all modules are in the same order."""
    child, first = net[1]._modules.pop("2"), net[2]._modules.pop("0")
    net[2]._modules.update({"2": child, "0": first})


def renamed(net: Any) -> None:
    children = net[1]._modules
    children["other"] = children.pop("2")


CHANGES: dict[str, Callable[[Any], Any]] = {
    "the mode of a submodule": lambda net: net[1][1].eval(),
    "the class of a submodule": lambda net: setattr(net[1][1], "__class__", nn.AlphaDropout),
    "a hook": lambda net: net[1].register_forward_pre_hook(_hook),
    "a second hook": lambda net: net[0].register_forward_hook(_hook),
    "a hook less": lambda net: net[0]._forward_hooks.clear(),
    "another registry of hooks": lambda net: setattr(net[1][1], "_backward_hooks", {0: _hook}),
    "a registry of hooks less": lambda net: delattr(net[1][1], "_backward_hooks"),
    "another submodule that is equal": lambda net: net[1].__setitem__(0, Alike(3, 3)),
    "another submodule of the root": lambda net: net.__setitem__(3, Alike(3, 3)),
    "a submodule more": lambda net: net[1].append(nn.ReLU()),
    "a first submodule": lambda net: net[1][2].append(nn.ReLU()),
    "a submodule in an empty place": lambda net: setattr(net, "empty", nn.ReLU()),
    "a submodule less": lambda net: net[1].pop(2),
    "a submodule of another name": renamed,
    "a submodule with another parent": moved,
    "two that took each other's place": lambda net: net[1]._modules.update({"0": net[1][1], "1": net[1][0]}),
    "another dictionary of attributes": lambda net: setattr(net[1][1], "__dict__", dict(net[1][1].__dict__)),
    "another registry of parameters": lambda net: setattr(net[1][0], "_parameters", dict(net[1][0]._parameters)),
    "another registry of buffers": lambda net: setattr(net[0], "_buffers", dict(net[0]._buffers)),
    "another registry of submodules": lambda net: setattr(net[1], "_modules", dict(net[1]._modules)),
}


@pytest.mark.parametrize("looked", ["before", "never"])
@pytest.mark.parametrize("change", CHANGES)
def test_it_is_not_true_after_a_change_of(change: str, looked: str) -> None:
    module = network()
    check = check_of(module)
    if looked == "before":
        assert check  # from here on it looks only for what was written
    CHANGES[change](module)
    assert not check
