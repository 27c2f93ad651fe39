"""A model file made ready for planning: read, differentiated and costed under one set of options."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .backward import derive_backward
from .costs import device_named, roofline
from .errors import StorageError, UsageError
from .graph import Graph
from .problem import Problem, Scope, build_problem
from .schedule import Schedule, lower
from .simulate import Timeline, simulate
from .solution import Decisions
from .training import OpCost, TrainingGraph


@dataclass(frozen=True, slots=True)
class Model:
    """A model file made ready for planning: its graphs, costs and the options that shaped them."""

    path: str
    sha256: str
    graph: Graph
    training: TrainingGraph
    costs: tuple[OpCost, ...]
    device: str
    frozen: tuple[str, ...]
    optimizer: str | None
    grad_accumulation: bool
    dims: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    batch: int | None

    def problem(self, scope: Scope, keep: Iterable[str] = (), recompute: Iterable[str] = ()) -> Problem:
        """The planning problem under one scope; ``keep`` and ``recompute`` are globs on tensor names."""
        kept, dropped = self._storages(keep, "--keep"), self._storages(recompute, "--recompute")
        both = kept & dropped
        if both:
            name = self.training.storages[min(both)].name
            raise UsageError(f"tensor {name!r} is asked for by --keep and by --recompute", remedy="drop one of them")
        held = dropped & set(self.training.outputs)
        if held:
            name = self.training.storages[min(held)].name
            raise UsageError(
                f"--recompute asks for {name!r}, a model output, which the caller holds all step",
                remedy="leave it out; outputs are never recomputed",
            )
        return build_problem(self.training, self.costs, scope, keep=kept, recompute=dropped)

    def _storages(self, globs: Iterable[str], option: str) -> frozenset[int]:
        found: set[int] = set()
        for glob in globs:
            hits = {s for s, names in enumerate(self.training.aliases) if any(fnmatchcase(n, glob) for n in names)}
            if not hits:
                raise UsageError(
                    f"{option} {glob!r} matches no tensor", remedy="list tensors with: ogc-plan show MODEL -v"
                )
            found |= hits
        return frozenset(found)

    def store_all(self) -> Timeline:
        """The replay of a step that recomputes nothing."""
        return store_all_timeline(self.training, self.costs)[1]


def store_all_timeline(graph: TrainingGraph, costs: tuple[OpCost, ...]) -> tuple[Schedule, Timeline]:
    """The schedule of a step that recomputes nothing, and its replay."""
    order = (*range(len(graph.ops)), *(~op for op in graph.backward_order))
    schedule = lower(graph, Decisions(order))
    return schedule, simulate(graph, costs, schedule)


def load_model(
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    frozen: Iterable[str] = (),
    optimizer: str | None = None,
    grad_accumulation: bool = False,
    device: str = "h200",
) -> Model:
    """Read an ONNX file and derive what a training step of it computes, holds and costs."""
    from .onnx_reader import read_onnx

    chosen = device_named(device)
    graph = read_onnx(path, dims=dims or {}, inputs=inputs or {}, batch=batch)
    training = derive_backward(graph, frozen=tuple(frozen), optimizer=optimizer, grad_accumulation=grad_accumulation)
    if not training.ops:
        raise UsageError(
            f"{str(path)!r} computes nothing from its inputs", remedy="check the file with: ogc-plan show MODEL"
        )
    return Model(
        str(path),
        _sha256(path),
        graph,
        training,
        roofline(graph, training, chosen),
        chosen.name,
        tuple(frozen),
        optimizer,
        grad_accumulation,
        tuple(sorted((dims or {}).items())),
        tuple(sorted((inputs or {}).items())),
        batch,
    )


def _sha256(path: str | os.PathLike[str]) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise StorageError(f"cannot read {str(path)!r}: {error.strerror}", remedy="check the path") from error
    return digest.hexdigest()
