"""Explains why a module cannot be traced or planned exactly, in terms of the module's source."""

from __future__ import annotations

import dis
import inspect
import pathlib
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from ....planner.errors import AdapterError
from .. import torch_private
from ..errors import NOT_THE_USERS, TORCH, UnsupportedModuleError
from ..guards import attribute_reads
from ..guards.tensors_from_elsewhere import TakenFromElsewhereError
from ..guards.values.value_tape import Guard
from ..torch_private import OpOverload, pytree, schema_of
from . import attributes_of_tensors
from .module_scopes import scope_of
from .ways_around import place_in, way_around

_RUN_IN_EAGER = (
    f"{TORCH}/nn/",
    attribute_reads.__file__,
    attributes_of_tensors.__file__,
)
"""Code under a forward that raises what eager training would raise."""
_CALLS_FOR_VALUES = ("cond", "while_loop", "map", "scan", "associative_scan")
"""Functions of torch that call others as often as tensors say, or have rows."""
_PASS_THEM = "pass what its forward takes: in args by position, in kwargs by name"


_OF_ONE_SIZE = {
    "repeat_interleave": "pass its output_size=",
    "_unique.default": "instead of index_fill with a value that is learned, choose by torch.where(mask, value, x)",
    "bincount": "count by torch.nn.functional.one_hot(..., number_of_classes).sum(0)",
    "pack_padded_sequence": "pass padded tensors to the recurrent layer, and leave out what it gives for the padding",
    "nonzero": "select by torch.where(condition, ..., ...), which keeps the shape",
    "masked_select": "select by torch.where(condition, ..., ...), which keeps the shape",
}
"""What to call instead of a call whose result's shape depends on values, by its name."""


def _of_one_size(call: str) -> str:
    found = (remedy for name, remedy in _OF_ONE_SIZE.items() if name in call)
    return next(found, "compute it before, and pass it as an argument")


def signature_error(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Which arguments of the forward of ``module`` are missing or too many; None if they fit."""
    name = f"{type(module).__name__}.forward"
    try:
        signature = inspect.signature(type(module).forward)
    except ValueError:  # a built-in has no signature
        return None
    try:
        signature.bind(module, *args, **kwargs)
        return None
    except TypeError as error:
        fault = str(error)
    own = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    try:
        given = signature.bind_partial(module, *args, **kwargs).arguments
    except TypeError:
        shown = inspect.Signature(own[1:])
        return f"{name}{shown} does not take these arguments: {fault}"
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [p.name for p in own if p.default is p.empty and p.kind not in variable and p.name not in given]
    return f"{name} needs {' and '.join(map(repr, missing))}, missing from the arguments"


def refuse_generators(names: Sequence[str], leaves: Sequence[Any]) -> None:
    """Raise AdapterError for a generator among the arguments, whose numbers a plan could not draw again."""
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, torch.Generator):
            raise _untraceable_argument(name, leaf)


def _untraceable_argument(name: str, leaf: Any) -> AdapterError:
    """The error for an argument leaf of a type that cannot be traced."""
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
    remedy = "pass tensors, numbers, texts and None in tuples, lists and dicts, or keep it in the module"
    if kind == "numpy.ndarray":
        remedy = "pass torch.from_numpy(...) of it, and convert nothing in the forward"
    elif isinstance(leaf, torch.Generator):
        remedy = "draw from torch's own generator, which torch.manual_seed seeds"
    elif kind.startswith("numpy."):
        remedy = "pass float(...) or int(...) of it, or a tensor"
    return AdapterError(f"argument {name} is a {kind}, which a plan cannot take", remedy=remedy)


def first_line(error: BaseException) -> str:
    """An error of torch in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}".rstrip(": ")


def _frames(error: BaseException) -> tuple[list[types.TracebackType], int]:
    """The frames that an error has left, and the number of the last one that is the user's; -1 if none is."""
    found, tb = [], error.__traceback__
    while tb is not None:
        found.append(tb)
        tb = tb.tb_next
    not_theirs = (*NOT_THE_USERS, f"{Path(pathlib.__file__).parent}/")
    users = [i for i, tb in enumerate(found) if not tb.tb_frame.f_code.co_filename.startswith(not_theirs)]
    written = [i for i in users if found[i].tb_frame.f_code.co_filename != "<string>"]  # not made by torch.fx
    return found, next(iter((written or users)[::-1]), -1)


def line_of(error: BaseException) -> str:
    """Where the user's code was when torch raised: `` at model.py:12``; empty if none of it ran."""
    found, last = _frames(error)
    return f" at {Path(found[last].tb_frame.f_code.co_filename).name}:{found[last].tb_lineno}" if last >= 0 else ""


def place_of(module: nn.Module, error: BaseException) -> str:
    """The submodule that ran when torch raised."""
    return _submodule(module, place_in(module, error)[0])


