"""A memory policy for torchtitan's graph trainer: which calls of which module are saved, the rest recomputed.

What the trainer does (torchtitan/experiments/graph_trainer: memory_policy.py, selective_activation_remat.py, as of
August 2026), and what the prediction follows:

- An op is saved with all its outputs. One that is not runs again once, right before the first backward that needs it.
- Ops that draw random numbers are always saved: the trainer cannot run them again.
- What modules called lm_head or loss compute carries no tag and is saved.
- A tensor that a later layer (layers.N) reads is saved: recomputing it would run the layer before again.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...planner.errors import PlanMismatchError
from ...planner.plan_file.record import Plan
from ..torch_checkpoint.eager_step import module_paths
from .emitted_file import header, prediction_line
from .rounding import Rounded, rounded

_UNTAGGED = ("lm_head", "loss")


def save_ops(plan: Plan) -> Rounded:
    """The ops to save; groups are ops.

    Raises what `rounded` raises, and PlanMismatchError for a plan that does not know the calls PyTorch makes or the
    modules that they belong to.
    """
    if plan.model.annotations is None:
        raise PlanMismatchError(
            f"the plan was made from the bare file {plan.model.file!r}, which does not show the calls PyTorch makes",
            remedy="write the file with ogc_plan.adapters.pytorch.export and plan again",
        )
    paths, graph = module_paths(plan), plan.graph
    if not any(paths):
        raise PlanMismatchError(
            f"{plan.model.file!r} names no modules, by which the trainer finds its nodes",
            remedy="write the file with ogc_plan.adapters.pytorch.export and plan again",
        )
    always: set[int] = set()
    producer = graph.producer
    for op, path in zip(graph.ops, paths, strict=True):
        if op.random_state_nbytes or path.startswith(_UNTAGGED):
            always.update(op.writes)
        for storage in op.reads:
            if _layer(paths[producer[storage]]) < _layer(path):
                always.update(graph.ops[producer[storage]].writes)
    fixed = always | {storage for op in graph.ops if op.once for storage in op.writes}
    groups = [op.writes for op in graph.ops if op.writes and fixed.isdisjoint(op.writes)]
    return rounded(plan, groups, always=always, runtime="torchtitan")


def _layer(path: str) -> int:
    """The N of a module below layers.N, -1 for any other."""
    parts = path.split(".")
    return int(parts[1]) if parts[0] == "layers" and len(parts) > 1 and parts[1].isdecimal() else -1


def saved_ops(emission: Rounded) -> list[int]:
    """The ops that the policy tags as saved."""
    kept = {storage for number in emission.saved for storage in emission.groups[number]} | emission.always
    return [index for index, op in enumerate(emission.plan.graph.ops) if op.writes and kept.issuperset(op.writes)]


def saved_calls(emission: Rounded) -> dict[str, dict[str, tuple[int, ...]]]:
    """Module -> aten op -> which calls of it in that module are saved, counted from 0."""
    paths, ops = module_paths(emission.plan), emission.plan.graph.ops
    seen: dict[tuple[str, str], int] = {}
    saved = set(saved_ops(emission))
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for index in _tagged(emission.plan, paths):
        key = paths[index], ops[index].op_type
        call = seen[key] = seen.get(key, -1) + 1
        if index in saved:
            calls = found.setdefault(key[0], {})
            calls[key[1]] = (*calls.get(key[1], ()), call)
    return found


def _tagged(plan: Plan, paths: tuple[str, ...]) -> Iterable[int]:
    return (i for i, op in enumerate(plan.graph.ops) if op.writes and not paths[i].startswith(_UNTAGGED))


_HEAD = '''\
"""A memory policy for torchtitan's graph trainer, made by ogc-plan. Import it before training, then pass

    --compile.memory_policy ogc_plan

SAVED lists the calls that are saved: {module: {aten op: calls in that module, counted from 0}}. All others run again
in the backward, right before they are needed. Random ops and what crosses from one layer to the next are always saved.
Views take no memory and are not listed. A graph without a listed call is refused: another torch version, parallelism
or model may make other calls.
"""

from collections import Counter

import torch
from torch.utils.checkpoint import CheckpointPolicy
from torchtitan.experiments.graph_trainer.memory_policy import tag_sac_policy
from torchtitan.experiments.graph_trainer.registry import register_memory_policy

'''

_TAIL = '''

class Policy:
    """Whether each forward node of one graph is saved."""

    def __init__(self):
        self.seen = Counter()
        self.found = Counter()

    def __call__(self, node):
        module = node.meta.get("custom", {}).get("module_fqn", "")
        name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
        call = self.seen[module, name]
        self.seen[module, name] += 1
        if call in SAVED.get(module, {}).get(name, ()):
            self.found[module, name] += 1
            return CheckpointPolicy.MUST_SAVE
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE


@register_memory_policy("ogc_plan")
def memory_policy(gm, *, config):
    """Tag the nodes of the joint graph; RuntimeError where it lacks a call that the plan saves."""
    policy = Policy()
    tag_sac_policy(gm, policy_fn=policy)
    for module, ops in SAVED.items():
        for name, calls in ops.items():
            if policy.found[module, name] < len(calls):
                made = policy.seen[module, name]
                raise RuntimeError(f"module {module!r} calls {name} {made} times; the plan saves call {calls[-1]}")
    return gm
'''


def policy_file(emission: Rounded) -> str:
    """The Python source."""
    lines = [f"    {module!a}: {calls!a},\n" for module, calls in saved_calls(emission).items()]
    return "".join([header(_HEAD, emission), prediction_line(emission), "SAVED = {\n", *lines, "}\n", _TAIL])
