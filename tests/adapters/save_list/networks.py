"""Small files for save-lists, written as exporters of other frameworks name their nodes."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from ogc_plan.cli.main import main
from onnx import TensorProto, helper, numpy_helper

WIDTH, ROWS = 16, 64


def write_layers(path: Path, *, named: bool = False, keras: bool = False, layers: int = 4) -> Path:
    """A chain of (MatMul, Add, Gelu).

    ``named`` puts after each Gelu the Identity that jax2onnx writes for checkpoint_name; with ``keras`` nodes are
    called as tf2onnx calls those of a model of Dense layers.
    """
    nodes, weights, value = [], [], "x"
    for i in range(layers):
        place = f"model/dense_{i}/" if keras else ""
        steps = [
            ("MatMul", [value, f"w{i}"], f"m{i}"),
            ("Add", [f"m{i}", f"b{i}"], f"h{i}"),
            ("Gelu", [f"h{i}"], f"t{i}"),
        ]
        nodes += [helper.make_node(kind, reads, [made], name=f"{place}{kind}_{i}") for kind, reads, made in steps]
        weights += [numpy_helper.from_array(np.full((WIDTH, WIDTH), 0.1, np.float32), f"w{i}")]
        weights += [numpy_helper.from_array(np.full(WIDTH, 0.1, np.float32), f"b{i}")]
        value = f"t{i}"
        if named:
            nodes.append(helper.make_node("Identity", [value], [f"name_out_{i}"]))
            value = f"name_out_{i}"
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (ROWS, WIDTH))],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, (ROWS, WIDTH))],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def command(*words: Any) -> tuple[int, str]:
    """Exit code and standard error of the command line."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        code = main([str(word) for word in words])
    return code, told.getvalue()


def emitted(model: Path, target: str, budget: str) -> Path:
    """The Python file that is emitted for a plan of a file; the plan stands beside it."""
    made, plan = model.with_name(f"{target}.py"), model.with_name("plan.json")
    assert command(model, "--budget", budget, "--strategy", "greedy", "-q", "-o", plan) == (0, "")
    assert command("emit", plan, model, "--to", target, "-q", "-o", made) == (0, "")
    return made
