"""Eleven networks to train exactly within a budget, each deep as published and narrow enough for two CPU cores.

A step takes a tenth of a second to half a second. ResNet-50, DenseNet-121 and Inception-v3 are whole, on few small
images; the others keep their depth and have less width. T5 has two inputs, BERT and the LSTM classify sequences.
Every dropout is on. The LSTM runs twice: with oneDNN, one call a layer, and without it, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from models.descriptions import DENSENET
from models.networks.bert import Bert, BertConfig
from models.networks.convnext import ConvNeXt
from models.networks.densenet import DenseNet
from models.networks.gpt2 import GPT2Config
from models.networks.inception import Inception
from models.networks.llama import Llama, LlamaConfig
from models.networks.lstm import LSTMClassifier, LSTMConfig
from models.networks.t5 import T5, T5Config
from models.networks.vit import VisionTransformer
from models.training.cases import Case, Supervised, gpt_case, images_case, next_token_case, resnet_case, unet_case

CLASSES = 100
PUBLISHED_CLASSES = 1000
LABELS = 2


class SupervisedPair(Supervised):
    """A network of two inputs with its loss."""

    def forward(self, inputs: Tensor, decoded: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        """Both inputs of the network and targets -> scalar loss."""
        return self.loss(self.network(inputs, decoded), targets)


class BertClassifier(nn.Module):
    """BERT with a head over its pooled state, as it is fine-tuned."""

    def __init__(self, config: BertConfig, labels: int = LABELS) -> None:
        super().__init__()
        self.bert = Bert(config)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.width, labels)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids [N, T] (int64) -> class scores [N, labels]."""
        _, pooled = self.bert(ids)
        return self.head(self.dropout(pooled))


def sequences_case(
    name: str, sizes: str, network: Callable[[], nn.Module], batch: int, length: int, vocabulary: int
) -> Case:
    """A classifier of token sequences into `LABELS` classes."""

    def inputs(seed: int) -> tuple[Tensor, ...]:
        drawn = torch.Generator().manual_seed(seed)
        ids = torch.randint(vocabulary, (batch, length), generator=drawn)
        return ids, torch.randint(LABELS, (batch,), generator=drawn)

    told = f"batch {batch}, {length} tokens, {sizes}, vocabulary {vocabulary}"
    return Case(name, told, lambda: Supervised(network()).train(), inputs)


def bert_case(config: BertConfig, batch: int) -> Case:
    """BERT over its whole context."""
    sizes = f"{config.layers} layers, width {config.width}, {config.heads} heads, dropout {config.dropout}"
    network = lambda: BertClassifier(config)  # noqa: E731
    return sequences_case("bert", sizes, network, batch, config.context, config.vocabulary)


def lstm_case(name: str, config: LSTMConfig, batch: int, length: int, *, onednn: bool) -> Case:
    """The LSTM classifier, with oneDNN on or off."""
    kernels = "oneDNN" if onednn else "oneDNN off"
    sizes = f"{config.layers} layers of 2 x {config.units} units, dropout {config.dropout}, {kernels}"
    made = sequences_case(name, sizes, lambda: LSTMClassifier(config), batch, length, config.vocabulary)
    return replace(made, onednn=onednn)


def llama_case(config: LlamaConfig, batch: int, length: int) -> Case:
    """A Llama-style decoder predicting the next token."""
    sizes = (
        f"{config.layers} layers, width {config.width}, {config.heads} heads in {config.groups} groups, "
        f"hidden {config.hidden}, vocabulary {config.vocabulary}"
    )
    return next_token_case("llama", sizes, lambda: Llama(config), batch, length, config.vocabulary)


def t5_case(config: T5Config, batch: int, length: int, decoded: int) -> Case:
    """A T5-style encoder over ``length`` tokens and a decoder over ``decoded``, predicting the next one."""

    def inputs(seed: int) -> tuple[Tensor, ...]:
        drawn = torch.Generator().manual_seed(seed)
        ids = torch.randint(config.vocabulary, (batch, length), generator=drawn)
        targets = torch.randint(config.vocabulary, (batch, decoded + 1), generator=drawn)
        return ids, targets[:, :-1].contiguous(), targets[:, 1:].contiguous()

    sizes = (
        f"batch {batch}, {length} tokens to {decoded}, {config.layers} + {config.layers} layers, width {config.width}, "
        f"{config.heads} heads of {config.size}, vocabulary {config.vocabulary}, dropout {config.dropout}"
    )
    return Case("t5", sizes, lambda: SupervisedPair(T5(config), classes_last=True).train(), inputs)


_ALL = (
    llama_case(LlamaConfig(vocabulary=512, layers=8, heads=8, groups=2, width=128, hidden=384), 2, 128),
    gpt_case(2, GPT2Config(vocabulary=512, context=128, layers=12, heads=4, width=128, dropout=0.1)),
    images_case(
        "vit",
        "patches of 16, 12 layers, width 128, 4 heads",
        lambda: VisionTransformer(112, 16, 128, 12, 4, 512, CLASSES),
        4,
        112,
        CLASSES,
    ),
    bert_case(BertConfig(vocabulary=512, context=96, layers=12, heads=4, width=128, hidden=512), 2),
    t5_case(T5Config(vocabulary=512, layers=6, heads=4, size=32, width=128, hidden=512), 2, 96, 64),
    images_case(
        "convnext",
        "stages of 3-3-9-3 blocks, widths 24-48-96-192",
        lambda: ConvNeXt((3, 3, 9, 3), (24, 48, 96, 192), CLASSES),
        4,
        96,
        CLASSES,
    ),
    resnet_case(4, 96),
    lstm_case("lstm", LSTMConfig(vocabulary=512, width=64, units=64), 8, 16, onednn=False),
    lstm_case("lstm_onednn", LSTMConfig(vocabulary=512, width=64, units=64), 8, 16, onednn=True),
    unet_case(1, 128),
    images_case(
        "densenet121", "whole", lambda: DenseNet(DENSENET[121], 32, 64, PUBLISHED_CLASSES), 2, 96, PUBLISHED_CLASSES
    ),
    images_case("inception_v3", "whole", Inception, 2, 107, PUBLISHED_CLASSES),
)

NETWORKS: dict[str, Case] = {case.name: case for case in _ALL}
"""Every case by name."""
