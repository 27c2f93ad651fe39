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
    _aten.bilinear, _aten.linear,
})  # fmt: skip
"""Calls that get a handle of cuBLAS."""
_LT_PRODUCTS = frozenset({_aten._addmm_activation, _aten._scaled_mm})
"""Calls of cuBLASLt; an ``addmm`` that adds a vector is one, too."""


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


def takers(calls: Iterable[fx.Node], workspaces: BlasWorkspaces) -> dict[fx.Node, int]:
    """The calls of one thread, run in this order, that take workspace, with the bytes of each.

    At most two take some, the first product of each library; the values add up to what the thread keeps. Of cuBLASLt
    the calls are known that use it by themselves, not those moved there by ``preferred_blas_library``.
    """
    taken: dict[fx.Node, int] = {}
    waiting = {False: workspaces.nbytes, True: workspaces.lt_nbytes or 0}
    for node in calls:
        library = _library(node)
        if library is None:
            continue
        of_lt = library and workspaces.lt_nbytes is not None
        nbytes = waiting.pop(of_lt, 0)
        if of_lt and not SHARED_BY_DEFAULT:  # the handle of cuBLASLt is that of cuBLAS, made with its workspace
            nbytes += waiting.pop(False, 0)
        if nbytes:
            taken[node] = nbytes
    return taken


def _library(node: fx.Node) -> bool | None:
    """Whether cuBLASLt makes a call's product; None for a call without one."""
    packet: Any = getattr(node.target, "overloadpacket", None)
    if packet in _LT_PRODUCTS:
        return True
    if packet not in _PRODUCTS:
        return None
    added = node.args[0] if packet is _aten.addmm else None
    return isinstance(added, fx.Node) and added.meta["val"].dim() == 1
