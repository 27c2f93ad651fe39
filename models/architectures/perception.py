"""Networks other than language and vision: audio, several modalities, time series, diffusion, recurrences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.architectures.case import (
    BATCH,
    VOCABULARY,
    Case,
    Feed,
    Group,
    classes,
    drawn,
    images,
    padded,
    tokens,
)
from models.architectures.text import LARGER, SIZES, SPECIAL, two_stacks
from models.architectures.vision import VIT

_ENDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_READER = {"vocab_size": VOCABULARY, **SIZES, "max_position_embeddings": 64}
_TEXT = _READER | {"attention_dropout": 0.1, **_ENDS}
_SIGHT = SIZES | {"image_size": 32, "patch_size": 8, "projection_dim": 16, "attention_dropout": 0.1}
_SPEECH = {
    "vocab_size": 32,
    **SIZES,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}
_LARGER_SPEECH = {
    "vocab_size": 32,
    **LARGER,
    "conv_dim": (64,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}


def _speech() -> list[Case]:
    def heard() -> dict[str, Any]:
        return {"input_values": drawn(BATCH, 1600)}

    def transcribed() -> dict[str, Any]:
        return heard() | {"labels": tokens(6) % 20 + 1}

    fed = Feed("2x16000 samples", lambda: {"input_values": drawn(BATCH, 16000)})
    group = Group("audio", _SPEECH, heard, "ForCTC", larger=_LARGER_SPEECH, fed=fed)
    group.add("wav2vec2", "Wav2Vec2", compared={})
    group.add_each("hubert=Hubert unispeech=UniSpeech wavlm=WavLM sew=SEW data2vec_audio=Data2VecAudio")
    group.add("wav2vec2_ctc", "Wav2Vec2", inputs=transcribed)
    group.add("wav2vec2_augmented", "Wav2Vec2", apply_spec_augment=True, mask_time_length=2)
    group.add("wav2vec2_layerdrop", "Wav2Vec2", layerdrop=0.5)
    group.add("wav2vec2_conformer", "Wav2Vec2Conformer")
    return group.made


def _audio() -> list[Case]:
    group = Group("audio", {}, dict)
    group.add(
        "audio_spectrogram",
        "ASTForAudioClassification",
        "ASTConfig",
        **VIT | {"patch_size": 16},
        max_length=64,
        num_mel_bins=32,
        inputs=lambda: {"input_values": drawn(BATCH, 64, 32), "labels": classes()},
    )
    stacks = {"vocab_size": VOCABULARY, **two_stacks(32, 1, 4, 64)}
    larger = {"vocab_size": 1000, **two_stacks(192, 2, 6, 512)}
    whisper = {"max_source_positions": 32, "max_target_positions": 32, "num_mel_bins": 16, "attention_dropout": 0.1}
    larger |= {"max_source_positions": 128, "max_target_positions": 64, "num_mel_bins": 80, "attention_dropout": 0.0}
    features = lambda: {"input_features": drawn(BATCH, 80, 256), "decoder_input_ids": tokens(48)}  # noqa: E731
    group.add(
        "whisper",
        "WhisperForConditionalGeneration",
        **stacks | SPECIAL | whisper,
        decoder_start_token_id=1,
        inputs=lambda: {"input_features": drawn(BATCH, 16, 64), "labels": tokens(16)},
        fed=Feed("2x80x256 features, 2x48 tokens", features),
        compared=larger,
    )
    group.add(
        "speech_to_text",
        "Speech2TextForConditionalGeneration",
        **stacks,
        input_feat_per_channel=16,
        conv_channels=32,
        num_conv_layers=2,
        conv_kernel_sizes=(5, 5),
        inputs=lambda: {"input_features": drawn(BATCH, 32, 16), "labels": tokens(16)},
    )
    encodec = {"num_filters": 4, "upsampling_ratios": [4, 2], "hidden_size": 8, "codebook_dim": 8}
    sounds = lambda: {"input_values": drawn(BATCH, 1, 256)}  # noqa: E731
    group.add("encodec", "EncodecModel", **encodec, num_lstm_layers=1, codebook_size=16, inputs=sounds)
    return group.made


def _seen(side: int = 32, length: int = 16) -> dict[str, Any]:
    return padded(length) | {"pixel_values": images(side)}


def _towers() -> list[Case]:
    towers = {"text_config": _TEXT | {"projection_dim": 16}, "vision_config": _SIGHT}
    larger = {
        "text_config": {"vocab_size": 1000, **LARGER, "max_position_embeddings": 64, "projection_dim": 128, **_ENDS},
        "vision_config": {**LARGER, "image_size": 96, "patch_size": 8, "projection_dim": 128},
    }
    fed = Feed("2x32 tokens, padded, 2x3x96x96", lambda: _seen(96, 32), "logits_per_image")
    group = Group("multimodal", towers, lambda: _seen() | {"return_loss": True}, larger=larger, fed=fed)
    group.add("clip", "CLIPModel", projection_dim=16, compared={"projection_dim": 128})
    group.add("siglip", "SiglipModel", compared={})
    group.add_each(
        "chinese_clip=ChineseCLIPModel owlvit=OwlViTModel blip=BlipModel clipseg=CLIPSegModel", projection_dim=16
    )
    return group.made


def _multimodal() -> list[Case]:
    group = Group("multimodal", _READER, dict)
    group.add(
        "vilt",
        "ViltForQuestionAnswering",
        "ViltConfig",
        **VIT,
        num_labels=2,
        inputs=lambda: _seen() | {"labels": drawn(BATCH, 2).sigmoid()},
    )
    embedded = lambda: padded(16) | {"visual_embeds": drawn(BATCH, 4, 16)}  # noqa: E731
    group.add("visual_bert", "VisualBertModel", visual_embedding_dim=16, inputs=embedded)
    labelled = lambda: _seen() | {"labels": tokens(16, seed=4)}  # noqa: E731
    group.add("git", "GitForCausalLM", use_cache=False, vision_config=_SIGHT, inputs=labelled)
    layers = {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16}
    placed = lambda: padded(16) | {"visual_feats": drawn(BATCH, 4, 16), "visual_pos": drawn(BATCH, 4, 4)}  # noqa: E731
    group.add("lxmert", "LxmertModel", **layers, without=("num_hidden_layers",), inputs=placed)
    return [*group.made, Case("llava", "multimodal", "transformers", _llava, _pictured)]


def _pictured() -> dict[str, Any]:
    found = _seen(length=28) | {"labels": tokens(28, seed=4)}
    found["input_ids"][:, 2:18] = 127
    return found


def _llava(library: Any) -> nn.Module:
    config = library.LlavaConfig(
        vision_config=library.CLIPVisionConfig(**_SIGHT),
        text_config=library.LlamaConfig(**_TEXT, num_key_value_heads=2, use_cache=False),
        image_token_index=127,
        image_seq_length=16,
        vision_feature_layer=-1,
    )
    made: nn.Module = library.LlavaForConditionalGeneration(config)
    return made


def _series() -> list[Case]:
    patches = {"patch_length": 8, "patch_stride": 8, "num_input_channels": 3}
    patched = {"context_length": 32, "prediction_length": 8, "d_model": 16, **patches}
    group = Group(
        "time series", patched, lambda: {"past_values": drawn(BATCH, 32, 3), "future_values": drawn(BATCH, 8, 3)}
    )
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32, "loss": "mse"}
    group.add("patchtst", "PatchTSTForPrediction", "PatchTSTConfig", **layers)
    group.add("patchtsmixer", "PatchTSMixerForPrediction", "PatchTSMixerConfig", num_layers=2)

    def history() -> dict[str, Any]:
        return {
            "past_values": drawn(BATCH, 24),
            "past_time_features": drawn(BATCH, 24, 2),
            "past_observed_mask": torch.ones(BATCH, 24),
            "future_values": drawn(BATCH, 8),
            "future_time_features": drawn(BATCH, 8, 2),
        }

    lagged = {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2, 8], "num_time_features": 2}
    past = Group("time series", lagged | two_stacks(16, 1, 2, 32), history, "ForPrediction")
    past.add_each("time_series_transformer=TimeSeriesTransformer informer=Informer autoformer=Autoformer")
    return group.made + past.made


def _decision() -> list[Case]:
    def inputs() -> dict[str, Any]:
        return {
            "states": drawn(BATCH, 8, 5),
            "actions": drawn(BATCH, 8, 3),
            "rewards": drawn(BATCH, 8, 1),
            "returns_to_go": drawn(BATCH, 8, 1),
            "timesteps": torch.arange(8).repeat(BATCH, 1),
            "attention_mask": torch.ones(BATCH, 8, dtype=torch.int64),
        }

    group = Group("decision", {}, inputs)
    sizes = {"state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 2, "n_head": 2, "max_ep_len": 64}
    group.add("decision_transformer", "DecisionTransformerModel", **sizes)
    return group.made


def _noisy(side: int, channels: int = 3) -> dict[str, Any]:
    return {"sample": images(side, channels=channels), "timestep": torch.tensor([10, 20])}


def _conditioned(side: int, length: int, width: int) -> dict[str, Any]:
    return _noisy(side, 4) | {"encoder_hidden_states": drawn(BATCH, length, width)}


def _down_and_up(*kinds: str) -> dict[str, Any]:
    """The types of a U-Net's blocks, mirrored: ``CrossAttn`` or ``Attn``, nothing for a plain one."""
    down = tuple(f"{kind}DownBlock2D" for kind in kinds)
    return {"down_block_types": down, "up_block_types": tuple(f"{kind}UpBlock2D" for kind in reversed(kinds))}


