"""Write a zoo network as a small ONNX file without weights: ``python -m models.export NAME -o FILE``.

The module is built on the meta device, so neither weights nor activations are ever allocated. Weights
become references to external data that is not written; a planner needs their shapes only.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnx_ir
import torch
from torch import Tensor, nn

from models.reporting.command_line import command_parser
from models.zoo import ZOO, Entry

OPSET = 23  # the first with Attention


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's progress, its notes on missing optional packages and on training mode."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def export_with_weights(module: nn.Module, inputs: tuple[Tensor, ...], path: Path, *, opset: int = OPSET) -> None:
    """Write the training-mode forward of ``module`` with its weights into one file."""
    with quiet():
        torch.onnx.export(
            module.train(), inputs, path, dynamo=True, optimize=False, opset_version=opset, verbose=False,
            external_data=False,
        )  # fmt: skip


def export_module(module: nn.Module, inputs: tuple[Tensor, ...], *, opset: int = OPSET) -> onnx.ModelProto:
    """The training-mode forward of ``module`` as a model whose weights are dangling external references.

    ``module`` and ``inputs`` may live on the meta device. ``optimize=False`` matters: the optimiser folds a
    training batch norm into its convolution.
    """
    with quiet():
        program = torch.onnx.export(
            module.train(), inputs, dynamo=True, optimize=False, opset_version=opset, verbose=False
        )
    assert program is not None
    model = program.model
    offset = 0
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        value.const_value = onnx_ir.ExternalTensor(
            "weights.not.stored", offset, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name
        )
        offset += tensor.nbytes
    for node in model.graph.all_nodes():
        trace = node.metadata_props.pop("pkg.torch.onnx.stack_trace", "").strip()  # file names of the exporting machine
        line = trace.splitlines()[-1].strip() if trace else ""
        if line and not line.startswith("File "):
            node.metadata_props["pkg.torch.onnx.stack_trace"] = line  # tells a dropout of nothing from a copy
    return onnx_ir.serde.serialize_model(model)


def export_entry(entry: Entry, *, batch: int, extent: int) -> onnx.ModelProto:
    """Export one network of the zoo at a batch and an image side or sequence length."""
    with torch.device("meta"):
        return export_module(entry.build(extent), entry.inputs(batch, extent))


def check_model(model: onnx.ModelProto) -> None:
    """Run the official checker with strict shape inference.

    The checker wants the external file to exist: a sparse one of the right length stands in for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        for initializer in model.graph.initializer:
            entries = {entry.key: entry.value for entry in initializer.external_data}
            if entries:
                with (Path(folder) / entries["location"]).open("ab") as file:
                    file.truncate(max(file.tell(), int(entries["offset"]) + int(entries["length"])))
        onnx.checker.check_model(str(path), full_check=True)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("models.export", __doc__)
    parser.add_argument("name", choices=ZOO, help="a network of the zoo")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write")
    parser.add_argument("--batch", type=int, help="batch size (default: the network's own)")
    parser.add_argument("--size", type=int, help="side of the square input image, in pixels")
    parser.add_argument("--seq", type=int, help="length of the token sequence")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Export what the command line asks for and say what was written."""
    parser = _parser()
    options = parser.parse_args(arguments)
    entry, path = ZOO[options.name], options.output
    wrong, right = ("size", "seq") if entry.takes_tokens else ("seq", "size")
    if getattr(options, wrong):
        parser.error(f"{options.name} has no --{wrong}; use --{right}")
    batch, extent = options.batch or entry.batch, getattr(options, right) or entry.extent
    model = export_entry(entry, batch=batch, extent=extent)
    check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    print(f"{path}: {entry.name} {entry.describe(batch, extent)}, {path.stat().st_size / 1000:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
