"""`ogc-plan show MODEL`: what is in a model, and what the memory of its training step is used for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...planner.display.layout import field, listed, name_of, path_of, plain_table, some
from ...planner.display.plan_report import print_warnings, source_line, timed_by
from ...planner.display.terminal import one_line
from ...planner.graph import Graph, Role, Tensor
from ...planner.model import Model
from ...planner.problem import Scope
from ...planner.units import counted, format_both, format_nbytes, format_ns, percent
from .explanation import explain, parameters_data, print_explanation

if TYPE_CHECKING:
    from rich.console import Console

LARGEST = 10


def _shaped(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{'x'.join(map(str, tensor.shape))}]"


def _op_types(model: Model) -> list[tuple[str, int]]:
    ops = model.training.ops if model.graph is None else model.graph.ops
    return sorted(Counter(op.op_type for op in ops).items(), key=lambda pair: (-pair[1], pair[0]))


def _parameters(graph: Graph) -> list[Tensor]:
    """One tensor per parameter storage."""
    first: dict[int, Tensor] = {}
    for tensor in graph.tensors:
        if tensor.role is Role.PARAMETER:
            first.setdefault(tensor.storage, tensor)
    return list(first.values())


def _memory(model: Model) -> dict[str, int]:
    fixed = model.training.stationary
    return {
        "parameters": fixed.parameter_nbytes,
        "parameter_gradients": sum(g.nbytes for g in model.training.gradients if g.parameter),
        "accumulated_gradients": fixed.accumulated_gradient_nbytes,
        "optimizer": fixed.optimizer_nbytes,
        "buffers": fixed.buffer_nbytes,
        "inputs": fixed.input_nbytes,
    }


def _largest(model: Model, count: int | None) -> list[dict[str, Any]]:
    """The largest activation storages with the ops that write them; annotations have no types."""
    graph, producer = model.training, model.training.producer
    shapes = {} if model.graph is None else {tensor.name: _shaped(tensor) for tensor in model.graph.tensors}
    untyped = None if model.graph is None else "saved by the op"
    order = sorted(range(len(graph.storages)), key=lambda s: (-graph.storages[s].nbytes, s))[:count]
    found = []
    for s in order:
        storage, op = graph.storages[s], graph.ops[producer[s]]
        found.append(
            {
                "name": storage.name,
                "nbytes": storage.nbytes,
                "type": shapes.get(storage.name, untyped),
                "op": op.name,
                "op_type": op.op_type,
                "aliases": [name for name in graph.aliases[s] if name != storage.name],
            }
        )
    return found


def describe(model: Model, *, everything: bool) -> dict[str, Any]:
    """The model as JSON data: bytes and ns. ``everything`` lists all activation storages and all tensors.

    What only the forward graph of a bare file has is null for an annotated file.
    """
    graph, training = model.graph, model.training
    whole = model.store_all()
    parameters = None if graph is None else _parameters(graph)
    data: dict[str, Any] = {
        "file": model.path,
        "sha256": model.sha256,
        "fingerprint": training.fingerprint,
        "producer": model.producer,
        "opset": model.opset,
        "annotations": None if model.annotations is None else asdict(model.annotations),
        "dims": None if graph is None else dict(graph.dims),
        "inputs": None if graph is None else _typed(graph, graph.inputs),
        "outputs": None if graph is None else _typed(graph, graph.outputs),
        "op_types": dict(_op_types(model)),
        "counts": {
            "ops": len(training.ops if graph is None else graph.ops),
            "tensors": None if graph is None else len(graph.tensors),
            "activation_storages": len(training.storages),
            "ops_with_backward": len(training.backward_order),
            "parameters": None if parameters is None else len(parameters),
            "parameter_elements": None if parameters is None else sum(tensor.numel for tensor in parameters),
        },
        "memory_nbytes": _memory(model),
        "store_all": {
            "activation_peak_nbytes": whole.peak_activation_nbytes,
            "total_peak_nbytes": whole.peak_total_nbytes,
            "step_ns": whole.time_ns,
        },
        "floor": {
            scope: {"nbytes": floor.nbytes, "step": floor.step, "storages": list(floor.storages)}
            for scope, floor in ((which.value, model.floors[which]) for which in (Scope.ACTIVATIONS, Scope.TOTAL))
        },
        "time_source": model.time_source,
        "largest_storages": _largest(model, None if everything else LARGEST),
        "assumed": list(training.assumed),
        "explanation": explain(model),
        "parameters": parameters_data(model),
    }
    if everything:
        data["tensors"] = (
            None
            if graph is None
            else [
                {"name": t.name, "type": _shaped(t), "role": t.role.value, "storage": graph.storages[t.storage].name}
                for t in graph.tensors
            ]
        )
    return data


def _typed(graph: Graph, tensors: Iterable[int]) -> dict[str, str]:
    return {graph.tensors[i].name: _shaped(graph.tensors[i]) for i in tensors}


def print_model(out: Console, model: Model, *, verbose: bool) -> None:
    """The model as text."""
    data = describe(model, everything=verbose)
    counts = data["counts"]
    field(out, "model", ", ".join([path_of(model.path, out), one_line(data["producer"], 40) or "unknown producer",
                                   f"opset {data['opset']}"]))  # fmt: skip
    if model.annotations is not None:
        field(out, "annotations", source_line(model.annotations))
    print_warnings(out, model.training.assumed)
    for label in ("inputs", "outputs") if model.graph is not None else ():
        field(out, label, listed([f"{name} {kind}" for name, kind in data[label].items()], verbose) or "none")
    types = [f"{name} {count:,}" for name, count in data["op_types"].items()]
    shown = types if verbose else types[:12]
    rest = f", and {counted(len(types) - len(shown), 'more type')} (-v)" if len(types) > len(shown) else ""
    planned = len(model.training.ops)
    inside = "" if planned == counts["ops"] else f" ({planned:,} planned, the others only view memory or are constant)"
    field(out, "ops", f"{counts['ops']:,}{inside}: " + ", ".join(one_line(text, 60) for text in shown) + rest)
    tensors = f"{counted(counts['activation_storages'], 'activation storage')}"
    if model.graph is not None:
        tensors = f"{counts['tensors']:,} in all, {tensors}, "
        tensors += (
            f"{counted(counts['parameters'], 'parameter')} with {counted(counts['parameter_elements'], 'element')}"
        )
    field(out, "tensors", tensors)
    out.print()
    _print_memory(out, data)
    _print_largest(out, data)
    field(out, "step time", f"{format_ns(data['store_all']['step_ns'])} store-all")
    field(out, "timed by", timed_by(data["time_source"]))
    out.print()
    print_explanation(out, data["explanation"], verbose=verbose)
    if verbose:
        out.print()
        _print_tensors(out, model)


def _print_memory(out: Console, data: dict[str, Any]) -> None:
    table = plain_table("where the memory goes", "bytes", "", left=(0, 2))
    notes = {"parameter_gradients": "all together", "accumulated_gradients": "held all step"}
    for key, nbytes in data["memory_nbytes"].items():
        if key == "accumulated_gradients" and not nbytes:
            continue
        note = "not counted: no --optimizer given" if key == "optimizer" and not nbytes else notes.get(key, "")
        table.add_row(Text(key.replace("_", " ")), format_nbytes(nbytes), Text(note, style="dim"))
    whole, floor = data["store_all"], data["floor"]
    table.add_section()
    table.add_row("activations, store-all peak", format_nbytes(whole["activation_peak_nbytes"]),
                  format_both(whole["activation_peak_nbytes"]))  # fmt: skip
    table.add_row(
        "total, store-all peak", format_nbytes(whole["total_peak_nbytes"]), format_both(whole["total_peak_nbytes"])
    )
    table.add_row("activations, floor", format_nbytes(floor["activations"]["nbytes"]), "no plan goes below")
    table.add_row("total, floor", format_nbytes(floor["total"]["nbytes"]), "no plan goes below")
    out.print(table)
    out.print()
    bound = floor["activations"]
    held = f", which holds {some(bound['storages'], limit=40)}" if bound["storages"] else ""
    field(out, "floor set by", one_line(bound["step"], 120) + held)
    out.print()


def _print_largest(out: Console, data: dict[str, Any]) -> None:
    typed = data["annotations"] is None
    headings = ["largest storages", "bytes", "of peak", *(["type"] if typed else []), "written by"]
    table = plain_table(*headings, left=(0, 3, 4), gap=2)
    whole = max(1, data["store_all"]["activation_peak_nbytes"])
    for entry in data["largest_storages"]:
        table.add_row(
            name_of(entry["name"], 34),
            format_nbytes(entry["nbytes"]),
            percent(entry["nbytes"] / whole),
            *([name_of(entry["type"])] if typed else []),
            name_of(entry["op_type"], 24 if typed else 40),
        )
    out.print(table)
    out.print()


def _print_tensors(out: Console, model: Model) -> None:
    """Every tensor with its whole name, which --keep, --recompute and --frozen match."""
    if model.graph is None:
        lines = [
            f"{format_nbytes(storage.nbytes):>10}  {one_line(name)}"
            for storage, names in zip(model.training.storages, model.training.aliases, strict=True)
            for name in names
        ]
    else:
        lines = [
            f"{tensor.role.value:<10} {format_nbytes(tensor.nbytes):>10}  {one_line(tensor.name)}  {_shaped(tensor)}"
            for tensor in model.graph.tensors
        ]
    for line in lines:
        out.print(Text(line), soft_wrap=True)