def is_of_the_forward(error: BaseException) -> bool:
    """Whether the user's code raised an error, or torch's modules that it calls: eager training would end in it too."""
    found, last = _frames(error)
    beyond = [tb.tb_frame.f_code.co_filename for tb in found[last + 1 :]]
    if last < 0 or any(name.startswith(NOT_THE_USERS) and not name.startswith(_RUN_IN_EAGER) for name in beyond):
        return False
    # Tracing fails with these in calls of C, which leave no frame.
    by_torch = isinstance(error, (RuntimeError, TypeError, NotImplementedError))
    last_step = found[-1].tb_frame.f_code.co_code[found[-1].tb_lasti]
    return not by_torch or dis.opname[last_step] in ("RAISE_VARARGS", "RERAISE")


def explain_trace_error(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    error: Exception,
) -> None:
    """Raise a clear error for a failed trace if its cause is known. ``names`` are those of the argument leaves."""
    fault = signature_error(module, args, kwargs) if isinstance(error, TypeError) else None
    if fault is not None:
        raise AdapterError(fault, remedy=_PASS_THEM) from error
    if isinstance(error, torch_private.VALUES_NEEDED):
        path, culprit = place_in(module, error)
        sized = isinstance(error, torch_private.DynamicOutputShapeException)
        why = f"the shape of what {error.func} returns depends on values" if sized else (
            f"it needs a number (.item(), float(), a branch) that does not follow from its arguments ({error.func})"
        )  # fmt: skip
        remedy = _of_one_size(str(error.func)) if sized else (
            "return the tensor and take its number outside; let no branch depend on parameters or what they give, "
            "nor on a random number but as a tensor: torch.rand([]) < rate"
        )  # fmt: skip
        raise UnsupportedModuleError(
            f"{_submodule(module, path)} cannot be traced{line_of(error)}: {why}",
            remedy=remedy + way_around(module, culprit),
        ) from error
    devices = re.search(r"two (?:different )?devices,? (\S+?)(?:,| and) ([\w:]+)", str(error))
    if devices:
        raise UnsupportedModuleError(
            f"{type(module).__name__} computes{line_of(error)} with tensors on {devices[1]} and on {devices[2]}",
            remedy=f"move the module and its arguments to one device: .to({max(devices.groups())!r})",
        ) from error
    if ".numpy() is not supported" in str(error):
        raise UnsupportedModuleError(
            f"{type(module).__name__} takes{line_of(error)} the values of a tensor by .numpy(), which cannot be traced",
            remedy="take those of an argument by .tolist(), and compute on others with torch",
        ) from error
    if "set_ on a graph input" in str(error):
        raise UnsupportedModuleError(
            f"{type(module).__name__} gives one of its tensors other memory by set_", remedy="write into it with copy_"
        ) from error
    for name, leaf in zip(names, pytree.tree_leaves((args, kwargs)), strict=True):
        traceable = type(leaf).__module__.partition(".")[0] in ("torch", "builtins")
        if "KNOWN_TYPES" in str(error) and not traceable:
            raise _untraceable_argument(name, leaf) from error
    recurrent = _in_cudnn(module) if "Cannot access data pointer" in str(error) else None
    if recurrent is not None:
        raise UnsupportedModuleError(
            f"{recurrent} of {type(module).__name__} runs in cuDNN, whose recurrent layers cannot be traced",
            remedy="plan and train in `with torch.backends.cudnn.flags(enabled=False)`, or plan the modules around it",
        ) from error
    # An output of a class that torch cannot flatten, such as a cache of keys and values.
    found = re.search(r"Found <class '(?:\w+\.)*(\w+)'> in output, which is not a known type", str(error))
    if found:
        cached = "pass use_cache=False" if "Cache" in found[1] else "return tensors in tuples, lists and dicts"
        raise UnsupportedModuleError(
            f"{type(module).__name__} returns a {found[1]}, whose tensors a plan cannot hand back", remedy=cached
        ) from error
    taken = taken_from_elsewhere(error)
    if taken is not None:
        call, shape = taken
        sparse = "tensor(indices=" in str(error)
        raise UnsupportedModuleError(
            f"{type(module).__name__} reads a {'sparse ' if sparse else ''}tensor of shape {shape} in {call}"
            f"{line_of(error)} that is no argument, parameter, buffer or attribute without gradient, or is read "
            "from elsewhere than the module",
            remedy="use a dense one"
            if sparse
            else "read it from the module (self.weight); register it as a buffer, or what holds it as a submodule "
            "(nn.ModuleList); or pass it as an argument",
        ) from error
    files = [Path(frame.tb_frame.f_code.co_filename) for frame in _frames(error)[0]]
    called = [file.stem for file in files if file.parent.name == "_higher_order_ops" and file.stem in _CALLS_FOR_VALUES]
    if called:
        raise UnsupportedModuleError(
            f"{type(module).__name__} calls torch.{called[0]}{line_of(error)}, and a plan cannot know what that runs",
            remedy="choose by torch.where, or by a Python `if` on the value of an argument; repeat by a Python loop",
        ) from error
    if "mutating a non-functional tensor" in str(error):
        raise UnsupportedModuleError(
            f"{type(module).__name__} writes{line_of(error)} into a tensor that is no buffer of it",
            remedy="register it as a buffer, or the module that holds it as a submodule (nn.ModuleList)",
        ) from error


