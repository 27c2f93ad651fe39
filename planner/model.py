"""A model ready for planning: its training graph, read or derived, with the costs under one set of options."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from json import dumps as quoted
from pathlib import Path

from .annotations import Annotation, Source, fingerprint
from .autodiff.assumptions import cut_off, nothing_to_train, too_little_trained
from .autodiff.derive import derive_backward, with_options
from .costs.devices import DEVICES, MEASURED, PROFILED, Device, device_named
from .costs.profile import StepProfile, applied, costs_of
from .costs.roofline import roofline, work_costs
from .errors import OversizeError, UnsupportedOpError, UsageError, shell_word
from .graph import Graph
from .limits import NO_LIMITS, Limits, gc_paused
from .peak_bounds.step_floor import Floor
from .problem import Problem, Scope, build_problem
from .schedule import Schedule, lower
from .simulate import Timeline, simulate
from .solution import Decisions
from .training_graph import MAX_NBYTES, OpCost, TrainingGraph

DEFAULT_DEVICE = "h200"


@dataclass(frozen=True)
class Model:
    """A model ready for planning: its training graph, its costs, and the options that they depend on.

    ``graph`` is the forward graph of a bare ONNX file, None if the training graph comes from ``annotations``.
    ``scopes`` has the module path of each op of ``training``, "" for none. ``timed_by`` names what measured the
    times of a bare file, "" if nothing did.
    """

    path: str
    sha256: str
    producer: str
    opset: int
    training: TrainingGraph
    costs: tuple[OpCost, ...]
    scopes: tuple[str, ...]
    device: str
    optimizer: str | None
    grad_accumulation: bool
    frozen: tuple[str, ...] = ()
    dims: tuple[tuple[str, int], ...] = ()
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    batch: int | None = None
    graph: Graph | None = None
    annotations: Source | None = None
    timed_by: str = ""

    def problem(
        self,
        scope: Scope,
        keep: Iterable[str] = (),
        recompute: Iterable[str] = (),
        limits: Limits = NO_LIMITS,
    ) -> Problem:
        """The planning problem under one scope; ``keep`` and ``recompute`` are globs on tensor names.

        Outside ``limits`` the floors, those of the model too, are those that follow from the dependences alone.
        """
        kept, dropped = self._storages(keep, "--keep"), self._storages(recompute, "--recompute")
        both = kept & dropped
        if both:
            name = self.training.storages[min(both)].name
            raise UsageError(f"tensor {name!r} matches both --keep and --recompute", remedy="drop one of them")
        held = dropped & set(self.training.outputs)
        if held:
            name = self.training.storages[min(held)].name
            raise UsageError(
                f"--recompute matches {name!r}, a model output, which the caller holds all step",
                remedy="leave it out; outputs are never recomputed",
            )
        for op in self.training.ops:
            if op.once and not dropped.isdisjoint(op.writes):
                name = self.training.storages[min(dropped.intersection(op.writes))].name
                raise UsageError(
                    f"--recompute matches {name!r}, but {op.op_type} {op.name!r} that makes it must run only once",
                    remedy="leave it out; such an op makes a discrete choice, or reads a buffer that the step changes",
                )
        late = limits.out_of_time
        if "floors" not in self.__dict__ and limits is not NO_LIMITS:  # they come first, within the limits of a plan
            self.__dict__["floors"] = self._floors(late)
        return build_problem(self.training, self.costs, scope, keep=kept, recompute=dropped, late=late)

    def _storages(self, globs: Iterable[str], option: str) -> frozenset[int]:
        found: set[int] = set()
        for glob in globs:
            hits = {s for s, names in enumerate(self.training.aliases) if any(fnmatchcase(n, glob) for n in names)}
            if not hits:
                listed = "list tensors with: ogc-plan show MODEL -v"
                if not self.sha256:  # there is no file
                    listed = "tensors are named in .kept of a plan with --budget 100%"
                raise UsageError(f"{option} {glob!r} matches no tensor", remedy=listed)
            found |= hits
        return frozenset(found)

    @property
    def time_source(self) -> str:
        """Where the times come from: ``roofline:h200``, ``measured``, ``profile``, or that with what measured it."""
        if self.timed_by:
            return f"{self.device}: {self.timed_by}"
        return self.device if self.device in (MEASURED, PROFILED) else f"roofline:{self.device}"

    def store_all(self) -> Timeline:
        """The replay of a step that recomputes nothing."""
        return self.store_all_replay[1]

    @cached_property
    def store_all_replay(self) -> tuple[Schedule, Timeline]:
        """The schedule of a step that recomputes nothing, and its replay."""
        return store_all_timeline(self.training, self.costs)

    @cached_property
    def floors(self) -> dict[Scope, Floor]:
        """The proven floor of each peak."""
        return self._floors(NO_LIMITS.out_of_time)

    def _floors(self, late: Callable[[], bool]) -> dict[Scope, Floor]:
        return {scope: build_problem(self.training, self.costs, scope, late=late).floor for scope in Scope}


def store_all_decisions(graph: TrainingGraph) -> Decisions:
    """Every forward and every backward once, in default order."""
    return Decisions((*range(len(graph.ops)), *(~op for op in graph.backward_order)))


def store_all_timeline(graph: TrainingGraph, costs: tuple[OpCost, ...]) -> tuple[Schedule, Timeline]:
    """The schedule of a step that recomputes nothing, and its replay."""
    schedule = lower(graph, store_all_decisions(graph))
    return schedule, simulate(graph, costs, schedule)


@gc_paused()
def load_model(
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    frozen: Iterable[str] = (),
    optimizer: str | None = None,
    grad_accumulation: bool = False,
    device: str | Device | None = None,
    ignore_annotations: bool = False,
    charge_unknown: bool = False,
    strict: bool = False,
    profile: StepProfile | None = None,
) -> Model:
    """Read an ONNX file and derive its training graph and costs.

    Args:
        path: The file. If it has annotations, they give the training graph.
        dims: Sizes of symbolic dimensions. Annotations are valid for the exported shapes and trainable parameters only:
            for a file with annotations ``dims``, ``inputs``, ``batch`` and ``frozen`` are refused with a UsageError.
        inputs: Whole shapes, of inputs and of inner tensors whose shape depends on data.
        batch: The leading dimension of the inputs that carry the batch.
        frozen: Globs on the names of parameters that get no gradient. A glob after ``!`` names floating constants that
            are trained, whatever the globs before it and the reader say.
        optimizer: The optimizer whose states are counted.
        grad_accumulation: Whether a second full set of gradients is alive all step.
        device: The device whose roofline gives the times, by name or with its figures; ``"measured"`` for the times
            in annotations. The default is ``"measured"`` if there are any, else the h200.
        ignore_annotations: Plan the bare ONNX graph.
        charge_unknown: Plan ops without training semantics, with all inputs and outputs charged; by default they are
            refused.
        strict: Refuse a bare file with an UnsupportedOpError if ops without a gradient cut off more than a tenth of the
            parameters' elements.
        profile: Measured times and workspaces of this training graph, which replace those of annotations.

    Raises UsageError if no parameter is left to train, and the errors of the reader.
    """
    from .onnx_import.document.model_file import annotated_part, ops_of_nodes, parse_model, producer_of, read_file
    from .onnx_import.document.opsets import opset_versions
    from .plan_file.nodes import recorded_nodes

    frozen = tuple(frozen)
    content = read_file(Path(path))
    sha256 = hashlib.sha256(content).hexdigest()
    proto = parse_model(content, quoted(Path(path).name))
    del content  # it may take gigabytes
    annotated = None if ignore_annotations else annotated_part(proto)
    if annotated is not None:
        shaping = {"--dim": dims, "--input": inputs, "--batch": batch is not None, "--frozen": frozen}
        given = [option for option, value in shaping.items() if value]
        if given:
            raise UsageError(
                f"{', '.join(given)} cannot change {str(path)!r}: its annotations hold for what was exported",
                remedy="export the model again as it should be, or pass --ignore-annotations to plan the bare file",
            )
        made = from_annotation(
            annotated,
            name=str(path),
            sha256=sha256,
            device=device,
            optimizer=optimizer,
            grad_accumulation=grad_accumulation,
            producer=producer_of(proto),
            opset=opset_versions(proto)[""],
            profile=profile,
        )
        execution = recorded_nodes(ops_of_nodes(proto), (op.name for op in made.training.ops))
        return replace(made, training=replace(made.training, execution=execution))
    if profile is not None and device is not None:
        raise _two_times()
    if device == MEASURED:
        raise UsageError(f"{str(path)!r} has no measured times", remedy=f"choose one of {', '.join(DEVICES)}")
    from .onnx_import.reader import forward_calls
    from .onnx_import.values.consistency import REMEDY
    from .plan_file.nodes import execution_of

    chosen = device if isinstance(device, Device) else device_named(device or DEFAULT_DEVICE)
    with _sizes_of_options(dims or {}, inputs or {}, batch):
        read = forward_calls(
            proto, path, dims=dims or {}, inputs=inputs or {}, batch=batch, charge_unknown=charge_unknown,
            trained=[glob[1:] for glob in frozen if glob.startswith("!")],
        )  # fmt: skip
        graph = read.graph
        training = derive_backward(
            graph,
            frozen=frozen,
            optimizer=optimizer,
            grad_accumulation=grad_accumulation,
            on_cpu=chosen.is_cpu,
        )
        if training.sizes_nbytes >= MAX_NBYTES:
            raise OversizeError(
                f"the sizes of {str(path)!r} add up to {training.sizes_nbytes} bytes, more than can be planned",
                remedy=REMEDY,
            )
    if not training.ops:
        kinds = ", ".join(sorted({op.op_type for op in graph.ops})[:3])
        why = f"are views of its inputs ({kinds})" if kinds else "do not depend on its inputs"
        raise UnsupportedOpError(
            f"{str(path)!r} computes nothing: its outputs {why}",
            remedy="train it without a plan: it stores nothing" if kinds else "export the model with inputs",
        )
    if not any(op.backward is not None for op in training.ops):
        raise nothing_to_train(graph, str(path), frozen)
    cut = cut_off(graph, frozen)
    if cut and strict:
        raise too_little_trained(graph, str(path), cut[0])
    training = replace(training, assumed=cut + training.assumed, execution=execution_of(read, training))
    return Model(
        str(path),
        sha256,
        graph.producer,
        graph.opset,
        training,
        roofline(graph, training, chosen) if profile is None else costs_of(training, profile),
        tuple(graph.ops[op.forward].scope for op in training.ops),
        chosen.name if profile is None else PROFILED,
        optimizer,
        grad_accumulation,
        frozen,
        tuple(sorted((dims or {}).items())),
        tuple(sorted((inputs or {}).items())),
        batch,
        graph,
        timed_by="" if profile is None else f"{profile.framework}, {profile.device}",
    )


def _two_times() -> UsageError:
    return UsageError("a device and a profile both give times", remedy="pass one of them")


@contextmanager
def _sizes_of_options(
    dims: Mapping[str, int], inputs: Mapping[str, tuple[int, ...]], batch: int | None
) -> Iterator[None]:
    """Raise UsageError in place of OversizeError where sizes were given, which are then the reason."""
    given = [f"--dim {shell_word(f'{name}={size}')}" for name, size in dims.items()]
    given += [f"--shape {shell_word(name)}={'x'.join(map(str, shape))}" for name, shape in inputs.items()]
    given += [f"--batch {batch}"] if batch is not None else []
    try:
        yield
    except OversizeError as error:
        if not given:
            raise
        raise UsageError(
            f"the model is too large with {' '.join(given)}: {error.message}", remedy="give smaller sizes"
        ) from error


def from_annotation(
    annotation: Annotation,
    *,
    name: str,
    sha256: str = "",
    device: str | Device | None = None,
    optimizer: str | None = None,
    grad_accumulation: bool = False,
    producer: str | None = None,
    opset: int = 0,
    profile: StepProfile | None = None,
) -> Model:
    """A model from the annotation of an adapter, without a file.

    ``name`` replaces the file name in plans and reports; ``producer`` is the framework unless given. The optimizer's
    state and accumulated gradients count per byte of the parameters' gradients. In a step that accumulates, new
    gradients are released where the annotation ends them; otherwise they live to the end of the step. ``device`` and
    ``profile`` are those of `load_model`.

    Raises UsageError for an unknown device or optimizer, for a device together with a profile, and for a profile of
    another graph; ValueError for an inconsistent annotation, which `annotations.loads` never returns.
    """
    if profile is not None:
        if device is not None:
            raise _two_times()
        annotation, device = applied(annotation, profile), PROFILED
    graph = annotation.graph
    if device is None:
        device = MEASURED if annotation.timed else DEFAULT_DEVICE
    if device == MEASURED and not annotation.timed:
        raise UsageError(f"{name!r} has no measured times", remedy=f"choose one of {', '.join(DEVICES)}")
    own_times = device == MEASURED or profile is not None
    chosen = device if isinstance(device, Device) else None if own_times else device_named(device)
    if not graph.ops or not len(graph.ops) == len(annotation.works) == len(annotation.scopes):
        raise ValueError("an annotation needs ops, and a work and a scope for each of them")
    graph.validate()
    trained = graph.parameter_gradient_nbytes
    training = replace(
        graph if grad_accumulation else graph.without_ends(),
        stationary=with_options(graph.stationary, trained, optimizer, grad_accumulation),
        aliases=graph.aliases or tuple((storage.name,) for storage in graph.storages),
        fingerprint=fingerprint(graph),
    )
    return Model(
        name,
        sha256,
        annotation.framework if producer is None else producer,
        opset,
        training,
        work_costs(annotation.works, chosen),
        annotation.scopes,
        chosen.name if chosen is not None else MEASURED if profile is None else PROFILED,
        optimizer,
        grad_accumulation,
        annotations=Source(annotation.framework, annotation.device),
    )
