"""Networks of the stress run beside language and vision: audio, modalities, time series, diffusion, recurrences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.architectures.case import BATCH, VOCABULARY, Case, Group, classes, drawn, images, padding, tokens
from models.architectures.vision import VIT

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "projection_dim": 16,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "attention_dropout": 0.1,
}
_SIGHT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 16,
    "attention_dropout": 0.1,
}
_SPEECH = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}


def _audio() -> list[Case]:
    def heard() -> dict[str, Any]:
        return {"input_values": drawn(BATCH, 1600)}

    def transcribed() -> dict[str, Any]:
        return heard() | {"labels": tokens(6) % 20 + 1}

    group = Group("audio", _SPEECH, heard, "ForCTC")
    for name, model in (
        ("wav2vec2", "Wav2Vec2"),
        ("hubert", "Hubert"),
        ("unispeech", "UniSpeech"),
        ("wavlm", "WavLM"),
        ("sew", "SEW"),
    ):
        group.add(name, model)
    group.add("data2vec_audio", "Data2VecAudio")
    group.add("wav2vec2_ctc", "Wav2Vec2", inputs=transcribed)
    group.add("wav2vec2_augmented", "Wav2Vec2", apply_spec_augment=True, mask_time_length=2)
    group.add("wav2vec2_layerdrop", "Wav2Vec2", layerdrop=0.5)
    group.add("wav2vec2_conformer", "Wav2Vec2Conformer")
    rest = Group("audio", {}, dict)
    rest.add(
        "audio_spectrogram",
        "ASTForAudioClassification",
        "ASTConfig",
        **VIT | {"patch_size": 16},
        max_length=64,
        num_mel_bins=32,
        inputs=lambda: {"input_values": drawn(BATCH, 64, 32), "labels": classes()},
    )
    rest.add(
        "whisper",
        "WhisperForConditionalGeneration",
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=32,
        max_target_positions=32,
        num_mel_bins=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
        attention_dropout=0.1,
        inputs=lambda: {"input_features": drawn(BATCH, 16, 64), "labels": tokens(16)},
    )
    rest.add(
        "speech_to_text",
        "Speech2TextForConditionalGeneration",
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        input_feat_per_channel=16,
        conv_channels=32,
        use_cache=False,
        num_conv_layers=2,
        conv_kernel_sizes=(5, 5),
        inputs=lambda: {"input_features": drawn(BATCH, 32, 16), "labels": tokens(16)},
    )
    rest.add(
        "encodec",
        "EncodecModel",
        num_filters=4,
        upsampling_ratios=[4, 2],
        hidden_size=8,
        codebook_dim=8,
        num_lstm_layers=1,
        codebook_size=16,
        inputs=lambda: {"input_values": drawn(BATCH, 1, 256)},
    )
    return group.made + rest.made


def _two(side: int = 32) -> dict[str, Any]:
    return {"input_ids": tokens(16), "attention_mask": padding(16), "pixel_values": images(side), "return_loss": True}


def _multimodal() -> list[Case]:
    towers = {"text_config": _TEXT, "vision_config": _SIGHT}
    group = Group("multimodal", towers, _two)
    group.add("clip", "CLIPModel", projection_dim=16)
    group.add("siglip", "SiglipModel")
    group.add("chinese_clip", "ChineseCLIPModel", projection_dim=16)
    group.add("owlvit", "OwlViTModel", projection_dim=16)
    group.add("blip", "BlipModel", projection_dim=16)
    group.add("clipseg", "CLIPSegModel", "CLIPSegConfig", projection_dim=16)
    rest = Group("multimodal", {}, dict)

    def one() -> dict[str, Any]:
        return {
            "input_ids": tokens(16),
            "attention_mask": padding(16),
            "pixel_values": images(32),
            "labels": drawn(BATCH, 2).sigmoid(),
        }

    rest.add(
        "vilt",
        "ViltForQuestionAnswering",
        "ViltConfig",
        vocab_size=VOCABULARY,
        **VIT,
        max_position_embeddings=64,
        num_labels=2,
        inputs=one,
    )
    rest.add(
        "visual_bert",
        "VisualBertModel",
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        visual_embedding_dim=16,
        inputs=lambda: {"input_ids": tokens(16), "attention_mask": padding(16), "visual_embeds": drawn(BATCH, 4, 16)},
    )
    rest.add(
        "git",
        "GitForCausalLM",
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        use_cache=False,
        vision_config=_SIGHT,
        inputs=lambda: {
            "input_ids": tokens(16),
            "attention_mask": padding(16),
            "pixel_values": images(32),
            "labels": tokens(16, seed=4),
        },
    )
    rest.add(
        "lxmert",
        "LxmertModel",
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        l_layers=1,
        x_layers=1,
        r_layers=1,
        visual_feat_dim=16,
        inputs=lambda: {
            "input_ids": tokens(16),
            "attention_mask": padding(16),
            "visual_feats": drawn(BATCH, 4, 16),
            "visual_pos": drawn(BATCH, 4, 4),
        },
    )

    def pictured() -> dict[str, Any]:
        ids = tokens(28)
        ids[:, 2:18] = 127
        return {
            "input_ids": ids,
            "attention_mask": padding(28),
            "pixel_values": images(32),
            "labels": tokens(28, seed=4),
        }

    def llava(library: Any) -> nn.Module:
        text = library.LlamaConfig(
            **{k: v for k, v in _TEXT.items() if k != "projection_dim"}, num_key_value_heads=2, use_cache=False
        )
        made: nn.Module = library.LlavaForConditionalGeneration(
            library.LlavaConfig(
                vision_config=library.CLIPVisionConfig(**_SIGHT),
                text_config=text,
                image_token_index=127,
                image_seq_length=16,
                vision_feature_layer=-1,
            )
        )
        return made

    rest.made.append(Case("llava", "multimodal", "transformers", llava, pictured))
    return group.made + rest.made


def _series() -> list[Case]:
    patched = {
        "context_length": 32,
        "patch_length": 8,
        "patch_stride": 8,
        "num_input_channels": 3,
        "prediction_length": 8,
    }
    group = Group("time series", {}, lambda: {"past_values": drawn(BATCH, 32, 3), "future_values": drawn(BATCH, 8, 3)})
    group.add(
        "patchtst",
        "PatchTSTForPrediction",
        "PatchTSTConfig",
        **patched,
        d_model=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=32,
        loss="mse",
    )
    group.add("patchtsmixer", "PatchTSMixerForPrediction", "PatchTSMixerConfig", **patched, d_model=16, num_layers=2)

    def history() -> dict[str, Any]:
        return {
            "past_values": drawn(BATCH, 24),
            "past_time_features": drawn(BATCH, 24, 2),
            "past_observed_mask": torch.ones(BATCH, 24),
            "future_values": drawn(BATCH, 8),
            "future_time_features": drawn(BATCH, 8, 2),
        }

    timed = {
        "prediction_length": 8,
        "context_length": 16,
        "lags_sequence": [1, 2, 8],
        "num_time_features": 2,
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "use_cache": False,
    }
    past = Group("time series", timed, history, "ForPrediction")
    past.add("time_series_transformer", "TimeSeriesTransformer")
    past.add("informer", "Informer")
    past.add("autoformer", "Autoformer")
    rest = Group("decision", {}, dict)
    rest.add(
        "decision_transformer",
        "DecisionTransformerModel",
        state_dim=5,
        act_dim=3,
        hidden_size=32,
        n_layer=2,
        n_head=2,
        max_ep_len=64,
        inputs=lambda: {
            "states": drawn(BATCH, 8, 5),
            "actions": drawn(BATCH, 8, 3),
            "rewards": drawn(BATCH, 8, 1),
            "returns_to_go": drawn(BATCH, 8, 1),
            "timesteps": torch.arange(8).repeat(BATCH, 1),
            "attention_mask": torch.ones(BATCH, 8, dtype=torch.int64),
        },
    )
    return group.made + past.made + rest.made


def _diffusion() -> list[Case]:
    made: list[Case] = []

    def add(name: str, model: str, inputs: Callable[[], dict[str, Any]], **options: Any) -> None:
        made.append(Case(name, "diffusion", "diffusers", lambda library: getattr(library, model)(**options), inputs))

    def noisy() -> dict[str, Any]:
        return {"sample": images(16), "timestep": torch.tensor([10, 20])}

    def conditioned() -> dict[str, Any]:
        return {
            "sample": images(16, channels=4),
            "timestep": torch.tensor([10, 20]),
            "encoder_hidden_states": drawn(BATCH, 8, 16),
        }

    unet = {
        "sample_size": 16,
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "attention_head_dim": 4,
        "norm_num_groups": 4,
    }
    add(
        "unet2d",
        "UNet2DModel",
        noisy,
        **unet,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        dropout=0.1,
    )
    add(
        "unet2d_condition",
        "UNet2DConditionModel",
        conditioned,
        **unet,
        cross_attention_dim=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    add(
        "autoencoder_kl",
        "AutoencoderKL",
        lambda: {"sample": images(16)},
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    add(
        "dit",
        "DiTTransformer2DModel",
        lambda: {"hidden_states": images(8, channels=4), "timestep": torch.tensor([10, 20]), "class_labels": classes()},
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        norm_num_groups=4,
        dropout=0.1,
    )
    add(
        "sd3",
        "SD3Transformer2DModel",
        lambda: {
            "hidden_states": images(8, channels=4),
            "encoder_hidden_states": drawn(BATCH, 8, 16),
            "pooled_projections": drawn(BATCH, 16),
            "timestep": torch.tensor([10, 20]),
        },
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=16,
        out_channels=4,
        pos_embed_max_size=8,
    )
    return made


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


CASES = _audio() + _multimodal() + _series() + _diffusion() + _recurrent()
