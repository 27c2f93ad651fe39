"""Networks at sizes where activations take most of a step, each with a budget far below what eager training takes."""

from __future__ import annotations

from dataclasses import dataclass

from models.descriptions import DENSENET, VGG_DEPTHS
from models.fidelity.network_cases import bert_case, llama_case, t5_case
from models.networks.bert import BertConfig
from models.networks.convnext import ConvNeXt
from models.networks.densenet import DenseNet
from models.networks.gpt2 import GPT2Config
from models.networks.inception import Inception
from models.networks.llama import LlamaConfig
from models.networks.t5 import T5Config
from models.networks.vgg import VGG
from models.networks.vit import VisionTransformer
from models.training.cases import CLASSES, Case, gpt_case, images_case, resnet_case, unet_case


@dataclass(frozen=True, slots=True)
class Tight:
    """A case and the budget in bytes for everything that a step of it holds."""

    case: Case
    budget_nbytes: int


def _gpt(vocabulary: int, width: int) -> GPT2Config:
    return GPT2Config(vocabulary=vocabulary, context=512, layers=12, heads=8, width=width, dropout=0.1)


NETWORKS: dict[str, Tight] = {
    "resnet50": Tight(resnet_case(64, 224), 1_600_000_000),
    "vgg16": Tight(
        images_case("vgg16", "hidden 1024", lambda: VGG(VGG_DEPTHS[16], hidden=1024), 32, 224, CLASSES), 2_200_000_000
    ),
    "densenet121": Tight(
        images_case("densenet121", "whole", lambda: DenseNet(DENSENET[121], 32, 64), 64, 224, CLASSES), 1_600_000_000
    ),
    "inception_v3": Tight(images_case("inception_v3", "whole", Inception, 48, 299, CLASSES), 2_200_000_000),
    "convnext": Tight(images_case("convnext", "whole", ConvNeXt, 48, 224, CLASSES), 1_500_000_000),
    "unet": Tight(unet_case(8, 256, (64, 128, 256, 512)), 1_050_000_000),
    "vit": Tight(
        images_case(
            "vit",
            "patches of 16, 12 layers, width 384, 6 heads",
            lambda: VisionTransformer(224, 16, 384, 12, 6, 1536, CLASSES),
            128,
            224,
            CLASSES,
        ),
        1_150_000_000,
    ),
    "gpt": Tight(gpt_case(16, _gpt(8192, 512)), 1_500_000_000),
    "large_vocabulary": Tight(gpt_case(8, _gpt(50257, 256)), 2_900_000_000),
    "bert": Tight(
        bert_case(BertConfig(vocabulary=8192, context=256, layers=12, heads=8, width=512, hidden=2048), 64),
        1_200_000_000,
    ),
    "t5": Tight(
        t5_case(T5Config(vocabulary=8192, layers=6, heads=8, size=64, width=512, hidden=2048), 24, 512, 256),
        2_000_000_000,
    ),
    "llama": Tight(
        llama_case(LlamaConfig(vocabulary=8192, layers=8, heads=8, groups=2, width=512, hidden=1536), 16, 512),
        1_450_000_000,
    ),
}

SMALL: dict[str, Tight] = {
    "small_resnet": Tight(resnet_case(64, 96, (1, 1, 1, 1)), 420_000_000),
    "small_gpt": Tight(gpt_case(24, GPT2Config(4096, 256, 4, 4, 128, 0.1)), 480_000_000),
    "small_unet": Tight(unet_case(8, 128, (32, 64, 128)), 300_000_000),
}
"""Networks for tests."""