def _diffusion() -> list[Case]:
    unet = {"sample_size": 16, "block_out_channels": (16, 32), "layers_per_block": 1, "attention_head_dim": 4}
    larger = {"layers_per_block": 2, "attention_head_dim": 8, "norm_num_groups": 8, "block_out_channels": (32, 64, 128)}
    group = Group("diffusion", {"norm_num_groups": 4}, lambda: _noisy(16), library="diffusers", larger=larger)
    group.add(
        "unet2d",
        "UNet2DModel",
        **unet | _down_and_up("", "Attn"),
        dropout=0.1,
        fed=Feed("2x3x64x64", lambda: _noisy(64), "sample"),
        compared=larger | _down_and_up("", "Attn", "") | {"sample_size": 64, "dropout": 0.0},
    )
    crossed = larger | _down_and_up("CrossAttn", "CrossAttn", "") | {"sample_size": 32, "cross_attention_dim": 96}
    group.add(
        "unet2d_condition",
        "UNet2DConditionModel",
        **unet | _down_and_up("CrossAttn", ""),
        cross_attention_dim=16,
        inputs=lambda: _conditioned(16, 8, 16),
        fed=Feed("2x4x32x32, 2x16x96 conditions", lambda: _conditioned(32, 16, 96), "sample"),
        compared=crossed,
    )
    group.add_compared(
        "unet_sd15",
        "UNet2DConditionModel",
        sample_size=64,
        block_out_channels=(320, 640, 1280, 1280),
        layers_per_block=2,
        cross_attention_dim=768,
        attention_head_dim=8,
        fed=Feed("2x4x64x64, 2x77x768 conditions", lambda: _conditioned(64, 77, 768), "sample"),
        full_size=True,
    )
    coders = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    pictures = lambda: {"sample": images(16)}  # noqa: E731
    group.add("autoencoder_kl", "AutoencoderKL", block_out_channels=(8, 16), **coders, inputs=pictures)
    return group.made


