"""The workspace that PyTorch keeps for cuBLAS and cuBLASLt is the predicted one, on both threads of a step.

PyTorch reads the settings once, so each runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from ogc_plan.adapters.pytorch.memory.cuda_workspaces import (
    SHARED_BY_DEFAULT,
    BlasWorkspaces,
    blas_workspaces,
    documented_workspaces,
    make_products,
    take_workspaces,
)
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

PROGRAM = """
import json, torch
from tests.cuda.test_blas_workspaces import by_rule, taken_before, taken_by_a_step
device = torch.device("cuda", 0)
print(json.dumps([by_rule(device), taken_before(device), taken_by_a_step(device)]))
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


def by_rule(device: torch.device) -> list[int]:
    """What each thread takes, by the rule."""
    rule = documented_workspaces(os.environ, torch.cuda.get_device_capability(), SHARED_BY_DEFAULT)
    assert rule == blas_workspaces(device)
    return [nbytes for nbytes in rule if nbytes]


def kept_by(work: Callable[[], object]) -> list[int]:
    """The requests of some work for more than a matrix, that it does not release."""
    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python")
    result = work()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    del result
    freed = {entry["addr"] for entry in trace if entry["action"] == "free_completed"}
    kept = [entry["size"] for entry in trace if entry["action"] == "alloc" and entry["addr"] not in freed]
    return [nbytes for nbytes in kept if nbytes > 64 * 64 * 4]


def taken_before(device: torch.device) -> list[list[int]]:
    """What each thread takes when it is asked to."""
    return [
        kept_by(lambda: take_workspaces(device, forward=True, backward=False)),
        kept_by(lambda: take_workspaces(device, forward=False, backward=True)),
    ]


def taken_by_a_step(device: torch.device) -> list[int]:
    """What a step takes beyond its result and gradients."""
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64, bias=False)).to(device)
    x = torch.zeros(8, 64, device=device)

    def step() -> object:
        result = checkpoint(module, x, use_reentrant=False)  # both kinds of products on both threads
        result.sum().backward()
        return result

    return kept_by(step)


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda settings: ",".join(settings.values()) or "default")
def found(request: pytest.FixtureRequest) -> tuple[list[int], list[list[int]], list[int]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ | request.param, capture_output=True, text=True
    )
    rule, before, by_a_step = json.loads(done.stdout)
    return rule, before, by_a_step


@pytest.mark.usefixtures("launches")
def test_both_threads_take_what_the_rule_says(found: tuple[list[int], list[list[int]], list[int]]) -> None:
    rule, before, _ = found
    assert before == [rule, rule]


@pytest.mark.usefixtures("launches")
def test_a_step_takes_no_more(found: tuple[list[int], list[list[int]], list[int]]) -> None:
    assert found[2] == []


@pytest.mark.usefixtures("launches")
def test_a_default_h100_takes_32_mib_on_each_thread() -> None:
    assert blas_workspaces(torch.device("cuda:0")).nbytes == 32 << 20


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
    return [graph.call_function(call, tuple(matrix for _ in range(count))) for call, count in calls]  # type: ignore[misc, arg-type]


def test_a_product_takes_workspace() -> None:
    aten = torch.ops.aten
    assert make_products(calls_of((aten.relu.default, 1), (aten.mm.default, 2)))


def test_calls_without_products_take_none() -> None:
    aten = torch.ops.aten
    assert not make_products(calls_of((aten.relu.default, 1), (aten.mul.Tensor, 2)))
