"""Global settings of PyTorch on which the kernels of a step depend."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from .. import torch_private


class Switches:
    """Settings by name. They are read in every step: each by one call, most of them of C."""

    def __init__(self, reads: Mapping[str, Callable[[], object]]) -> None:
        self._names, self._reads = tuple(reads), tuple(reads.values())

    def now(self) -> list[object]:
        """Their values."""
        return [read() for read in self._reads]

    def changed(self, before: list[object], now: list[object]) -> tuple[str, object, object]:
        """The first of them that has another value than before: its name, and both values."""
        found = zip(self._names, before, now, strict=True)
        return next((name, known, value) for name, known, value in found if known != value)


KERNELS_TRACED = Switches(
    {
        "the default dtype": torch.get_default_dtype,
        "the default device": torch_private.default_device,
        "oneDNN": torch_private.switch(torch.backends.mkldnn, "enabled"),
        "cuDNN": torch_private.switch(torch.backends.cudnn, "enabled"),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
        "attention by flash kernels": torch.backends.cuda.flash_sdp_enabled,
        "attention by memory-efficient kernels": torch.backends.cuda.mem_efficient_sdp_enabled,
        "attention by plain products": torch.backends.cuda.math_sdp_enabled,
        "attention by cuDNN": torch.backends.cuda.cudnn_sdp_enabled,
    }
)
"""Those that decide which calls tracing records: a step traced under others differs from eager training."""

KERNELS_CHOSEN = Switches(
    {
        "torch.backends.cudnn.benchmark": torch_private.switch(torch.backends.cudnn, "benchmark"),
        "torch.backends.cudnn.deterministic": torch_private.switch(torch.backends.cudnn, "deterministic"),
        "torch.backends.cudnn.conv.fp32_precision": torch_private.fp32_precision("cuda", "conv"),
        "torch.backends.cudnn.rnn.fp32_precision": torch_private.fp32_precision("cuda", "rnn"),
        "torch.backends.cuda.matmul.fp32_precision": torch_private.fp32_precision("cuda", "matmul"),
    }
)
"""Those by which CUDA libraries choose an algorithm in each call: the bits are eager's, workspace may differ.

The names ``allow_tf32`` of older releases cannot be read once a program has set the new ones.
"""
