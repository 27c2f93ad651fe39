"""The modules to wrap as JSON: paths, the predicted peak, and the lines of Python that use them."""

from __future__ import annotations

import json
from typing import Any

from .emit import Emission

FORMAT = "ogc-plan-torch-modules"
VERSION = 1

_USE = (
    "import json; from functools import partial; from torch.utils.checkpoint import checkpoint",
    "for path in json.load(open({file}))['modules']:",
    "    m = model.get_submodule(path); m.forward = partial(checkpoint, m.forward, use_reentrant=False)",
)

NORMS = (
    "a batch norm listed with n runs moves its running statistics n times in a step; momentum "
    "1 - (1 - momentum) ** (1 / n) makes them one move together "
    "(momentum None needs no change), and num_batches_tracked counts n for 1"
)


def module_list(emission: Emission, file: str = "modules.json") -> str:
    """The emission as JSON text, in bytes and nanoseconds, with the lines of Python that use the file ``file``."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        **prediction(emission),
        "modules": list(emission.paths),
        "batch_norms": emission.batch_norms,
        "notes": [NORMS] if emission.batch_norms else [],
        "use": [line.format(file=ascii(file)) for line in _USE],
    }
    return json.dumps(data, indent=1) + "\n"


def prediction(emission: Emission) -> dict[str, Any]:
    """The prediction for the step, and the plan it was made for, as both emitted files contain it."""
    plan, timeline, unwrapped = emission.plan, emission.made.timeline, emission.unwrapped.timeline
    source = plan.model.annotations
    return {
        "model": {"file": plan.model.file, "fingerprint": plan.model.fingerprint},
        "annotations": None if source is None else {"framework": source.framework, "device": source.device},
        "budget": {"text": plan.budget.text, "nbytes": plan.budget.nbytes, "scope": plan.budget.scope},
        "peak": {
            "total_nbytes": timeline.peak_total_nbytes,
            "activation_nbytes": timeline.peak_activation_nbytes,
            "unwrapped_total_nbytes": unwrapped.peak_total_nbytes,
            "unwrapped_activation_nbytes": unwrapped.peak_activation_nbytes,
        },
        "time": {
            "recompute_ns": timeline.recompute_ns,
            "store_all_ns": plan.time.store_all_ns,
            "overhead": round(emission.overhead, 9),
            "overhead_of_plan": round(plan.time.overhead, 9),
            "source": plan.time.source,
        },
    }
