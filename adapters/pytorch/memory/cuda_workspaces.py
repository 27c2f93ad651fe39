"""The memory that PyTorch keeps for cuBLAS and cuBLASLt: what it is, which calls take it, and how many bytes.

A thread that makes its first product on a stream takes workspace from the caching allocator and keeps it until the
process ends; ``empty_cache`` does not give it back. A training step runs on two threads: the forward's, and autograd's
for the device. The rules are those of aten/src/ATen/cuda/CublasHandlePool.cpp, in torch 2.11 and in the releases since
pytorch#175879 and #177912, which have ``torch.backends.cuda.cublas_workspace_size`` (2.14 was tested):

- cuBLAS: the sum of ``CUBLAS_WORKSPACE_CONFIG`` (":KiB:count" once or more). Without it 32 MiB on compute capability
  9.0, in the later releases also on 10 and 12, else ":4096:2:16:8", which is 8,519,680 bytes.
- cuBLASLt: in the later releases it uses the workspace of cuBLAS, unless ``TORCH_CUBLASLT_UNIFIED_WORKSPACE`` is 0; in
  2.11 only if it is 1. A workspace of its own has ``CUBLASLT_WORKSPACE_SIZE`` KiB, 1 MiB without it.

cuDNN takes workspace for each call and gives it back; workspace_meter.py measures it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx

KIB = 1024
SHARED_BY_DEFAULT = hasattr(torch.backends.cuda, "cublas_workspace_size")
"""Whether this torch lets cuBLASLt use the workspace of cuBLAS, and tells its size."""

_aten = torch.ops.aten
_PRODUCTS = frozenset({
    _aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm, _aten.addbmm, _aten.mv, _aten.addmv, _aten.dot, _aten.vdot,
    _aten._slow_conv2d_forward, _aten._slow_conv2d_backward, _aten.slow_conv_dilated2d, _aten.slow_conv_dilated3d,
    _aten.slow_conv_transpose2d, _aten.slow_conv_transpose3d, _aten.linalg_solve_triangular, _aten.triangular_solve,
    _aten.linalg_lu_solve, _aten.linalg_matrix_exp, _aten._cdist_forward, _aten._euclidean_dist, _aten._trilinear,
    _aten.bilinear, _aten.linear, _aten._addmm_activation, _aten._scaled_mm,
})  # fmt: skip
"""Calls that get a handle of cuBLAS, those of cuBLASLt among them: its handle is that of cuBLAS."""


class BlasWorkspaces(NamedTuple):
    """Bytes that one thread takes on one stream; ``lt_nbytes`` is None where cuBLASLt has no workspace of its own."""

    nbytes: int
    lt_nbytes: int | None


def blas_workspaces(device: torch.device) -> BlasWorkspaces:
    """What the products of each thread take on ``device``. CUDA is initialised."""
    documented = documented_workspaces(os.environ, torch.cuda.get_device_capability(device), SHARED_BY_DEFAULT)
    if not SHARED_BY_DEFAULT:
        return documented
    own = documented.lt_nbytes is not None
    return BlasWorkspaces(
        torch.backends.cuda.cublas_workspace_size(), torch.backends.cuda.cublaslt_workspace_size() if own else None
    )


def documented_workspaces(
    environment: Mapping[str, str], capability: tuple[int, int], shared_by_default: bool
) -> BlasWorkspaces:
    """The rule of the module's head.

    Args:
        environment: the variables of the process; PyTorch reads them at its first product.
        capability: the compute capability of the device.
        shared_by_default: whether cuBLASLt uses the workspace of cuBLAS unless a variable says otherwise.
    """
    large = capability[0] in (9, 10, 12) if shared_by_default else capability == (9, 0)
    nbytes = (4096 * 8 if large else 4096 * 2 + 16 * 8) * KIB
    sizes = re.findall(r":([0-9]+):([0-9]+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if sizes:
        nbytes = sum(int(size) * int(count) for size, count in sizes) * KIB
    unified = environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
    if unified == "1" or (shared_by_default and unified != "0"):
        return BlasWorkspaces(nbytes, None)
    number = re.match(r"\s*[+-]?[0-9]+", environment.get("CUBLASLT_WORKSPACE_SIZE", ""))
    own = (int(number.group()) if number else 1024) * KIB
    return BlasWorkspaces(nbytes, own if unified == "0" else min(own, nbytes))


def make_products(calls: Iterable[fx.Node]) -> bool:
    """Whether one of the calls gets a handle of cuBLAS, and with it the workspaces."""
    return any(getattr(call.target, "overloadpacket", None) in _PRODUCTS for call in calls)


def take_workspaces(device: torch.device, forward: bool, backward: bool) -> int:
    """Let threads whose products will take workspaces take them now; the bytes of those workspaces.

    They are in the allocator's default pool then, where the first products of a step would have put them.

    Args:
        device: the CUDA device; its current stream is that of the steps.
        forward: for the current thread.
        backward: for autograd's thread of this device.
    """
    with torch.enable_grad(), torch.autocast("cuda", enabled=False):
        if forward:
            _product(device)
        if backward:
            _OnAutogradThread.apply(torch.zeros(1, device=device, requires_grad=True)).backward()
    each = blas_workspaces(device)
    return (forward + backward) * (each.nbytes + (each.lt_nbytes or 0))


def _product(device: torch.device) -> None:
    """Products of cuBLAS and of cuBLASLt."""
    matrix = torch.zeros(16, 16, device=device)
    torch.addmm(matrix[0], matrix @ matrix, matrix)


class _OnAutogradThread(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        _product(gradient.device)
        return gradient
