"""The page's tables of training runs, made from the committed results."""

from __future__ import annotations

from typing import Any

from models.cuda import reserved_table, tight_table
from models.training.report import ways
from models.training.vgg16_memory import held_table

TITLES = {"vgg16": "VGG16 with two classes and dropout", "resnet110": "ResNet-110"}


def tutorials(records: dict[str, dict[str, Any]]) -> str:
    """Each tutorial's network trained in every way, and the memory of the VGG16 step at its own size."""
    parts = []
    for name, record in records.items():
        size = record["size"]
        parts += [f"{TITLES[name]}, batch {record['course']['batch']}, images {size}x{size}:", ways(record)]
    parts += [
        "One VGG16 step at batch 64 of 224x224, work of the plain one = 1:",
        held_table(records["vgg16"]["memory"]),
    ]
    return "\n\n".join(parts)


def reserved_bytes(record: dict[str, Any]) -> str:
    """What plans reserve of a card: the summary."""
    return reserved_table.summary(record["rows"], record["on"]["card"])


def tight_cards(record: dict[str, Any]) -> str:
    """Networks on a card of their budget."""
    return tight_table.report(record["rows"], record["on"]["card"])
