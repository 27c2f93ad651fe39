"""Print the path of a full-size network that ships inside the onnx package, a few KB each.

python -m models.light resnet50
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

NAMES = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
         "zfnet512")  # fmt: skip


def light_path(name: str) -> Path:
    """Where the onnx package keeps the network."""
    spec = find_spec("onnx")
    if spec is None or spec.origin is None:
        raise SystemExit("the onnx package is not installed")
    return Path(spec.origin).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in NAMES:
        raise SystemExit(f"usage: python -m models.light {'|'.join(NAMES)}")
    print(light_path(sys.argv[1]))
