"""Why a network's measured and simulated peaks differ where they do, found by comparing what is alive at both peaks."""

from __future__ import annotations

_CONSTANTS = "eager computes {} in every step and keeps them; in the file they are constants, charged as buffers"
_MASK = (
    "traced, transformers makes an attention mask that masks nothing, and torch turns a bool mask into floats in every "
    "layer; its eager run passes no mask"
)
_LOCALS = "the peak of the eager step lies in the forward, where Python's local variables keep {}"
_FLOAT32_ATTENTION = (
    "on the CPU, torch composes attention with dropout in float32 where it is given bfloat16, and keeps all of it so; "
    "the file shows bfloat16"
)
_ROTARY = _CONSTANTS.format("tables of rotary angles")

NOTES: dict[str, str] = {
    "bloom": "its GELU is an autograd.Function that keeps its input alone; the file shows a formula, which keeps more",
    "bert_bf16": _FLOAT32_ATTENTION,
    "gpt2_bf16": _FLOAT32_ATTENTION,
    "t5_bf16": _FLOAT32_ATTENTION,
    "segformer": _LOCALS.format("the four resized feature maps until the decoder returns"),
    "unet2d": _LOCALS.format("what a residual block has added up until it returns"),
    "beit": _LOCALS.format("the last table of relative positions") + "; " + _CONSTANTS.format("its indices"),
    "deberta_v2": _CONSTANTS.format("relative positions (int64, one a pair of tokens) and masks"),
    "t5": _CONSTANTS.format("relative positions and masks"),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma2", "falcon"), _ROTARY),
    "siglip": _LOCALS.format("the record of the vision tower's outputs while the text tower runs"),
    "convnext": "the gradient of a convolution's weight comes in another layout and is copied into .grad",
    "llama_loss": "inside the backward of the loss the gradient of nll_loss passes, which the plan counts as workspace",
    "vit": _MASK,
    "dinov2": _MASK,
    "bart": _MASK,
    "whisper": _MASK,
}
"""Network -> the cause of a difference above a tenth of a percent."""

BEYOND_TEN_PERCENT = frozenset({"bloom", "bert_bf16", "gpt2_bf16", "t5_bf16"})
"""Networks whose difference may exceed a tenth; the cause of each is in NOTES."""
