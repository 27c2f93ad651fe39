"""Layers of a Keras model: `keras.RematScope` does to a layer what torch's checkpoint does to a module.

A rematerialised layer keeps its inputs and runs its whole call again in the backward. One that changes state in its
call (BatchNormalization, Dropout) cannot be: on the JAX backend Keras 3.15 fails to build such a model. So the modules
that torch_checkpoint chooses and replays are layers here. A layer is known by the names of its nodes: tf2onnx and Keras
write MODEL/LAYER/..., torch's exporter writes module paths.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from ...planner.errors import PlanMismatchError
from ...planner.plan_file.record import Plan
from ...planner.units import format_both
from ..torch_checkpoint.emit import Emission, Runtime, wrap_modules
from ..torch_checkpoint.emitted_files import prediction
from .emitted_file import PEAKS

_STATEFUL = re.compile("batch_?norm|dropout|noise|random")
"""Names of layers with state, whose ops an exporter may have folded away."""
KERAS = Runtime(
    "keras.RematScope",
    "layer",
    "write the file with tf2onnx, or emit --to jax for a save-list by tensor",
    "emit --to jax for a save-list by tensor",
)


def wrap_layers(plan: Plan) -> Emission:
    """The layers to name in a `keras.RematScope` so that the step stays within the plan's budget at the least time.

    Raises PlanMismatchError if the file names no layers, InfeasibleBudgetError if no set of layers fits.
    """
    paths = {name: path.replace(".", "/") for name, path in plan.modules} or _paths_of_names(plan)
    layers = _layers(paths.values())
    if not layers:
        raise PlanMismatchError(
            f"{plan.model.file!r} names no layers: its nodes are not called MODEL/LAYER/...",
            remedy=KERAS.export,
        )
    modules = {name: layer for name, path in paths.items() if (layer := _layer_of(path, layers))}
    graph = plan.graph
    stateful = {layer for layer in layers if _STATEFUL.search(layer)} | {
        modules.get(graph.storages[storage].name)
        for op in graph.ops
        for storage in op.writes
        if op.random_state_nbytes or op.op_type == "BatchNormalization"
    }
    return wrap_modules(replace(plan, modules=tuple(modules.items())), layers - stateful, runtime=KERAS)


def _paths_of_names(plan: Plan) -> dict[str, str]:
    """For each storage the path in the name of the node that makes it."""
    graph = plan.graph
    return {
        graph.storages[storage].name: op.name.rpartition("/")[0]
        for op in graph.ops
        for storage in op.writes
        if "/" in op.name
    }


def _layers(paths: Collection[str]) -> frozenset[str]:
    """The names of layers: the second part of a path where all begin with the model, else the first."""
    parts = [path.strip("/").split("/") for path in paths if path.strip("/")]
    (_, count), *_ = Counter(part[0] for part in parts).most_common(1) or [("", 0)]
    level = 1 if parts and count == len(parts) and any(len(part) > 1 for part in parts) else 0
    return frozenset(part[level].replace(".", "_") for part in parts if len(part) > level)


def _layer_of(path: str, layers: frozenset[str]) -> str:
    return next((part.replace(".", "_") for part in path.strip("/").split("/") if part.replace(".", "_") in layers), "")


_HEAD = '''\
"""Layers of a Keras 3 model to rematerialise, made by ogc-plan.

    with scope():
        model = build()  # a layer takes the scope over when it is made

A layer named here keeps its inputs alone and runs again in the backward. Layers that change state in their call
(BatchNormalization, Dropout) are never named. Layers are found by name, so the model must be built with the names that
the planned file has; check(model) says so otherwise. On the JAX backend XLA for CPUs merges the recomputation with the
forward again; on a GPU it stays.
"""

import keras

'''

_TAIL = '''

def scope():
    """The scope to build the model in."""
    return keras.RematScope(mode="list_of_layers", layer_names=LAYERS)


def check(model):
    """Raise ValueError unless every named layer is in the model and rematerialised."""
    made = {layer.name: layer for layer in model._flatten_layers()}
    for name in LAYERS:
        if name not in made:
            raise ValueError(f"the model has no layer {name!r}")
        if made[name]._remat_mode is None or name not in made[name]._remat_mode.layer_names:
            raise ValueError(f"layer {name!r} was made outside scope()")
'''


def layer_file(emission: Emission) -> str:
    """The Python source."""
    budget, made = emission.plan.budget, emission.made
    promise = f"{format_both(made.peak_nbytes)} predicted, {format_both(budget.nbytes)} asked for"
    return (
        f"{_HEAD}# {PEAKS[budget.scope]}: {promise}; {emission.overhead:.2%} more time predicted.\n"
        f"PREDICTION = {prediction(emission)!a}\nLAYERS = {list(emission.paths)!a}\n"
        f"{_TAIL}"
    )
