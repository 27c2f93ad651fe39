"""Exports a module, and writes the program as a standard ONNX file that also carries the training graph.

The file computes the forward as torch's exporter writes it. That differs from a training step in two places: batch norm
has its inference form (running statistics), and a dropout inside an attention that is not one fused op is switched off.
The annotation describes what training really does.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from ....planner.annotations import MODEL_KEY, NODE_KEY
from ....planner.errors import AdapterError, OgcPlanError, StorageError
from ....planner.errors import missing as missing_package
from .. import torch_private
from ..capture.diagnostics import first_line
from ..capture.joint_graph import capture
from ..errors import UnsupportedModuleError
from ..step.step_graph import TracedStep

if TYPE_CHECKING:
    import onnx_ir

OPSET = 23  # the first with Attention
MAX_INSIDE_NBYTES = 256_000_000  # writing takes several times their size in memory; protobuf ends at 2 GiB
DATA_SUFFIX = ".data"

_FX_NODE = "pkg.torch.onnx.fx_node"
_STACK_TRACE = "pkg.torch.onnx.stack_trace"
_NOT_STORED = "weights.not.stored"
_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")  # they note training mode, optional packages, opset conversion
_REMEDY = "use within_budget, which needs no ONNX file"


class ExportError(AdapterError):
    """The program has no ONNX form; the message names the op and the module path if they are known."""

    exit_code = 4


def exported(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """The exported program of a module. Raises UnsupportedModuleError."""
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:
        raise UnsupportedModuleError(
            f"torch.export cannot capture {type(module).__name__}: {first_line(error)}",
            remedy=_REMEDY,
        ) from error


def ops_of_nodes(
    program: torch.export.ExportedProgram, step: TracedStep, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> dict[str, tuple[str, ...]]:
    """For each node of the program the ops that come from it; empty if the two graphs have different ops.

    The training graph is traced from the module itself, the ONNX file is written from the program.
    """
    module = program.module(check_guards=False)
    try:
        again = TracedStep(capture(module, args, kwargs))
    except OgcPlanError:
        return {}
    if [op.name for op in again.ops] != [op.name for op in step.ops]:
        return {}
    found: dict[str, list[str]] = {}
    for op in again.ops:
        for source in (op.node.meta.get("from_node") or []) if op.node is not None else []:
            found.setdefault(source.name, []).append(op.name)
    return {name: tuple(names) for name, names in found.items()}


def write_onnx(
    program: torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    *,
    training_graph: str,
    op_of_node: Mapping[str, tuple[str, ...]],
) -> None:
    """Write ``program`` as ONNX, with ``training_graph`` in its metadata and on each node the op it belongs to.

    ``op_of_node`` maps names of the program's nodes to names of ops; if a node became several ops, its ONNX nodes name
    the last. A constant that several ONNX nodes share names the op of the first. Weights are stored in the file up to
    `MAX_INSIDE_NBYTES`, beyond that in ``path`` + ``.data``; weights on the meta device become references to a file
    that is not written. File names of the exporting machine are left out. ``program`` and its module stay as they are.

    Raises ExportError if an op has no ONNX translation, StorageError if the folder or the disk refuses; existing files
    are then untouched.
    """
    target = Path(path)
    try:
        for position in (target, _data_of(target)):
            if position.exists() and not position.is_file():
                raise StorageError(
                    f"cannot write model {str(position)!r}: it is not a file", remedy="choose another path"
                )
        with tempfile.TemporaryDirectory(prefix=f".{target.name[:80]}.", suffix=".tmp", dir=target.parent) as folder:
            model = _translate(program, op_of_node)
            model.metadata_props[MODEL_KEY] = training_graph
            _save(model, Path(folder) / target.name)
            _publish(Path(folder) / target.name, target)
    except OSError as error:
        raise StorageError(
            f"cannot write model {str(target)!r}: {error.strerror or error}", remedy="choose another path"
        ) from error


def _data_of(target: Path) -> Path:
    return target.with_name(target.name + DATA_SUFFIX) if target.name else target


def _translate(program: torch.export.ExportedProgram, op_of_node: Mapping[str, tuple[str, ...]]) -> onnx_ir.Model:
    # optimize=False: the optimiser folds a training batch norm into its convolution.
    try:
        with torch_private.silenced(*_LOGGERS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.onnx.export(program, dynamo=True, optimize=False, opset_version=OPSET, verbose=False)
    except Exception as error:
        raise _export_error(error) from None
    assert exported is not None
    assert exported.exported_program is not None
    model: onnx_ir.Model = exported.model
    if model.opset_imports.get("") != OPSET:  # the exporter only logs that it could not convert
        raise ExportError(f"torch {torch.__version__} cannot write this model in opset {OPSET}", remedy=_REMEDY)
    _annotate(model, _origins(program, exported.exported_program), op_of_node)
    return model


def _origins(program: torch.export.ExportedProgram, decomposed: torch.export.ExportedProgram) -> dict[str, str]:
    """For each node of the decomposed program, by the exporter's text for it, the program's node it came from."""
    wanted = id(program.graph)
    origins = {}
    for node in decomposed.graph.nodes:
        sources = list(node.meta.get("from_node", ()))
        while sources:
            source = sources.pop(0)
            if source.node_info is not None and source.node_info.graph_id == wanted:
                origins[str(node.format_node())] = source.name
                break
            sources += source.from_node
    return origins


def _annotate(model: onnx_ir.Model, origins: Mapping[str, str], op_of_node: Mapping[str, tuple[str, ...]]) -> None:
    for node in model.graph:
        ops = op_of_node.get(origins.get(node.metadata_props.get(_FX_NODE, ""), ""), ())
        if ops:
            node.metadata_props[NODE_KEY] = ops[-1]
    for node in model.graph.all_nodes():
        node.metadata_props.pop(_STACK_TRACE, None)


def _save(model: onnx_ir.Model, path: Path) -> None:
    """Write the model, and its weights to a second file if they are too large, and flush both to the disk."""
    import onnx_ir

    missing = stored = 0
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        if _has_contents(tensor):
            stored += tensor.nbytes
            continue
        value.const_value = onnx_ir.ExternalTensor(
            _NOT_STORED, missing, tensor.nbytes, tensor.dtype, shape=onnx_ir.Shape(tensor.shape.numpy()), name=name
        )
        missing += tensor.nbytes
    if missing and stored > MAX_INSIDE_NBYTES:
        raise ExportError(
            f"{missing:,} bytes of weights are on the meta device and {stored:,} bytes are not",
            remedy="build the whole module on one device",
        )
    data = _data_of(path)
    outside = data.name if stored > MAX_INSIDE_NBYTES else None
    onnx_ir.save(model, path, format="protobuf", external_data=outside)
    for written in (path, data) if outside else (path,):
        with written.open("rb+") as file:
            os.fsync(file.fileno())


def _has_contents(tensor: onnx_ir.TensorProtocol) -> bool:
    """Whether the values exist; tensors on the meta device and fake ones have only a shape."""
    values = tensor.raw
    return not isinstance(values, torch.Tensor) or values.untyped_storage().device.type != "meta"


def _publish(written: Path, target: Path) -> None:
    """Move the finished files to their names: the data first, so that a model never names data that does not exist."""
    if target.exists():
        written.chmod(target.stat().st_mode & 0o777)
    data = _data_of(target)
    if not _data_of(written).exists():
        os.replace(written, target)
        return
    _data_of(written).chmod(written.stat().st_mode & 0o777)
    before = written.with_name("before")
    if data.exists():
        os.replace(data, before)
    try:
        os.replace(_data_of(written), data)
        os.replace(written, target)
    except BaseException:
        data.unlink(missing_ok=True)
        if before.exists():
            os.replace(before, data)
        raise


def _export_error(error: BaseException) -> OgcPlanError:
    """The exporter's chain of errors as one line: the op it stopped at, the module path, the first cause."""
    node = _last_node(error)
    while error.__cause__ is not None:
        error = error.__cause__
        node = _last_node(error) or node
    if isinstance(error, ImportError) and (absent := missing_package(error)) is not None:
        return absent
    reason = next(iter(str(error).strip().splitlines()), "")[:200] or type(error).__name__
    what = "the model" if node is None else str(node.target)
    scopes = [] if node is None else [scope for scope, _ in node.meta.get("nn_module_stack", {}).values()]
    if scopes:
        what += f" in module {scopes[-1].split('@')[0]!r}" if scopes[-1] else " in the outermost module"
    return ExportError(f"torch.onnx cannot translate {what}: {reason}", remedy=_REMEDY)


def _last_node(error: BaseException) -> fx.Node | None:
    """The node that was being translated; the exporter's errors have it only in their frames."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        node = trace.tb_frame.f_locals.get("node")
        found = node if isinstance(node, fx.Node) else found
        trace = trace.tb_next
    return found
