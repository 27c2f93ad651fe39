"""Networks that see: image and video classifiers, dense prediction, restoration."""

from __future__ import annotations

from typing import Any

import torch

from models.architectures.case import BATCH, Case, Feed, Group, Inputs, classes, drawn, images
from models.architectures.text import LARGER, SIZES

VIT = {"image_size": 32, "patch_size": 8, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, **SIZES}


def _labelled(side: int) -> Inputs:
    return lambda: {"pixel_values": images(side), "labels": classes()}


def _seen(side: int) -> Inputs:
    return lambda: {"pixel_values": images(side)}


def _compared(side: int) -> Feed:
    return Feed(f"2x3x{side}x{side}", _seen(side))


def _transformers() -> list[Case]:
    larger = LARGER | {"image_size": 96, "patch_size": 8}
    group = Group("vision", VIT, _labelled(32), "ForImageClassification", larger=larger, fed=_compared(96))
    group.add("vit", "ViT", compared={})
    group.add("vit_eager", "ViT", attn_implementation="eager")
    group.add("deit", "DeiT")
    group.add("beit", "Beit", use_relative_position_bias=True, compared={"attn_implementation": "eager"})
    group.add("data2vec_vision", "Data2VecVision")
    dinov2 = {"mlp_ratio": 3, "drop_path_rate": 0.0, "image_size": 98, "patch_size": 14}
    group.add("dinov2", "Dinov2", mlp_ratio=2, drop_path_rate=0.1, fed=_compared(98), compared=dinov2)
    group.add_each("vit_msn=ViTMSN ijepa=IJepa")
    return group.made


