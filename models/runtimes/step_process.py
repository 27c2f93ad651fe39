"""One training step of an ONNX file in a process of its own: what ONNX Runtime holds at most, and the gradients.

    python -m models.runtimes.step_process step.onnx batch.npz gradients.npz

prints the bytes by which the resident memory rises during a step, and its seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from ogc_plan.adapters.onnxruntime import Trainer

_STEPS = 2
"""The first one also sets up what stays."""


def resident(key: str) -> int:
    """A line of what the kernel says of this process, in bytes: VmRSS, or VmHWM since it was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def main() -> None:
    """Run two steps and print what the second one held."""
    step, batch, out = sys.argv[1:]
    trainer = Trainer(step, threads=1)
    feed = dict(np.load(batch))
    for _ in range(_STEPS):
        Path("/proc/self/clear_refs").write_text("5")
        before, begin = resident("VmRSS"), time.perf_counter()
        trainer.run_once(feed)
        seconds, held = time.perf_counter() - begin, resident("VmHWM") - before
    np.savez(out, **{f"g {name}": value for name, value in trainer.gradients(feed).items()})
    print(json.dumps({"held_nbytes": held, "seconds": seconds}))


if __name__ == "__main__":
    main()
