"""Full-size configurations, built on the meta device: how long exporting, reading and planning them takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from models.architectures.zoo import Architecture, Taking, padding, tokens


def _bert(library: Any) -> nn.Module:
    model = library.BertForMaskedLM(library.BertConfig())
    return Taking(model, ("input_ids", "attention_mask"), "logits")


def _gpt2(library: Any) -> nn.Module:
    model = library.GPT2LMHeadModel(library.GPT2Config())
    return Taking(model, ("input_ids", "attention_mask"), "logits", use_cache=False)


def _llama(library: Any) -> nn.Module:
    config = library.LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    return Taking(library.LlamaForCausalLM(config), ("input_ids", "attention_mask"), "logits", use_cache=False)


def _unet(library: Any) -> nn.Module:
    model = library.UNet2DConditionModel(
        sample_size=64, block_out_channels=(320, 640, 1280, 1280), layers_per_block=2, cross_attention_dim=768,
        attention_head_dim=8,
    )  # fmt: skip
    return Taking(model, ("sample", "timestep", "encoder_hidden_states"), "sample")


FULL_SIZE = {
    entry.name: entry
    for entry in (
        Architecture(
            "bert_base", "transformers", _bert, lambda: (tokens(8, 512), padding(8, 512)), "8x512 tokens, padded"
        ),
        Architecture(
            "gpt2_124m", "transformers", _gpt2, lambda: (tokens(8, 1024), padding(8, 1024)), "8x1024 tokens, padded"
        ),
        Architecture(
            "llama_1b", "transformers", _llama, lambda: (tokens(1, 2048), padding(1, 2048)), "1x2048 tokens, padded"
        ),
        Architecture(
            "unet_sd15", "diffusers", _unet,
            lambda: (torch.zeros(2, 4, 64, 64), torch.tensor([10, 20]), torch.zeros(2, 77, 768)),
            "2x4x64x64, 2x77x768 conditions",
        ),
    )
}  # fmt: skip
"""The published sizes of BERT base, GPT-2 124M, a Llama of 1.2 billion parameters and the U-Net of SD 1.5."""