def _diffusion_transformers() -> list[Case]:
    def latents() -> dict[str, Any]:
        return {"hidden_states": images(8, channels=4), "timestep": torch.tensor([10, 20])}

    def prompted() -> dict[str, Any]:
        return latents() | {"encoder_hidden_states": drawn(BATCH, 8, 16), "pooled_projections": drawn(BATCH, 16)}

    shared = {"sample_size": 8, "in_channels": 4, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2}
    group = Group("diffusion", shared, prompted, library="diffusers")
    labelled = lambda: latents() | {"class_labels": classes()}  # noqa: E731
    group.add("dit", "DiTTransformer2DModel", norm_num_groups=4, dropout=0.1, inputs=labelled)
    projected = ("joint_attention_dim", "caption_projection_dim", "pooled_projection_dim")
    sd3 = dict.fromkeys(projected, 16) | {"patch_size": 2, "out_channels": 4, "pos_embed_max_size": 8}
    group.add("sd3", "SD3Transformer2DModel", **sd3)
    return group.made


class _Tagger(nn.Module):
    """An embedding, a recurrent layer of torch and a linear head, with dropout between."""

    def __init__(self, layer: str, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.layer = getattr(nn, layer)(32, 32, batch_first=True, **options)
        self.head = nn.Linear(64 if options.get("bidirectional") else 32, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """The mean cross entropy, a scalar."""
        hidden, _ = self.layer(nn.functional.dropout(self.embed(input_ids), 0.1, self.training))
        loss: Tensor = nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())
        return loss


def _recurrent() -> list[Case]:
    def inputs() -> dict[str, Any]:
        return {"input_ids": tokens(), "labels": tokens(seed=4)}

    def case(name: str, layer: str, **options: Any) -> Case:
        return Case(name, "recurrent", "torch", lambda _: _Tagger(layer, **options), inputs)

    return [
        case("lstm", "LSTM", num_layers=2, dropout=0.1),
        case("lstm_bidirectional", "LSTM", bidirectional=True),
        case("lstm_unbiased", "LSTM", bias=False),
        case("gru", "GRU", num_layers=2, dropout=0.1, bidirectional=True),
        case("rnn", "RNN", num_layers=2),
    ]


CASES = [
    *(*_speech(), *_audio(), *_towers(), *_multimodal(), *_series(), *_decision()),
    *(*_diffusion(), *_diffusion_transformers(), *_recurrent()),
]
