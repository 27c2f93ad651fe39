"""What the planner makes of one published file: a plan at each share, a proven floor, or a refusal by name.

    python -m models.published_files.outcome FILE '{"dims": {"N": 8}, "inputs": {}}'

prints the outcome as JSON. An error that is not one of ogc-plan's own ends the process with its traceback.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.published_files.listing import PublishedFile

if TYPE_CHECKING:
    from ogc_plan.planner.model import Model

SHARES = (60, 40)
LEAST_TRAINED = 0.9  # share of a file's float numbers that the plan must hold as parameters


def declared(path: str) -> dict[str, Any]:
    """What the file says of itself: producer, imported opsets, and how many float numbers its leaves hold."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)
    leaves = list(model.graph.initializer)
    leaves += [a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute]
    return {
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "nodes": len(model.graph.node),
        "float_elements": sum(prod(leaf.dims) for leaf in leaves if leaf.data_type in floats and leaf.dims),
    }


def outcome(path: str, dims: Mapping[str, int], inputs: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The outcome of one file: ``result`` is planned, refused or failed. Sizes are bytes, times seconds."""
    from ogc_plan.planner.errors import ModelError, OgcPlanError
    from ogc_plan.planner.model import load_model

    entry = declared(path)
    started = time.perf_counter()
    try:
        model = load_model(path, dims=dims, inputs=inputs)
        entry["read_s"] = round(time.perf_counter() - started, 2)
        entry |= _counts(model)
        entry["budgets"] = {str(share): _planned(model, share) for share in SHARES}
        entry["result"] = "planned"
    except OgcPlanError as error:
        entry["result"] = "refused" if isinstance(error, ModelError) else "failed"
        entry["message"], entry["remedy"] = error.message.replace(path, Path(path).name), error.remedy
    entry["seconds"] = round(time.perf_counter() - started, 2)
    return entry


def _counts(model: Model) -> dict[str, Any]:
    from ogc_plan.planner.graph import Role

    graph, training = model.graph, model.training
    assert graph is not None
    parameters: dict[int, int] = {}
    for tensor in graph.tensors:  # a slice of a parameter shares its storage
        if tensor.role is Role.PARAMETER:
            parameters[tensor.storage] = max(tensor.numel, parameters.get(tensor.storage, 0))
    return {
        "ops": len(graph.ops),
        "ops_with_backward": len(training.backward_order),
        "parameters": sum(parameters.values()),
        "parameter_nbytes": training.stationary.parameter_nbytes,
        "parameter_gradient_nbytes": training.parameter_gradient_nbytes,
        "store_all_nbytes": model.store_all().peak_activation_nbytes,
        "assumed": list(training.assumed),
    }


def _planned(model: Model, share: int) -> dict[str, Any]:
    """A plan at ``share`` percent of the store-all activations, or why there is none."""
    from ogc_plan.planner import pipeline
    from ogc_plan.planner.errors import InfeasibleBudgetError

    try:
        made = pipeline.plan(model, f"{share}%")
    except InfeasibleBudgetError as error:
        return {
            "status": "proven infeasible" if error.proven else "none found",
            "floor_nbytes": error.lower_bound_nbytes,
            "smallest_nbytes": error.smallest_known_nbytes,
        }
    return {
        "status": "planned",
        "peak_nbytes": made.peak.activation_nbytes,
        "overhead": made.time.overhead,
        "gap": made.gap,
    }


def settle(file: PublishedFile, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry, failed where the outcome is not the one wanted or makes no sense; ``message`` says why."""
    complaint = _complaint(file, entry)
    return {**entry, **({"result": "failed", "message": complaint} if complaint else {})}


def _complaint(file: PublishedFile, entry: Mapping[str, Any]) -> str:
    said = f"{entry.get('message', '')} ({entry.get('remedy', '')})"
    if entry["result"] == "failed":
        return said
    if entry["result"] == "refused":
        if not file.refusal:
            return f"refused: {said}"
        if file.refusal not in said or not entry.get("remedy") or "\n" in said:
            return f"the refusal does not name {file.refusal} or no remedy, in one line: {said}"
        return ""
    if file.refusal:
        return f"planned, though {file.refusal} should be refused"
    if not entry["parameter_gradient_nbytes"]:
        return "planned without any gradient of a parameter"
    if entry["parameters"] < LEAST_TRAINED * entry["float_elements"]:
        return f"{entry['parameters']} parameters of {entry['float_elements']} float numbers in the file"
    return ""


def main() -> None:
    """Print the outcome of the file and arguments on the command line."""
    path, arguments = sys.argv[1], json.loads(sys.argv[2])
    inputs = {name: tuple(shape) for name, shape in arguments["inputs"].items()}
    json.dump(outcome(path, arguments["dims"], inputs), sys.stdout)


if __name__ == "__main__":
    main()
