"""Names of ONNX tensors as paths of attributes: a parameter of the file keeps its name in `state_dict`.

Each dot begins a nested module, as in the names of torch. Where that gives no valid path (an empty part, or a name that
a module has already), the part gets underscores behind it; the module's ``onnx_names`` has every name of the file.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


def enter(root: nn.Module, name: str, add: Callable[[nn.Module, str], None]) -> str:
    """Call ``add`` with the module and attribute that stand for an ONNX name, and return the path."""
    *outer, last = name.split(".")
    holder, path = root, list[str]()
    for part in outer:
        part = part or "_"
        while hasattr(holder, part) and type(getattr(holder, part)) is not nn.Module:
            part += "_"
        if not hasattr(holder, part):
            holder.add_module(part, nn.Module())
        holder = holder.get_submodule(part)
        path.append(part)
    last = last or "_"
    while hasattr(holder, last):
        last += "_"
    add(holder, last)
    return ".".join([*path, last])


def found(root: nn.Module, path: tuple[str, ...]) -> Tensor:
    """The tensor at a path."""
    holder: object = root
    for part in path:
        holder = getattr(holder, part)
    assert isinstance(holder, Tensor)
    return holder
