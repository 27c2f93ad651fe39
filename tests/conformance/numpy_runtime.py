"""Runs the reference executor on a case: ``python -m tests.conformance.numpy_runtime FOLDER/CASE...``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.conformance.cases import dump, load
from tests.conformance.numpy_executor import Executor


def run(case: Path, executor: type[Executor] = Executor) -> None:
    """One step of a case; writes its ``log.jsonl`` and ``results.json``."""
    given = load(case / "given.json")
    runtime = executor(case / "plan.json", case / "model.onnx")
    with (case / "log.jsonl").open("w", encoding="utf-8") as log:
        events = runtime.step(given["inputs"], lambda outputs: given["seeds"])
        for (kind, name), event in zip(runtime.plan["schedule"], events, strict=True):
            log.write(json.dumps({"kind": kind, "name": name, **event}) + "\n")
    gradients = {runtime.tensors[name]: runtime.grads[name] for name in runtime.is_parameter}
    outputs = {name: runtime.values[name] for name in runtime.plan["outputs"]}
    dump(case / "results.json", {"outputs": outputs, "gradients": gradients})


if __name__ == "__main__":
    for word in sys.argv[1:]:
        run(Path(word))
