"""Random-weight networks of `transformers` and `diffusers`: the real layer structure, few layers, small widths.

Both packages are optional (the ``models`` extra); nothing here imports them before a network is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = (2, 128)  # batch, sequence length


class Taking(nn.Module):
    """A model of a library as a module of positional tensors that returns one tensor of its output record."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], output: str, **fixed: object) -> None:
        super().__init__()
        self.model = model
        self.names, self.output, self.fixed = names, output, fixed

    def forward(self, *inputs: Tensor) -> Tensor:
        """The named output of the model called with keyword arguments."""
        made = self.model(**dict(zip(self.names, inputs, strict=True)), **self.fixed)
        result: Tensor = getattr(made, self.output)
        return result


@dataclass(frozen=True, slots=True)
class Architecture:
    """One network: how to build it, what to feed it, and the shape of what it is fed in words.

    ``half`` makes its parameters and floating-point inputs bfloat16.
    """

    name: str
    library: str
    build: Callable[[Any], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    size: str
    half: bool = False

    def make(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The network in training mode, with its inputs."""
        module, inputs = self.build(import_module(self.library)).train(), self.inputs()
        if not self.half:
            return module, inputs
        return module.to(torch.bfloat16), tuple(
            entry.to(torch.bfloat16) if entry.is_floating_point() else entry for entry in inputs
        )


def tokens(batch: int = TOKENS[0], length: int = TOKENS[1], vocabulary: int = 1000) -> Tensor:
    """Token ids [batch, length]; the same on every call, none of them a special one."""
    return torch.arange(batch * length).reshape(batch, length) * 7 % (vocabulary - 10) + 5


def images(side: int, batch: int = 2) -> Tensor:
    """Images [batch, 3, side, side]."""
    return torch.zeros(batch, 3, side, side)


def padding(batch: int = TOKENS[0], length: int = TOKENS[1]) -> Tensor:
    """An attention mask [batch, length] whose last row is padded by a quarter, as in any mixed batch.

    Without one, transformers takes ways in eager runs that it cannot take while it is traced.
    """
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - length // 4 :] = 0
    return mask


def _text(name: str, model: str, config: str, *, length: int = TOKENS[1], **options: object) -> Architecture:
    """A language model that reads token ids and their padding, and gives logits."""

    def build(library: Any) -> nn.Module:
        fixed = {} if "MaskedLM" in model else {"use_cache": False}
        made = getattr(library, model)(getattr(library, config)(**options))
        return Taking(made, ("input_ids", "attention_mask"), "logits", **fixed)

    def inputs() -> tuple[Tensor, ...]:
        return tokens(length=length), padding(length=length)

    return Architecture(name, "transformers", build, inputs, f"2x{length} tokens, padded")


def _with_loss(library: Any) -> nn.Module:
    model = library.LlamaForCausalLM(library.LlamaConfig(**_LLAMA))
    return Taking(model, ("input_ids", "attention_mask", "labels"), "loss", use_cache=False)


def _image(name: str, model: str, config: str, side: int, output: str = "logits", **options: object) -> Architecture:
    """A vision model that reads images."""

    def build(library: Any) -> nn.Module:
        return Taking(getattr(library, model)(getattr(library, config)(**options)), ("pixel_values",), output)

    return Architecture(name, "transformers", build, lambda: (images(side),), f"2x3x{side}x{side}")


def _t5(library: Any) -> nn.Module:
    config = library.T5Config(
        vocab_size=1000, d_model=192, d_kv=32, d_ff=512, num_layers=3, num_heads=6, decoder_start_token_id=0
    )
    model = library.T5ForConditionalGeneration(config)
    return Taking(model, ("input_ids", "attention_mask", "decoder_input_ids"), "logits", use_cache=False)


def _bart(library: Any) -> nn.Module:
    config = library.BartConfig(
        vocab_size=1000, d_model=192, encoder_layers=2, decoder_layers=2, encoder_attention_heads=6,
        decoder_attention_heads=6, encoder_ffn_dim=512, decoder_ffn_dim=512, max_position_embeddings=256,
    )  # fmt: skip
    model = library.BartForConditionalGeneration(config)
    return Taking(model, ("input_ids", "attention_mask", "decoder_input_ids"), "logits", use_cache=False)


def _whisper(library: Any) -> nn.Module:
    config = library.WhisperConfig(
        vocab_size=1000, d_model=192, encoder_layers=2, decoder_layers=2, encoder_attention_heads=6,
        decoder_attention_heads=6, encoder_ffn_dim=512, decoder_ffn_dim=512, max_source_positions=128,
        max_target_positions=64, num_mel_bins=80, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    model = library.WhisperForConditionalGeneration(config)
    return Taking(model, ("input_features", "decoder_input_ids"), "logits", use_cache=False)


_TOWERS = {
    "text_config": {
        "vocab_size": 1000, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 6, "max_position_embeddings": 64, "projection_dim": 128,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    },
    "vision_config": {
        "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 6,
        "image_size": 96, "patch_size": 8, "projection_dim": 128,
    },
}  # fmt: skip


def _clip(library: Any) -> nn.Module:
    model = library.CLIPModel(library.CLIPConfig(**_TOWERS, projection_dim=128))
    return Taking(model, ("input_ids", "attention_mask", "pixel_values"), "logits_per_image")


def _siglip(library: Any) -> nn.Module:
    model = library.SiglipModel(library.SiglipConfig(**_TOWERS))
    return Taking(model, ("input_ids", "attention_mask", "pixel_values"), "logits_per_image")


def _wav2vec2(library: Any) -> nn.Module:
    config = library.Wav2Vec2Config(
        vocab_size=32, hidden_size=192, num_hidden_layers=3, num_attention_heads=6, intermediate_size=512,
        conv_dim=(64,) * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, apply_spec_augment=False,
        layerdrop=0.0,
    )  # fmt: skip
    return Taking(library.Wav2Vec2ForCTC(config), ("input_values",), "logits")


def _unet(library: Any) -> nn.Module:
    model = library.UNet2DModel(
        sample_size=64,
        in_channels=3,
        out_channels=3,
        block_out_channels=(32, 64, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=2,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    return Taking(model, ("sample", "timestep"), "sample")


def _unet_condition(library: Any) -> nn.Module:
    model = library.UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(32, 64, 128),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=2,
        cross_attention_dim=96,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    return Taking(model, ("sample", "timestep", "encoder_hidden_states"), "sample")


_BERT = {
    "vocab_size": 1000, "hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 6,
    "intermediate_size": 512, "max_position_embeddings": 256,
}  # fmt: skip
_LLAMA = {
    "vocab_size": 1000, "hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "intermediate_size": 512, "max_position_embeddings": 256,
}  # fmt: skip

ARCHITECTURES = {
    entry.name: entry
    for entry in (
        _text("bert", "BertForMaskedLM", "BertConfig", **_BERT),
        _text("roberta", "RobertaForMaskedLM", "RobertaConfig", **_BERT),
        _text(
            "distilbert", "DistilBertForMaskedLM", "DistilBertConfig",
            vocab_size=1000, dim=192, n_layers=3, n_heads=6, hidden_dim=512, max_position_embeddings=256,
        ),
        _text("albert", "AlbertForMaskedLM", "AlbertConfig", embedding_size=64, **_BERT),
        _text(
            "deberta_v2", "DebertaV2ForMaskedLM", "DebertaV2Config", relative_attention=True, position_buckets=32,
            pos_att_type=["p2c", "c2p"], position_biased_input=False, norm_rel_ebd="layer_norm", share_att_key=True,
            **_BERT,
        ),
        _text(
            "gpt2", "GPT2LMHeadModel", "GPT2Config",
            vocab_size=1000, n_positions=256, n_embd=192, n_layer=3, n_head=6,
        ),
        _text("llama", "LlamaForCausalLM", "LlamaConfig", **_LLAMA | {"num_key_value_heads": 6}),
        _text("mistral", "MistralForCausalLM", "MistralConfig", sliding_window=64, **_LLAMA),
        _text("qwen2", "Qwen2ForCausalLM", "Qwen2Config", **_LLAMA),
        _text("qwen3", "Qwen3ForCausalLM", "Qwen3Config", head_dim=32, **_LLAMA),
        _text("gemma2", "Gemma2ForCausalLM", "Gemma2Config", head_dim=32, query_pre_attn_scalar=32, **_LLAMA),
        _text(
            "mixtral", "MixtralForCausalLM", "MixtralConfig", length=16, num_local_experts=4,
            experts_implementation="batched_mm", **_LLAMA,
        ),
        _text(
            "falcon", "FalconForCausalLM", "FalconConfig",
            vocab_size=1000, hidden_size=192, num_hidden_layers=3, num_attention_heads=6, num_kv_heads=2,
            new_decoder_architecture=True,
        ),
        _text("bloom", "BloomForCausalLM", "BloomConfig", vocab_size=1000, hidden_size=192, n_layer=3, n_head=6),
        _text(
            "opt", "OPTForCausalLM", "OPTConfig", vocab_size=1000, hidden_size=192, num_hidden_layers=3, ffn_dim=512,
            num_attention_heads=6, max_position_embeddings=256, word_embed_proj_dim=192,
        ),
        _text(
            "mamba", "MambaForCausalLM", "MambaConfig",
            vocab_size=1000, hidden_size=96, num_hidden_layers=2, state_size=8, use_mambapy=False,
        ),
        Architecture(
            "t5", "transformers", _t5, lambda: (tokens(), padding(), tokens(length=96)),
            "2x128 tokens, padded, to 2x96",
        ),
        Architecture(
            "bart", "transformers", _bart, lambda: (tokens(), padding(), tokens(length=96)),
            "2x128 tokens, padded, to 2x96",
        ),
        Architecture(
            "whisper", "transformers", _whisper,
            lambda: (torch.zeros(2, 80, 256), tokens(length=48)), "2x80x256 features, 2x48 tokens",
        ),
        Architecture(
            "llama_loss", "transformers", _with_loss, lambda: (tokens(), padding(), tokens()),
            "2x128 tokens, padded, and labels",
        ),
        Architecture("wav2vec2", "transformers", _wav2vec2, lambda: (torch.zeros(2, 16000),), "2x16000 samples"),
        Architecture(
            "clip", "transformers", _clip,
            lambda: (tokens(length=32), padding(length=32), images(96)),
            "2x32 tokens, padded, 2x3x96x96",
        ),
        Architecture(
            "siglip", "transformers", _siglip,
            lambda: (tokens(length=32), padding(length=32), images(96)),
            "2x32 tokens, padded, 2x3x96x96",
        ),
        _image(
            "vit", "ViTForImageClassification", "ViTConfig", 96, hidden_size=192, num_hidden_layers=3,
            num_attention_heads=6, intermediate_size=512, image_size=96, patch_size=8,
        ),
        _image(
            "dinov2", "Dinov2ForImageClassification", "Dinov2Config", 98, hidden_size=192, num_hidden_layers=3,
            num_attention_heads=6, mlp_ratio=3, image_size=98, patch_size=14,
        ),
        _image(
            "beit", "BeitForImageClassification", "BeitConfig", 96, hidden_size=192, num_hidden_layers=3,
            num_attention_heads=6, intermediate_size=512, image_size=96, patch_size=8, use_relative_position_bias=True,
            attn_implementation="eager",
        ),
        _image(
            "swin", "SwinForImageClassification", "SwinConfig", 112, embed_dim=48, depths=[2, 2], num_heads=[3, 6],
            window_size=7, image_size=112, patch_size=4, attn_implementation="eager",
        ),
        _image(
            "convnext", "ConvNextForImageClassification", "ConvNextConfig", 96,
            hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 3, 2],
        ),
        _image("resnet", "ResNetForImageClassification", "ResNetConfig", 96,
            embedding_size=32, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
        ),
        _image(
            "segformer", "SegformerForSemanticSegmentation", "SegformerConfig", 128,
            hidden_sizes=[32, 64, 96, 128], depths=[2, 2, 2, 2], decoder_hidden_size=96,
        ),
        Architecture(
            "unet2d", "diffusers", _unet, lambda: (torch.zeros(2, 3, 64, 64), torch.tensor([10, 20])), "2x3x64x64",
        ),
        Architecture(
            "unet2d_condition", "diffusers", _unet_condition,
            lambda: (torch.zeros(2, 4, 32, 32), torch.tensor([10, 20]), torch.zeros(2, 16, 96)),
            "2x4x32x32, 2x16x96 conditions",
        ),
    )
}  # fmt: skip
