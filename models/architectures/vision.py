"""Networks of the stress run that see: image and video classifiers, dense prediction, restoration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from models.architectures.case import BATCH, Case, Group, classes, drawn, images

VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}


def _labelled(side: int, **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": images(side), "labels": classes(), **more}


def _seen(side: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": images(side)}


def _vision() -> list[Case]:
    group = Group("vision", VIT, _labelled(32), "ForImageClassification")
    group.add("vit", "ViT")
    group.add("vit_eager", "ViT", attn_implementation="eager")
    group.add("deit", "DeiT")
    group.add("beit", "Beit", use_relative_position_bias=True)
    group.add("data2vec_vision", "Data2VecVision")
    group.add("dinov2", "Dinov2", mlp_ratio=2, drop_path_rate=0.1)
    group.add("vit_msn", "ViTMSN")
    group.add("ijepa", "IJepa")
    nets = Group("vision", {}, _labelled(64), "ForImageClassification")
    nets.add("swin", "Swin", embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4, image_size=64, patch_size=4)
    nets.add(
        "swinv2", "Swinv2", embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4, image_size=64, patch_size=4
    )
    nets.add("convnext", "ConvNext", hidden_sizes=[8, 16, 32, 32], depths=[1, 1, 1, 1], drop_path_rate=0.1)
    nets.add("convnextv2", "ConvNextV2", hidden_sizes=[8, 16, 32, 32], depths=[1, 1, 1, 1])
    nets.add("resnet", "ResNet", embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1])
    nets.add("regnet", "RegNet", embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], groups_width=8)
    nets.add("bit", "Bit", embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], num_groups=4)
    nets.add("mobilenet_v1", "MobileNetV1", depth_multiplier=0.25, image_size=64)
    nets.add("mobilenet_v2", "MobileNetV2", depth_multiplier=0.25, image_size=64)
    nets.add(
        "poolformer",
        "PoolFormer",
        hidden_sizes=[8, 16],
        depths=[1, 1],
        num_encoder_blocks=2,
        patch_sizes=[7, 3],
        strides=[4, 2],
        padding=[2, 1],
        drop_path_rate=0.1,
    )
    nets.add(
        "pvt",
        "Pvt",
        image_size=64,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        num_encoder_blocks=2,
        patch_sizes=[4, 2],
        strides=[4, 2],
        sequence_reduction_ratios=[4, 1],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
    )
    nets.add(
        "pvt_v2",
        "PvtV2",
        image_size=64,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        mlp_ratios=[2, 2, 2, 2],
    )
    nets.add(
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
    nets.add(
        "focalnet", "FocalNet", image_size=64, embed_dim=16, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3]
    )
    nets.add(
        "efficientnet", "EfficientNet", image_size=64, width_coefficient=0.25, depth_coefficient=0.1, hidden_dim=320
    )
    nets.add("swiftformer", "SwiftFormer", depths=[1, 1, 1, 1], embed_dims=[8, 16, 16, 32])
    nets.add(
        "levit",
        "Levit",
        image_size=64,
        hidden_sizes=[32, 32, 32],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        mlp_ratio=[2, 2, 2],
        attention_ratio=[2, 2, 2],
    )
    nets.add(
        "mobilevit",
        "MobileViT",
        image_size=64,
        hidden_sizes=[16, 16, 16],
        neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32],
        num_attention_heads=2,
    )
    nets.add(
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
    rest = Group("vision", {}, _seen(32))
    rest.add(
        "vit_mae",
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        **VIT,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
    )
    rest.add(
        "segformer",
        "SegformerForSemanticSegmentation",
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=16,
        num_labels=4,
        inputs=lambda: {"pixel_values": images(64), "labels": torch.arange(BATCH * 64 * 64).reshape(BATCH, 64, 64) % 4},
    )
    rest.add(
        "dpt",
        "DPTForDepthEstimation",
        "DPTConfig",
        **VIT | {"num_hidden_layers": 4},
        is_hybrid=False,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=16,
    )
    rest.add("yolos", "YolosModel", "YolosConfig", **VIT | {"image_size": [32, 32]}, num_detection_tokens=4)
    rest.add(
        "glpn",
        "GLPNForDepthEstimation",
        "GLPNConfig",
        hidden_sizes=[8, 16, 16, 32],
        num_attention_heads=[1, 2, 2, 4],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=8,
        inputs=_seen(64),
    )
    rest.add(
        "swin2sr",
        "Swin2SRForImageSuperResolution",
        "Swin2SRConfig",
        image_size=16,
        embed_dim=16,
        depths=[1],
        num_heads=[2],
        window_size=4,
        inputs=_seen(16),
    )
    video = Group(
        "vision",
        VIT,
        lambda: {"pixel_values": drawn(BATCH, 4, 3, 32, 32), "labels": classes()},
        "ForVideoClassification",
    )
    video.add(
        "videomae", "VideoMAE", num_frames=4, tubelet_size=2, decoder_hidden_size=16, decoder_num_attention_heads=2
    )
    video.add("timesformer", "Timesformer", num_frames=4)
    video.add("vivit", "Vivit", num_frames=4, tubelet_size=[2, 8, 8])
    return group.made + nets.made + rest.made + video.made


CASES = _vision()
