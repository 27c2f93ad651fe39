"""Published architectures and random graphs, written as ONNX files without weights and without torch."""

from .families import FAMILIES, Family, write

__all__ = ["FAMILIES", "Family", "write"]
