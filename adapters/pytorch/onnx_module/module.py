"""The module of an ONNX file: its parameters, and the planner's calls of it in order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from json import dumps as quoted
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....planner.errors import PlanMismatchError, UsageError
from ....planner.graph import View
from ....planner.onnx_import.document.model_file import parse_model, read_file
from ....planner.onnx_import.reader import ForwardCalls, forward_calls
from ....planner.onnx_import.values.values import Call, Value
from ..capture.module_scopes import within_call
from .names import enter, found
from .node import InTraining, Node, Run, refused, torch_dtype
from .op_table import builder_of, written
from .weights import as_tensor, tensor_of

_STATISTICS = (3, 4)
_READ_LONGER = frozenset({"STFT"})
"""Ops whose shape the onnx package infers too long: of a one-sided spectrum it takes the length of the frame."""
_WITHOUT_KERNELS = frozenset({"uint16", "uint32", "uint64"})


def from_onnx(
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
) -> OnnxModule:
    """A module that computes what an ONNX file does, and trains.

    It takes the inputs of the file in their order and returns its output, or a tuple of its outputs. Parameters keep
    their names (`names`); running statistics are buffers. Shapes are those that the arguments give.

    Args:
        path: the file; weights beside it are read.
        batch: the leading dimension of the inputs.
        dims: sizes of symbolic dimensions.
        inputs: whole shapes of inputs.

    Returns:
        The module, in training mode.

    Raises:
        UnsupportedOpError: torch cannot run an op of the file; the message names its node.
        ModelError: the file cannot be read, as for a plan.

    Example:
        >>> module = from_onnx("fixed.onnx", batch=2)
        >>> len(module(*(torch.zeros(shape) for shape in module.input_shapes)))
        2
    """
    content = read_file(Path(path))
    model = parse_model(content, quoted(Path(path).name), weights=True)
    read = forward_calls(model, path, batch=batch, dims=dims, inputs=inputs)
    source = _Source(Path(path).absolute(), sha256(content).hexdigest(), batch, dims, inputs)
    with torch.no_grad():
        return OnnxModule(read, source)


@dataclass(frozen=True, slots=True)
class _Source:
    """What a module was built from: the file and its hash, and the arguments of `from_onnx`."""

    path: Path
    digest: str
    batch: int | None
    dims: Mapping[str, int] | None
    inputs: Mapping[str, tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class _Step:
    """One call: slots that it reads (-1 for none) and writes, and those that nothing reads after it.

    ``where`` is the call without its values, and ``shape`` that of its first output. ``part_of`` names the op of a plan
    that it belongs to.
    """

    where: Call
    part_of: str
    shape: tuple[int, ...]
    run: Run
    trains: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...]


class _Steps(tuple[_Step, ...]):
    """The steps of a file, which copies of a module share. Pickled, they are built again from the file."""

    source: _Source

    def __deepcopy__(self, memo: dict[int, Any]) -> _Steps:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _steps_again, (self.source,)


def _steps_again(source: _Source) -> _Steps:
    made = from_onnx(source.path, batch=source.batch, dims=source.dims, inputs=source.inputs)
    if made.onnx_sha256 != source.digest:
        raise PlanMismatchError(
            f"{quoted(str(source.path))} has changed since the module was pickled", remedy="read it with from_onnx"
        )
    return made.steps


class OnnxModule(nn.Module):  # type: ignore[misc]
    """What `from_onnx` returns.

    ``onnx_names`` has the name in the file of each parameter and running statistic; ``input_names`` and
    ``input_shapes`` are those of the arguments. ``steps`` are the calls in order. ``onnx_fingerprint`` is that of plans
    of the file at these shapes.
    """

    def __init__(self, read: ForwardCalls, source: _Source) -> None:
        super().__init__()
        self.onnx_file, self.onnx_sha256 = source.path, source.digest
        self.onnx_fingerprint = read.graph.fingerprint
        self.onnx_names: dict[str, str] = {}
        self.input_shapes = tuple(value.shape for value in read.inputs)
        self.input_names = tuple(value.name for value in read.inputs)
        self._input_dtypes = tuple(torch_dtype(value.dtype) for value in read.inputs)
        builder = _Builder(self, read, source.path.parent)
        self.steps, self._slots = _Steps(builder.steps), len(builder.slots)
        self.steps.source = source
        self._inputs = tuple(builder.slots[id(value)] for value in read.inputs)
        self._outputs = tuple(builder.slots[id(value)] for value in read.outputs)
        self._leaves = tuple((slot, tuple(name.split("."))) for slot, name in builder.leaves.items())
        self._digests = {name: _digest(found(self, tuple(path.split(".")))) for path, name in self.onnx_names.items()}

    def example_arguments(self, seed: int = 0) -> tuple[Tensor, ...]:
        """Arguments of the right shapes and types: numbers between 0 and 1, ones and twos, and coins."""
        made, generator = list[Tensor](), torch.Generator().manual_seed(seed)
        for shape, dtype in zip(self.input_shapes, self._input_dtypes, strict=True):
            if dtype.is_floating_point:
                made.append(torch.rand(shape, generator=generator).to(dtype))
            else:
                whole = torch.randint(1, 3, shape, generator=generator)
                made.append(whole == 1 if dtype is torch.bool else whole.to(dtype))
        return tuple(made)

    def written(self) -> dict[str, tuple[Tensor, bool]]:
        """Parameters and running statistics by their names in the file, and whether each changed since it was read."""
        now = {name: found(self, tuple(path.split("."))) for path, name in self.onnx_names.items()}
        return {name: (tensor, _digest(tensor) != self._digests[name]) for name, tensor in now.items()}

    def forward(self, *args: Tensor) -> Any:
        """The outputs of the file. Raises UsageError for arguments of other shapes than it was built for."""
        shapes = tuple(tuple(entry.shape) for entry in args)
        if shapes != self.input_shapes:
            wanted = ", ".join(
                f"{name} {shape}" for name, shape in zip(self.input_names, self.input_shapes, strict=True)
            )
            raise UsageError(
                f"the module of {quoted(self.onnx_file.name)} takes {wanted}, not {', '.join(map(str, shapes))}",
                remedy="build it with from_onnx for these sizes: batch, dims or inputs",
            )
        values: list[Tensor | None] = [None] * self._slots
        for slot, given in zip(self._inputs, args, strict=True):
            values[slot] = given
        del args
        for slot, path in self._leaves:
            values[slot] = found(self, path)
        for step in self.steps:
            operands = [values[slot] if slot >= 0 else None for slot in step.reads]
            with within_call(step.part_of):
                made = step.run(self.training, *operands) if step.trains else step.run(*operands)
            del operands
            made = made if isinstance(made, tuple) else (made,)
            if made[0].shape != step.shape and step.where.op_type not in _READ_LONGER:
                raise refused(step.where, f"it makes {tuple(made[0].shape)} of the {step.shape} that were read")
            for slot, value in zip(step.writes, made, strict=True):
                values[slot] = value
            del made, value
            for slot in step.frees:
                values[slot] = None
        results = tuple(values[slot] for slot in self._outputs)
        return results[0] if len(results) == 1 else results


def _digest(tensor: Tensor) -> str:
    """What tells a changed tensor from an unchanged one."""
    return sha256(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()).hexdigest()


class _Builder:
    """Gives each value its slot, each leaf its attribute, and each call that reaches an output its step."""

    def __init__(self, module: OnnxModule, read: ForwardCalls, folder: Path) -> None:
        self._module, self._folder, self._opset = module, folder, read.graph.opset
        self.slots: dict[int, int] = {}
        self.leaves: dict[int, str] = {}
        self._constants: dict[int, Tensor] = {}
        self._part_of = {id(inner): call.name for call in read.calls for inner in written(call)}
        calls = [inner for call in read.calls for inner in written(call)]
        self._makers = {id(output): call for call in calls for output in call.outputs}
        self._learned = _learned(calls)
        self._statistics = {
            id(call.inputs[at])
            for call in calls
            if call.op_type == "BatchNormalization" and not call.domain
            for at in _STATISTICS
        }
        for value in read.inputs:
            self._slot(value)
        wanted = {id(value) for value in read.outputs}
        live: list[tuple[Call, Run | InTraining, tuple[Value | None, ...]]] = []
        for call in reversed(calls):
            if any(id(output) in wanted and not self._fixed(output) for output in call.outputs):
                run, operands = self._built(call)
                live.append((call, run, operands))
                wanted.update(id(value) for value in operands if value is not None)
        unplaced: list[_Unplaced] = []
        for call, run, operands in reversed(live):
            reads = tuple(-1 if value is None else self._slot(value) for value in operands)
            unplaced.append((call, run, reads, tuple(self._slot(output) for output in call.outputs)))
        kept = {self._slot(value) for value in read.outputs}
        self.steps = _with_frees(unplaced, kept, self._part_of)

    def _fixed(self, value: Value) -> bool:
        """Whether a value is a constant: no parameter, and no activation that is not known."""
        return value.constant or (value.known is not None and id(value) not in self._learned)

    def _built(self, call: Call) -> tuple[Run | InTraining, tuple[Value | None, ...]]:
        builder = builder_of(call)
        if builder is None:
            raise refused(call, "it is not among the ops of from_onnx")
        wide = {value.dtype for value in (*call.inputs, *call.outputs) if value is not None} & _WITHOUT_KERNELS
        if wide and not call.domain and call.op_type not in ("Cast", "Identity") and call.view is View.NONE:
            raise refused(call, f"torch does not compute in {min(wide)}")
        node = Node(call, self._opset, self._fixed)
        run = builder(node)
        return run, tuple(None if at in node.taken else value for at, value in enumerate(call.inputs))

    def _slot(self, value: Value) -> int:
        """The slot of a value; a leaf or constant becomes a parameter or buffer on its first use."""
        if id(value) not in self.slots:
            self.slots[id(value)] = len(self.slots)
            if (id(value) not in self._makers or self._fixed(value)) and not value.is_input:
                self.leaves[self.slots[id(value)]] = self._entered(value)
        return self.slots[id(value)]

    def _entered(self, value: Value) -> str:
        tensor = self._constant(value)
        if value.is_leaf and not value.constant:
            path = enter(self._module, value.name, lambda m, name: m.register_parameter(name, nn.Parameter(tensor)))
            self._module.onnx_names[path] = value.name
            return path
        persistent = id(value) in self._statistics
        path = enter(self._module, value.name, lambda m, name: m.register_buffer(name, tensor, persistent=persistent))
        if persistent:
            self._module.onnx_names[path] = value.name
        return path

    def _constant(self, value: Value) -> Tensor:
        """The values of a constant; what the reader did not compute is computed by the same ops."""
        if id(value) not in self._constants:
            maker = self._makers.get(id(value))
            if value.known is not None and id(value) not in self._learned:
                made = as_tensor(value.known, value.dtype)
            elif maker is None or value.is_leaf:
                made = tensor_of(value, self._folder)
            else:
                run, operands = self._built(maker)
                given = [None if operand is None else self._constant(operand) for operand in operands]
                results = run.call(False, *given) if isinstance(run, InTraining) else run(*given)
                results = results if isinstance(results, tuple) else (results,)
                self._constants.update(
                    (id(output), result.contiguous()) for output, result in zip(maker.outputs, results, strict=True)
                )
                made = self._constants[id(value)]
            self._constants[id(value)] = made
        return self._constants[id(value)]


def _learned(calls: Sequence[Call]) -> set[int]:
    """The values that depend on a parameter."""
    learned: set[int] = set()
    for call in calls:
        if any(id(value) in learned or (value.is_leaf and not value.constant) for value in call.data_inputs):
            learned.update(id(output) for output in call.outputs)
    return learned | {
        id(value)
        for call in calls
        for value in call.inputs
        if value is not None and value.is_leaf and not value.constant
    }


_Unplaced = tuple[Call, Run | InTraining, tuple[int, ...], tuple[int, ...]]


def _with_frees(calls: Sequence[_Unplaced], kept: set[int], part_of: Mapping[int, str]) -> tuple[_Step, ...]:
    """The steps with the slots that are read for the last time, or never."""
    made: list[_Step] = []
    later = set(kept)
    for call, run, reads, writes in reversed(calls):
        frees = tuple({*reads, *writes} - later - {-1})
        later.update(reads)
        where = Call(call.name, call.op_type, call.domain, ())
        plain = run.call if isinstance(run, InTraining) else run
        made.append(
            _Step(where, part_of[id(call)], call.outputs[0].shape, plain, plain is not run, reads, writes, frees)
        )
    return tuple(made[::-1])
