"""The page's tables of training runs, made from the committed results."""

from __future__ import annotations

from typing import Any

from models.reporting.result_table import compact

TITLES = {"vgg16": "VGG16 with two classes and dropout", "resnet110": "ResNet-110"}
_MIB = 2**20


def tutorials(records: dict[str, dict[str, Any]]) -> str:
    """Each tutorial's network trained in every way, and the memory of the VGG16 step at its own size."""
    header = [
        "network, batch, images",
        "way",
        "activations MB",
        "last loss",
        "held-out accuracy",
        "bits equal to plain",
    ]
    lines = []
    for name, record in records.items():
        course, size = record["course"], record["size"]
        for way, run in record["runs"].items():
            last = run["epochs"][-1]
            unequal = record["unequal_to_plain"].get(way)
            same = "-" if unequal is None else "all" if not unequal else "not " + ", ".join(unequal)
            peak = max(epoch["activation_nbytes"] for epoch in run["epochs"]) / 1e6
            loss = sum(last["losses"]) / len(last["losses"])
            cells = [f"{TITLES[name]}, {course['batch']}, {size}x{size}", way, f"{peak:.1f}", f"{loss:.6f}"]
            lines.append([*cells, f"{last['accuracy']:.1%}", same])
    memory = records["vgg16"]["memory"]
    steps = [
        [
            held["way"],
            *(f"{held[key] / _MIB:,.0f}" for key in ("total_nbytes", "activation_nbytes")),
            f"{held['flops'] / memory[0]['flops']:.3f}",
        ]
        for held in memory
    ]
    told = ["one VGG16 step at batch 64 of 224x224", "everything MiB", "activations MiB", "work, plain = 1"]
    return f"{compact(header, lines)}\n\n{compact(told, steps)}"
