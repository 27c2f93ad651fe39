"""The pages' sentences and tables of training runs and of ever deeper networks, made from the committed results."""

from __future__ import annotations

from math import log
from typing import Any

TITLES = {"vgg16": "VGG16 with two classes and dropout", "resnet110": "ResNet-110"}
_MIB = 2**20


def tutorials(records: dict[str, dict[str, Any]]) -> str:
    """Each tutorial's network trained in every way, and the memory of the VGG16 step at its own size."""
    lines = [
        "| network, batch, images | way | activations MB | last loss | held-out accuracy | bits equal to plain |",
        "|---|---|---|---|---|---|",
    ]
    for name, record in records.items():
        course, size = record["course"], record["size"]
        for way, run in record["runs"].items():
            last = run["epochs"][-1]
            unequal = record["unequal_to_plain"].get(way)
            same = "-" if unequal is None else "all" if not unequal else "not " + ", ".join(unequal)
            peak = max(epoch["activation_nbytes"] for epoch in run["epochs"]) / 1e6
            loss = sum(last["losses"]) / len(last["losses"])
            cells = [f"{TITLES[name]}, {course['batch']}, {size}x{size}", way, f"{peak:.1f}", f"{loss:.6f}"]
            lines.append("| " + " | ".join([*cells, f"{last['accuracy']:.1%}", same]) + " |")
    lines += ["", "| one VGG16 step at batch 64 of 224x224 | everything MiB | activations MiB | work, plain = 1 |"]
    lines.append("|---|---|---|---|")
    memory = records["vgg16"]["memory"]
    for held in memory:
        mib = [f"{held[key] / _MIB:,.0f}" for key in ("total_nbytes", "activation_nbytes")]
        lines.append("| " + " | ".join([held["way"], *mib, f"{held['flops'] / memory[0]['flops']:.3f}"]) + " |")
    return "\n".join(lines)


def deep(record: dict[str, Any], wide: dict[str, Any]) -> str:
    """Memory, added time and planning seconds against depth, and the depth that fits a memory at a ``wide`` batch."""
    lines = [
        "| blocks a stage | layers | plain MB | planned MB | planned MB / sqrt(blocks) | time added | traced s "
        "| one plan s | all plans to find it s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for depth in record["depths"]:
        held = depth["planned_nbytes"] / 1e6
        cells = [str(depth["blocks"]), f"{depth['layers']:,}", f"{depth['plain_nbytes'] / 1e6:,.0f}", f"{held:,.0f}"]
        cells += [f"{held / depth['blocks'] ** 0.5:,.0f}", f"{depth['overhead']:.1%}"]
        cells += [f"{depth[key]:.1f}" for key in ("trace_s", "first_plan_s", "plan_s")]
        lines.append("| " + " | ".join(cells) + " |")
    first, middle, last = (record["depths"][number] for number in (0, len(record["depths"]) // 2, -1))
    fits, power, deeper = wide["fitting_blocks"], _growth(first, last), _growth(middle, last)
    lines += [
        "",
        f"From {first['blocks']} to {last['blocks']} blocks a stage planned memory grows as depth to the power "
        f"{power:.2f}, over the deeper half as {deeper:.2f}: towards the square root, slower at first because one more "
        f"forward pass goes further where little can be recomputed. At batch {wide['batch']:,} within {wide['memory']} "
        f"a plain step fits {fits['plain']} blocks a stage, a planned one {fits['planned']} (256 were tried at most).",
    ]
    return "\n".join(lines)


def _growth(shallow: dict[str, Any], deep: dict[str, Any]) -> float:
    """The power of depth that planned memory grows with between two depths."""
    return log(deep["planned_nbytes"] / shallow["planned_nbytes"]) / log(deep["blocks"] / shallow["blocks"])