def taken_from_elsewhere(error: Exception) -> tuple[str, str] | None:
    """The call, and the shape, of a tensor that the forward takes from a list, a cache, a global."""
    if isinstance(error, TakenFromElsewhereError):
        return error.call, error.shape
    found = re.search(
        r"convert all Tensors to FakeTensors first .* Found in (\S+?)\(.*?tensor\(.*?, size=(\(.*?\))",
        str(error),
        re.DOTALL,
    )
    return (found[1], found[2]) if found else None


def _in_cudnn(module: nn.Module) -> str | None:
    """A recurrent layer that cuDNN runs: its class and path."""
    if not torch.backends.cudnn.enabled:
        return None
    for path, child in module.named_modules():
        if isinstance(child, nn.RNNBase) and any(parameter.is_cuda for parameter in child.parameters()):
            return f"{type(child).__name__} {path!r}" if path else type(child).__name__
    return None


def refuse_step_counts(module: nn.Module, guards: Iterable[Guard]) -> None:
    """Raise UnsupportedModuleError for a norm whose averaging factor is the number of the step."""
    for name in dict.fromkeys(name for guard in guards for name in guard.names):
        path, _, key = name.rpartition(".")
        if key == "num_batches_tracked" and getattr(module.get_submodule(path), "momentum", 0.1) is None:
            where = f"submodule {path!r}" if path else "the module"
            raise UnsupportedModuleError(
                f"{where} is a {type(module.get_submodule(path)).__name__} with momentum=None, "
                "whose average depends on the number of the step, a number that a plan would repeat",
                remedy="give it a momentum, as 0.1, or make it with track_running_stats=False",
            )


def refuse_several_cards(module: nn.Module, graph: fx.Graph) -> None:
    """Raise UnsupportedModuleError for a step on several GPUs: workspace and what is reserved are known of one."""
    found = {
        str(leaf.device)
        for node in graph.nodes
        for leaf in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cuda"
    }
    if len(found) > 1:
        raise UnsupportedModuleError(
            f"{type(module).__name__} computes on {' and '.join(sorted(found))}; a plan is of one GPU",
            remedy="plan the modules of each GPU on their own",
        )


def refuse_calls(module: nn.Module, graph: fx.Graph) -> None:
    """Raise UnsupportedModuleError for draws from a generator of the module's own, and for sparse gradients."""
    calls = [node for node in graph.nodes if node.op == "call_function" and isinstance(node.target, OpOverload)]
    for node in calls:
        if node.kwargs.get("generator") is not None:
            own = [
                f"{path}.{key}".lstrip(".")
                for path, child in module.named_modules()
                for key, value in child.__dict__.items()
                if isinstance(value, torch.Generator)
            ]
            named = f"{', '.join(map(repr, own))}" if own else "made outside the module"
            raise UnsupportedModuleError(
                f"{_where(module, node)} draws from a torch.Generator ({named}) in {node.target}; "
                "a plan draws from the default generator alone",
                remedy="draw without generator=, or draw outside and pass what is drawn as an argument",
            )
    sparse = [node for node in calls if _argument(node, "sparse") is True]
    if sparse and any(_makes_sparse(node) for node in calls):
        raise UnsupportedModuleError(
            f"{_where(module, sparse[0])} makes a sparse gradient ({sparse[0].target}); a plan hands back dense ones",
            remedy="make it with sparse=False",
        )


def _where(module: nn.Module, node: fx.Node) -> str:
    return _submodule(module, scope_of(node))


def _submodule(module: nn.Module, path: str) -> str:
    name = type(module).__name__
    return f"submodule {path!r} of {name}" if path else name


def _argument(node: fx.Node, name: str) -> Any:
    """The value of a call's argument of this name; None if the call leaves it out."""
    for position, argument in enumerate(schema_of(node.target).arguments):
        if argument.name == name:
            return node.args[position] if position < len(node.args) else node.kwargs.get(name)
    return None


def _makes_sparse(node: fx.Node) -> bool:
    made = [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    backward = "backward" in schema_of(node.target).name and _argument(node, "sparse") is True
    return backward or any(leaf.layout is not torch.strided for leaf in made)