def _classifiers() -> list[Case]:
    group = Group("vision", {}, _labelled(64), "ForImageClassification", fed=_compared(96))
    windows = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "image_size": 64}
    larger = {"embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6], "window_size": 7, "image_size": 112}
    larger |= {"attn_implementation": "eager"}
    group.add("swin", "Swin", **windows, patch_size=4, fed=_compared(112), compared=larger)
    group.add("swinv2", "Swinv2", **windows, patch_size=4)
    stages = {"hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 1, 1]}
    larger = {"hidden_sizes": [32, 64, 128, 256], "depths": [2, 2, 3, 2], "drop_path_rate": 0.0}
    group.add("convnext", "ConvNext", **stages, drop_path_rate=0.1, compared=larger)
    group.add("convnextv2", "ConvNextV2", **stages)
    residual = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]}
    larger = {"embedding_size": 32, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
    group.add("resnet", "ResNet", **residual, compared=larger)
    group.add("regnet", "RegNet", **residual, groups_width=8)
    group.add("bit", "Bit", **residual, num_groups=4)
    group.add_each("mobilenet_v1=MobileNetV1 mobilenet_v2=MobileNetV2", depth_multiplier=0.25, image_size=64)
    pyramid = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "strides": [4, 2]}
    group.add("poolformer", "PoolFormer", **pyramid, patch_sizes=[7, 3], padding=[2, 1], drop_path_rate=0.1)
    heads = {"num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "sequence_reduction_ratios": [4, 1]}
    group.add("pvt", "Pvt", image_size=64, **pyramid, **heads, patch_sizes=[4, 2])
    pyramid = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]}
    group.add("pvt_v2", "PvtV2", image_size=64, **pyramid, mlp_ratios=[2, 2, 2, 2])
    group.add(
        "cvt",
        "Cvt",
        embed_dim=[8, 16],
        depth=[1, 2],
        num_heads=[1, 2],
        patch_sizes=[7, 3],
        patch_stride=[4, 2],
        patch_padding=[2, 1],
        mlp_ratio=[2.0, 2.0],
        attention_drop_rate=[0.1, 0.1],
        drop_rate=[0.1, 0.1],
        drop_path_rate=[0.0, 0.1],
        qkv_bias=[True, True],
        cls_token=[False, True],
        qkv_projection_method=["dw_bn", "dw_bn"],
        kernel_qkv=[3, 3],
        padding_kv=[1, 1],
        stride_kv=[2, 2],
        padding_q=[1, 1],
        stride_q=[1, 1],
    )
    focal = {"depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3]}
    group.add("focalnet", "FocalNet", image_size=64, embed_dim=16, **focal)
    scaled = {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320}
    group.add("efficientnet", "EfficientNet", image_size=64, **scaled)
    group.add("swiftformer", "SwiftFormer", depths=[1, 1, 1, 1], embed_dims=[8, 16, 16, 32])
    stages = {"depths": [1, 1, 1], "hidden_sizes": [32, 32, 32], "key_dim": [8, 8, 8]}
    doubled = {key: [2, 2, 2] for key in ("num_attention_heads", "mlp_ratio", "attention_ratio")}
    group.add("levit", "Levit", image_size=64, **stages, **doubled)
    neck = [8, 8, 16, 16, 16, 16, 32]
    sizes = {"hidden_sizes": [16, 16, 16], "neck_hidden_sizes": neck, "num_attention_heads": 2}
    group.add("mobilevit", "MobileViT", image_size=64, **sizes)
    group.add(
        "hiera",
        "Hiera",
        image_size=[32, 32],
        patch_kernel=[7, 7],
        patch_stride=[4, 4],
        patch_padding=[3, 3],
        masked_unit_size=[4, 4],
        embed_dim=8,
        depths=[1, 1],
        num_heads=[1, 2],
        query_stride=[2, 2],
        num_query_pool=1,
        inputs=_labelled(32),
    )
    return group.made


def _segmented() -> dict[str, Any]:
    return {"pixel_values": images(64), "labels": torch.arange(BATCH * 64 * 64).reshape(BATCH, 64, 64) % 4}


def _dense() -> list[Case]:
    group = Group("vision", {}, _seen(32))
    decoder = {f"decoder_{key}": value // 2 for key, value in SIZES.items()}
    group.add("vit_mae", "ViTMAEForPreTraining", "ViTMAEConfig", **VIT, **decoder)
    stages = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
    larger = {"hidden_sizes": [32, 64, 96, 128], "depths": [2, 2, 2, 2], "decoder_hidden_size": 96, "num_labels": 2}
    group.add(
        "segformer",
        "SegformerForSemanticSegmentation",
        **stages,
        decoder_hidden_size=16,
        num_labels=4,
        inputs=_segmented,
        fed=_compared(128),
        compared=larger,
    )
    group.add(
        "dpt",
        "DPTForDepthEstimation",
        "DPTConfig",
        **VIT | {"num_hidden_layers": 4},
        is_hybrid=False,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=16,
    )
    group.add("yolos", "YolosModel", "YolosConfig", **VIT | {"image_size": [32, 32]}, num_detection_tokens=4)
    heads = {"num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 8}
    group.add("glpn", "GLPNForDepthEstimation", "GLPNConfig", **stages, **heads, inputs=_seen(64))
    swin2sr = ("Swin2SRForImageSuperResolution", "Swin2SRConfig")
    windows = {"image_size": 16, "embed_dim": 16, "depths": [1], "num_heads": [2], "window_size": 4}
    group.add("swin2sr", *swin2sr, **windows, inputs=_seen(16))
    return group.made


def _video() -> list[Case]:
    def inputs() -> dict[str, Any]:
        return {"pixel_values": drawn(BATCH, 4, 3, 32, 32), "labels": classes()}

    group = Group("vision", VIT, inputs, "ForVideoClassification")
    decoder = {"decoder_hidden_size": 16, "decoder_num_attention_heads": 2}
    group.add("videomae", "VideoMAE", num_frames=4, tubelet_size=2, **decoder)
    group.add("timesformer", "Timesformer", num_frames=4)
    group.add("vivit", "Vivit", num_frames=4, tubelet_size=[2, 8, 8])
    return group.made


CASES = _transformers() + _classifiers() + _dense() + _video()
