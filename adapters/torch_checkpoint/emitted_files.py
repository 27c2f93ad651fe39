"""The files that are emitted: the modules to wrap as JSON, and a selective policy for them as Python."""

from __future__ import annotations

import json
from textwrap import wrap
from typing import Any

from ...planner.units import format_both
from .emit import PEAKS, Emission

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


_HEAD = '''\
"""Selective checkpointing of one training step, made by ogc-plan: call apply(model) once, then train as ever.

Each module named in SAVED runs under torch.utils.checkpoint (not reentrant, early stop). Inside it the calls
listed are saved, all others are run again in the backward: {module: {aten op: calls, counted from 0}}.

What torch's policy can express, and what the prediction below follows:
- An op is saved with all its outputs, from the forward on. Views and calls that write in place are never saved.
- Every call that is not saved is run again, needed or not, up to the last tensor that the module saves.
- All that is run again exists at once when the module's backward begins.
- Calls that draw random numbers are run again from the generator state that the checkpoint keeps, so none is saved:
  leaving one out would shift the numbers of the next.
- A module without saved calls is checkpointed plainly, and may hold others of the kind: those run a third time.
- Calls are counted anew in every call of the module. Another torch version, device or dtype may make other calls.
"""

from collections import Counter
from functools import partial

from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

'''

_TAIL = '''

class Policy:
    """Which calls of one run of a module are saved."""

    def __init__(self, saved):
        self.saved, self.seen = saved, Counter()

    def __call__(self, ctx, op, *args, **kwargs):
        name = op.name().partition(".")[0].removeprefix("aten::")
        call = self.seen[ctx.is_recompute, name]  # some versions ask again when they recompute
        self.seen[ctx.is_recompute, name] += 1
        saved = call in self.saved.get(name, ())
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def contexts(path):
    """The two contexts that torch.utils.checkpoint asks for with each call of a module."""
    return create_selective_checkpoint_contexts(Policy(SAVED[path]))


def apply(model):
    """Wrap the modules named in SAVED; the model keeps its class, parameters and state_dict."""
    for path, saved in SAVED.items():
        module = model.get_submodule(path)
        if "forward" in vars(module):
            raise RuntimeError(f"{path}: its forward is replaced already; apply this policy once, to a fresh model")
        policy = {"context_fn": partial(contexts, path)} if saved else {}
        module.forward = partial(checkpoint, module.forward, use_reentrant=False, **policy)
    return model
'''


def policy_file(emission: Emission) -> str:
    """The Python source."""
    budget = emission.plan.budget
    lines = [_HEAD]
    lines.append(f"# {PEAKS[budget.scope]}: {format_both(emission.made.peak_nbytes)} predicted, ")
    lines.append(f"{format_both(budget.nbytes)} asked for; {emission.overhead:.2%} more time predicted.\n")
    if emission.batch_norms:
        lines += [f"# {line}\n" for line in wrap(f"BATCH_NORMS: {NORMS}.", 115)]
    lines.append(f"PREDICTION = {_literal(prediction(emission))}\n")
    lines.append(f"BATCH_NORMS = {_literal(emission.batch_norms)}\n")
    lines.append("SAVED = {\n")
    for call in (call for entry in emission.made.wrapped for call in entry.all()):
        saved = emission.saved_calls(call).items()
        inner = ", ".join(f"{_literal(name)}: {numbers!r}" for name, numbers in saved)
        lines.append(f"    {_literal(call.region.path)}: {{{inner}}},\n")
    return "".join([*lines, "}\n", _TAIL])


def _literal(value: object) -> str:
    """A Python literal in ASCII: names come from files, and nothing in them may end a string or a line."""
    return ascii(value)
