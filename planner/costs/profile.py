"""Measured times and workspaces of the ops of one training graph on one machine, as a small JSON file."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from json import dumps as quoted
from pathlib import Path
from typing import Any

from ..annotations import Annotation, fingerprint
from ..errors import UsageError
from ..json_input import read_json, refuse_constant
from ..plan_file.writer import one_key_per_line, write_whole
from ..training_graph import MAX_NBYTES, OpCost, TrainingGraph
from ..units import counted

FORMAT = "ogc-plan profile"
VERSION = 1
MAX_FILE_NBYTES = 256 * 2**20

_REMEDY = "measure it again: ogc-plan profile MODEL, or ogc_plan.adapters.pytorch.profile"


@dataclass(frozen=True, slots=True)
class OpTimes:
    """One op: ns of a forward run and of its backward, workspace bytes as in `OpCost`."""

    name: str
    forward_ns: int
    backward_ns: int
    forward_workspace_nbytes: int
    backward_workspace_nbytes: int
    backward_activation_workspace_nbytes: int


_FIGURES = tuple(key for key in OpTimes.__dataclass_fields__ if key != "name")


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The ops of one step in forward order.

    ``graph`` is the fingerprint of the training graph, ``framework`` and ``device`` are those of `annotations.Source`,
    and the times are medians over ``rounds`` steps.
    """

    graph: str
    framework: str
    device: str
    rounds: int
    ops: tuple[OpTimes, ...]

    @property
    def step_ns(self) -> int:
        """Forward and backward of a step that recomputes nothing."""
        return sum(op.forward_ns + op.backward_ns for op in self.ops)

    def dumps(self) -> str:
        """The profile as JSON, one op per line."""
        values = asdict(self)
        return one_key_per_line({"format": FORMAT, "version": VERSION, **values, "ops": list(values["ops"])})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically. Raises StorageError if the folder or the disk refuses."""
        write_whole(self.dumps().encode(), path, "profile ")


def read_profile(path: str | os.PathLike[str]) -> StepProfile:
    """Read what `StepProfile.save` wrote, trusting nothing in it.

    Raises StorageError for a file that cannot be read, and UsageError, which names the place, for one that is not a
    profile.
    """
    where = f"profile {quoted(str(path))}"
    data = read_json(
        Path(path),
        where,
        kind="profile",
        most_nbytes=MAX_FILE_NBYTES,
        remedy=_REMEDY,
        parse_constant=refuse_constant,
    )
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f'{where} is no profile: "format" is not {quoted(FORMAT)}', remedy=_REMEDY)
    if type(data.get("version")) is not int or data["version"] != VERSION:
        shown = str(data.get("version"))[:40]
        raise UsageError(f"{where} has version {shown}, this program reads version {VERSION}", remedy=_REMEDY)
    entries = data.get("ops")
    if not isinstance(entries, list) or not entries:
        raise UsageError(f'{where}: "ops" is missing, empty or not a list', remedy=_REMEDY)
    ops = tuple(_op(entry, f"{where}: ops[{place}]") for place, entry in enumerate(entries))
    for key in _FIGURES:
        if sum(getattr(op, key) for op in ops) >= MAX_NBYTES:
            raise UsageError(f"{where}: all {quoted(key)} add up to {MAX_NBYTES} or more", remedy=_REMEDY)
    graph, framework, device = (_string(data, key, where) for key in ("graph", "framework", "device"))
    return StepProfile(graph, framework, device, _whole(data, "rounds", where), ops)


def applied(annotation: Annotation, profile: StepProfile) -> Annotation:
    """The annotation with the figures and the machine of the profile. Raises UsageError for one of another graph."""
    _refuse_others(profile, fingerprint(annotation.graph), annotation.graph, "this module with these arguments")
    works = tuple(
        replace(work, **{key: getattr(op, key) for key in _FIGURES})
        for work, op in zip(annotation.works, profile.ops, strict=True)
    )
    return replace(annotation, works=works, framework=profile.framework, device=profile.device)


def costs_of(training: TrainingGraph, profile: StepProfile) -> tuple[OpCost, ...]:
    """The figures of a profile for the training graph of a bare file. Raises UsageError for one of another graph."""
    _refuse_others(profile, training.fingerprint, training, "this file, with these options: ogc-plan profile MODEL")
    return tuple(OpCost(*(getattr(op, key) for key in _FIGURES)) for op in profile.ops)


def _refuse_others(profile: StepProfile, mine: str, graph: TrainingGraph, what: str) -> None:
    names = [op.name for op in graph.ops]
    if profile.graph != mine or [op.name for op in profile.ops] != names:
        raise UsageError(
            f"the profile was measured of graph {quoted(profile.graph[:12])} with "
            f"{counted(len(profile.ops), 'op')}, this is {quoted(mine[:12])} with {len(names)}",
            remedy=f"measure a profile of {what}",
        )


def _op(entry: object, where: str) -> OpTimes:
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is not an object", remedy=_REMEDY)
    unknown = sorted(entry.keys() - {"name", *_FIGURES})
    if unknown:
        raise UsageError(f"{where} has the unknown key {quoted(unknown[0][:80])}", remedy=_REMEDY)
    return OpTimes(_string(entry, "name", where), *(_whole(entry, key, where) for key in _FIGURES))


def _string(data: dict[str, Any], key: str, where: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise UsageError(f"{where}: {quoted(key)} is missing or not text", remedy=_REMEDY)
    return value


def _whole(data: dict[str, Any], key: str, where: str) -> int:
    value = data.get(key)
    if type(value) is not int or not 0 <= value < MAX_NBYTES:
        raise UsageError(f"{where}: {quoted(key)} is missing or no whole number from 0", remedy=_REMEDY)
    return value
