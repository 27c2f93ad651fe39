"""The graphs of the plan benchmark: networks of the onnx package, PyTorch exports, and generated architectures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from models.graphs import FAMILIES, write
from models.light import NAMES, light_path

LIGHT_BATCH = 32
EXPORTS = ("resnet50", "gpt2", "vit_b16", "unet")


@dataclass(frozen=True, slots=True)
class Source:
    """One graph: its name in the results, what it is, and the batch it is planned at (None: as the file says)."""

    name: str
    origin: str
    batch: int | None = None

    def file(self, folder: Path) -> Path:
        """The ONNX file, written into ``folder`` once unless the onnx package ships it. Exports need torch."""
        kind, _, name = self.name.partition("-")
        if kind == "light":
            return light_path(name)
        path, unfinished = folder / f"{self.name}.onnx", folder / f"{self.name}.unfinished.onnx"
        if not path.exists():
            if kind == "torch":
                subprocess.run([sys.executable, "-m", "models.export", name, "-o", str(unfinished)], check=True)
            else:
                write(self.name, unfinished)
            unfinished.replace(path)
        return path


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        *(Source(f"light-{name}", "ships with the onnx package", LIGHT_BATCH) for name in NAMES),
        *(Source(f"torch-{name}", "exported from PyTorch") for name in EXPORTS),
        *(Source(family.name, f"{family.origin}, batch {family.batch}") for family in FAMILIES.values()),
    )
}
"""Every graph by name."""
