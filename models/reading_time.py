"""How long files of many ops take to be read: all that `load_model` does, before a search begins.

    python -m models.reading_time -o models/results/reading_time.json

Networks of the plan benchmark's families, of more and more layers, as bare files without weights. Seconds are those of
the processor, the least of the rounds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
from ogc_plan.planner import load_model

from models.graphs.gpt import Layer, gpt
from models.graphs.resnet import cifar_resnet
from models.reporting.command_line import add_output, command_parser
from models.reporting.option_values import count, counts
from models.reporting.result_record import publish
from models.reporting.result_table import table

NETWORKS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "ResNet for CIFAR": lambda units: cifar_resnet(9 * units + 2, 8),
    "GPT": lambda units: gpt(64, 32, [Layer(4, 16, 256)] * units, 2, vocabulary=256),
}
"""Title -> the network of a number of units."""


def of_ops(build: Callable[[int], onnx.ModelProto], ops: int) -> onnx.ModelProto:
    """The least of a family's networks with so many nodes."""
    first, second = (len(build(units).graph.node) for units in (1, 2))
    return build(max(1, 1 - (first - ops) // (second - first)))


def measured(name: str, ops: int, rounds: int) -> dict[str, Any]:
    """Nodes, ops and least processor seconds of one file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        nodes = len((proto := of_ops(NETWORKS[name], ops)).graph.node)
        path.write_bytes(proto.SerializeToString())
        seconds = []
        for _ in range(rounds):
            start = time.process_time()
            model = load_model(path)
            seconds.append(time.process_time() - start)
    return {"name": name, "nodes": nodes, "ops": len(model.training.ops), "seconds": min(seconds)}


def report(rows: Sequence[dict[str, Any]]) -> str:
    """One row a file."""
    lines = [
        [row["name"], f"{row['nodes']:,}", f"{row['ops']:,}", f"{row['seconds']:.2f}",
         f"{row['seconds'] / row['nodes'] * 1e6:.0f}"]
        for row in rows
    ]  # fmt: skip
    return table(["network", "nodes of the file", "ops of the step", "seconds", "us a node"], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the reading of each network at each size, and print the report."""
    parser = command_parser("models.reading_time", __doc__)
    add_output(parser)
    parser.add_argument("--ops", type=counts, default=(10_000, 40_000), metavar="N,...", help="nodes of the files")
    parser.add_argument("--rounds", type=count, default=3, metavar="N", help="readings of each file (default: 3)")
    options = parser.parse_args(arguments)
    for name in NETWORKS:
        measured(name, 1, 1)  # loads what is imported at first use
    rows = [measured(name, ops, options.rounds) for name in NETWORKS for ops in options.ops]
    publish(
        report(rows),
        options.output,
        script="models.reading_time",
        arguments=arguments,
        device="cpu",
        quantity="processor seconds of reading files",
        rows=rows,
    )


if __name__ == "__main__":
    main()
