"""Published architectures and random graphs, written as ONNX files without weights and without torch."""

from models.graphs.families import FAMILIES, Family, write

__all__ = ["FAMILIES", "Family", "write"]
