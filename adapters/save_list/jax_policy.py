"""A policy of JAX for a plan: `save_only_these_names` with the ONNX names of what to save."""

from __future__ import annotations

import re

from ...planner.errors import PlanMismatchError
from ...planner.plan_file.record import Plan
from .emitted_file import header, prediction_line
from .rounding import Rounded, rounded

_NAMED = re.compile(r"name_out_(\d+)")
"""What jax2onnx calls the result of the checkpoint_name that it meets as the k-th."""


def save_names(plan: Plan) -> Rounded:
    """The tensors to save under `jax.checkpoint`.

    Where the file shows calls of checkpoint_name, as jax2onnx writes them, only those tensors can be saved. Otherwise
    every tensor of the file can, once it is given its name. Raises what `rounded` raises, and PlanMismatchError for a
    plan with annotations, whose tensors are PyTorch's.
    """
    if plan.model.annotations is not None:
        raise PlanMismatchError(
            f"the plan was made from PyTorch's record in {plan.model.file!r}, whose tensors JAX does not have",
            remedy="plan the file again with --ignore-annotations",
        )
    graph = plan.graph
    hidden = {s for op in graph.ops for s in op.writes if graph.storages[s].name.startswith(f"{op.name}#")}
    nameable = [index for index in range(len(graph.storages)) if index not in hidden]
    named = [index for index in nameable if calls_of(plan, index)]
    groups = [(index,) for index in named or nameable if index not in graph.outputs]
    return rounded(plan, groups, runtime="JAX")


def saved_storages(emission: Rounded) -> list[int]:
    """The storages to name: those that are saved, and outputs, which the loss reads; all of them by call, or none."""
    graph = emission.plan.graph
    found = sorted({*(s for number in emission.saved for s in emission.groups[number]), *graph.outputs})
    by_call = any(calls_of(emission.plan, index) for index in range(len(graph.storages)))
    return [index for index in found if calls_of(emission.plan, index) or not by_call]


def calls_of(plan: Plan, storage: int) -> tuple[int, ...]:
    """Which calls of checkpoint_name give their name to a storage, counted from 0 in the order of the trace."""
    found = (_NAMED.fullmatch(name) for name in plan.graph.aliases[storage])
    return tuple(int(match[1]) for match in found if match)


_HEAD = '''\
"""A save-list of one training step for jax.checkpoint, made by ogc-plan.

    loss = jax.checkpoint(loss, policy=policy(loss, *args))  # loss(*args), args as in training

Give the tensors in SAVED their names where they are computed, in the function that is checkpointed:
`h = checkpoint_name(h, "NAME")` with jax.ad_checkpoint.checkpoint_name. A model that has such calls already, and was
exported by jax2onnx, needs no change: CALLS has the calls that save, counted from 0 in the order of the trace, and
policy() looks up the names that the model gives them.

XLA decides when to recompute. On a GPU the recomputation stays where jax.checkpoint puts it. On a CPU, XLA merges it
with the forward again, so that memory does not fall: check there with jax.ad_checkpoint.print_saved_residuals(loss,
*args) that what is saved is what is named here. On a GPU compare memory, with and without the policy:
    jax.jit(jax.grad(loss)).lower(*args).compile().memory_analysis().temp_size_in_bytes
"""

import jax

'''

_TAIL = '''

def names(fun, *args):
    """The names that checkpoint_name gives when fun(*args) is traced, in order; inner functions count where called."""
    found = []

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "name":
                found.append(eqn.params["name"])
            for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda one: hasattr(one, "eqns")):
                if hasattr(value, "eqns"):
                    walk(getattr(value, "jaxpr", value))

    walk(jax.make_jaxpr(fun)(*args).jaxpr)
    return found


def policy(fun, *args):
    """The policy for jax.checkpoint; ValueError where the traced function lacks a name that is to be saved."""
    given = names(fun, *args)
    if CALLS and max(CALLS) < len(given):
        wanted = [given[call] for call in CALLS]
    else:
        wanted = list(SAVED)
    missing = [name for name in wanted if name not in given]
    if missing:
        raise ValueError(f"no checkpoint_name gives {missing[0]!r}; name the {len(missing)} tensors that lack one")
    return jax.checkpoint_policies.save_only_these_names(*wanted)
'''


def policy_file(emission: Rounded) -> str:
    """The Python source."""
    plan, graph = emission.plan, emission.plan.graph
    modules = dict(plan.modules)
    forms = graph.execution.storages if graph.execution is not None else ()
    producer = graph.producer
    lines, calls = [], list[int]()
    for storage in saved_storages(emission):
        name = graph.storages[storage].name
        form = f"{forms[storage].dtype}{list(forms[storage].shape)}, " if forms else ""
        where = f" in {modules[name]}" if name in modules else ""
        made = f"{graph.ops[producer[storage]].op_type}{where}"
        lines.append(f"    {name!a}: {f'{form}{graph.storages[storage].nbytes} bytes, of {made}'!a},\n")
        calls += calls_of(plan, storage)[:1]
    parts = [header(_HEAD, emission), prediction_line(emission)]
    parts += ["SAVED = {\n", *lines, "}\n", f"CALLS = {sorted(calls)!r}\n"]
    return "".join([*parts, _TAIL])
