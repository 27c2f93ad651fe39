"""Global settings of PyTorch on which the kernels of a step depend."""

from __future__ import annotations

import torch


def kernels_traced() -> dict[str, object]:
    """Settings that decide which calls tracing records: a step traced under others differs from eager training."""
    return {
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "oneDNN": torch.backends.mkldnn.enabled,
        "cuDNN": torch.backends.cudnn.enabled,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "attention by flash kernels": torch.backends.cuda.flash_sdp_enabled(),
        "attention by memory-efficient kernels": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "attention by plain products": torch.backends.cuda.math_sdp_enabled(),
        "attention by cuDNN": torch.backends.cuda.cudnn_sdp_enabled(),
    }


def kernels_chosen() -> dict[str, object]:
    """Settings by which CUDA libraries choose an algorithm in each call: the bits are eager's, workspace may differ.

    The names ``allow_tf32`` of older releases cannot be read once a program has set the new ones.
    """
    return {
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.cudnn.deterministic": torch.backends.cudnn.deterministic,
        "torch.backends.cudnn.conv.fp32_precision": torch.backends.cudnn.conv.fp32_precision,
        "torch.backends.cudnn.rnn.fp32_precision": torch.backends.cudnn.rnn.fp32_precision,
        "torch.backends.cuda.matmul.fp32_precision": torch.backends.cuda.matmul.fp32_precision,
    }
