"""The workspace that PyTorch keeps for cuBLAS and cuBLASLt is the predicted one, on both threads of a step.

PyTorch reads the settings once, so each runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.joint import is_backward
from ogc_plan.adapters.pytorch.memory.cuda_workspaces import (
    BlasWorkspaces,
    blas_workspaces,
    documented_workspaces,
    takers,
)
from torch import fx, nn

PROGRAM = """
import json, torch
from torch import nn
from tests.cuda.test_blas_workspaces import predicted, taken
module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64, bias=False)).cuda()
x = torch.zeros(8, 64, device="cuda")
print(json.dumps([predicted(module, x), taken(module, x)]))
"""
SETTINGS = [
    {},
    {"CUBLAS_WORKSPACE_CONFIG": ":16:8"},
    {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"},
    {"CUBLAS_WORKSPACE_CONFIG": "4096:2"},
    {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"},
    {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0", "CUBLASLT_WORKSPACE_SIZE": "2000"},
    {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0", "CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "0"},
    {"STANDIN_CAPABILITY": "8.0"},
    {"STANDIN_CAPABILITY": "10.0"},
]


def predicted(module: nn.Module, x: torch.Tensor) -> list[list[int]]:
    """What the forward's thread takes, and what autograd's takes, by the rule and by what PyTorch says of itself."""
    joint = capture(module, (x,))
    parts: tuple[list[fx.Node], list[fx.Node]] = [], []
    for node in joint.graph.nodes:
        parts[is_backward(node)].append(node)
    rule = documented_workspaces(os.environ, torch.cuda.get_device_capability(), True)
    assert rule == blas_workspaces(x.device)
    return [list(takers(part, rule).values()) for part in parts]


def taken(module: nn.Module, x: torch.Tensor) -> list[list[int]]:
    """What a step takes and keeps, beyond its result and gradients, in the forward and in the backward."""
    found = []
    values: list[torch.Tensor] = []
    for part in (lambda: values.append(module(x)), lambda: values[0].backward(torch.ones_like(values[0]))):
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python")
        part()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        freed = {entry["addr"] for entry in trace if entry["action"] == "free_completed"}
        kept = [entry["size"] for entry in trace if entry["action"] == "alloc" and entry["addr"] not in freed]
        found.append([nbytes for nbytes in kept if nbytes > 64 * 64 * 4])
    return found


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ",".join(settings.values()) or "default")
def test_both_threads_take_what_the_rule_says(settings: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | settings, capture_output=True, text=True)
    rule, real = json.loads(done.stdout)
    assert rule == real


@pytest.mark.usefixtures("launches")
def test_a_default_h100_takes_32_mib_on_each_thread() -> None:
    assert blas_workspaces(torch.device("cuda:0")) == BlasWorkspaces(32 << 20, None)


OLD = [
    ({}, (8, 0), BlasWorkspaces(8_519_680, 1 << 20)),
    ({}, (9, 0), BlasWorkspaces(32 << 20, 1 << 20)),
    ({}, (10, 0), BlasWorkspaces(8_519_680, 1 << 20)),
    ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, (9, 0), BlasWorkspaces(131_072, 131_072)),
    ({"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}, (9, 0), BlasWorkspaces(32 << 20, None)),
]


@pytest.mark.parametrize(("environment", "capability", "workspaces"), OLD)
def test_an_older_torch_keeps_a_workspace_for_each_library(
    environment: dict[str, str], capability: tuple[int, int], workspaces: BlasWorkspaces
) -> None:
    assert documented_workspaces(environment, capability, False) == workspaces


def calls_of(*calls: tuple[object, ...]) -> list[fx.Node]:
    """Nodes of calls on matrices."""
    graph = fx.Graph()
    matrix = graph.placeholder("matrix")
    matrix.meta["val"] = torch.empty(64, 64)
    return [graph.call_function(call, tuple(matrix for _ in range(count))) for call, count in calls]  # type: ignore[misc, arg-type]


def test_a_thread_without_products_takes_nothing() -> None:
    aten = torch.ops.aten
    assert takers(calls_of((aten.relu.default, 1), (aten.mul.Tensor, 2)), BlasWorkspaces(1000, None)) == {}


def test_the_first_product_takes_the_workspace() -> None:
    aten = torch.ops.aten
    _, first, _ = calls = calls_of((aten.relu.default, 1), (aten.mm.default, 2), (aten.mm.default, 2))
    assert takers(calls, BlasWorkspaces(1000, None)) == {first: 1000}
