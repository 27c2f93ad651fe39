"""A trainer: a step's session, an optimizer's session, and the weights and states that stay on the device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from json import dumps as quoted
from typing import Any

import numpy as np

from ...planner.display.interrupt import held_back
from ...planner.errors import AdapterError, PlanMismatchError, UsageError
from ...planner.onnx_import.document.protobuf import DTYPES
from .checkpoint import read_checkpoint, write_checkpoint
from .optimizers import SGD, Optimizer, optimizer_graph, state_names
from .session import chosen_provider, device_of, on_device, open_session, run_bound
from .step_model import read_step

Feed = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """What is told after each step: its number, its loss (None if gradients are handed in), and its seconds."""

    step: int
    loss: float | None
    seconds: float


class Trainer:
    """Trains the model of a step that ``ogc-plan emit --to onnx`` wrote.

    Parameters, running statistics and optimizer states stay on the device. A step holds what its plan says: see the
    options of the session in the file.

    Args:
        step: the step's file.
        optimizer: `SGD` or `AdamW`.
        provider: the execution provider, by default CUDA's where onnxruntime has it, else the CPU's.
        threads: threads of one op, 0 for as many as there are cores.

    Raises:
        InvalidModelError: the file is no step, or ONNX Runtime does not load it.
        UsageError: the provider is not installed, or optimizer or threads are none.

    Example:
        >>> trainer = Trainer("step.onnx", AdamW(lr=1e-3))
        >>> loss = trainer.step({"x": images, "target": labels})
        >>> trainer.save("last.ckpt")
    """

    def __init__(
        self,
        step: str | os.PathLike[str],
        optimizer: Optimizer | None = None,
        *,
        provider: str | None = None,
        threads: int = 0,
    ) -> None:
        self._optimizer = SGD() if optimizer is None else optimizer
        if not isinstance(self._optimizer, Optimizer):
            raise UsageError(f"{optimizer!r} is no optimizer", remedy="pass SGD(lr=0.01) or AdamW(lr=0.001)")
        if not isinstance(threads, int) or threads < 0:
            raise UsageError(f"threads {threads!r} is no number of threads", remedy="pass 0 for one per core")
        self.steps_done, self._torn = 0, False
        self._model, self._threads = read_step(step), threads
        self.about = self._model.about
        self._provider = chosen_provider(provider)
        self._device = device_of(self._provider)
        self._held = {name: on_device(array, self._device) for name, array in self._model.weights.items()}
        self._model.weights.clear()
        self._gradients: dict[str, str] = self.about["parameters"]
        self._statistics: dict[str, str] = self.about["statistics"]
        for name in self._gradients:
            shape, dtype = self._described(name)
            for state in state_names(self.optimizer, name):
                self._held[state] = on_device(np.zeros(shape, dtype), self._device)
        self._update = self._optimizer_session()
        self._session = self._step_session()

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer. In its place goes one that differs in ``lr`` only; UsageError for any other."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, changed: Optimizer) -> None:
        mine = self._optimizer
        if not isinstance(changed, type(mine)) or replace(changed, lr=mine.lr) != mine:
            raise UsageError(
                f"{changed!r} differs from {mine!r} in more than lr", remedy="make a Trainer with the other optimizer"
            )
        self._optimizer = changed

    @property
    def parameters(self) -> dict[str, Any]:
        """Copies of the parameters by their names in the model's file."""
        return {name: self._held[name].numpy().copy() for name in self._gradients}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays of a batch by name."""
        return {name: self._described(name)[0] for name in (*self.about["inputs"], *self.about["seeds"])}

    @property
    def statistics(self) -> dict[str, Any]:
        """Copies of the running statistics."""
        return {name: self._held[name].numpy().copy() for name in self._statistics}

    def gradients(self, feed: Feed) -> dict[str, Any]:
        """The gradient of each parameter at a batch, and the loss, if any, by its name ``about["loss"]``.

        It changes no parameter, statistic or state, but takes random numbers, so that dropouts of later steps differ.
        """
        made, loss = self.run_once(feed), self.about["loss"]
        found = {name: made[output].numpy() for name, output in self._gradients.items()}
        return {**found, **({loss: made[loss].numpy()} if loss else {})}

    def run_once(self, feed: Feed) -> dict[str, Any]:
        """The runtime's own values of gradients and loss, on the device, by the names of the step's outputs."""
        return self._run(feed, [*self._gradients.values(), *([self.about["loss"]] if self.about["loss"] else [])])

    def step(self, feed: Feed) -> float | None:
        """Train on one batch: the arrays of the step's inputs and of ``target``, or of the outputs' gradients, by name.

        Returns the loss, None for a step whose gradients are handed in. Raises UsageError for a missing, foreign or
        misshapen array and a label that is no class, StorageError or AdapterError where ONNX Runtime fails.
        """
        loss = self.about["loss"]
        made = self._run(feed, [*self._gradients.values(), *self._statistics.values(), *([loss] if loss else [])])
        with held_back():  # parameters, states and statistics change in place: all of them, or none
            self._torn = True
            self._optimise({output: made[output] for output in self._gradients.values()})
            self._held.update((name, made[output]) for name, output in self._statistics.items())
            self.steps_done, self._torn = self.steps_done + 1, False
        return float(made[loss].numpy()) if loss else None

    def fit(
        self,
        batches: Iterable[Feed],
        progress: Callable[[Progress], None] | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 100,
    ) -> float | None:
        """Train on batches and return the last loss; save ``checkpoint`` after each ``every`` steps and at the end.

        Ctrl-C and an exception of ``batches`` or ``progress`` save it, too: it has the numbers of the last whole step.
        A second Ctrl-C waits for that. If it cannot be saved then, the traceback shows why before the first exception.
        """
        if not isinstance(every, int) or every < 1:
            raise UsageError(f"every {every!r} is no number of steps", remedy="pass 1 or more")
        loss = None
        with held_back(after=1) as renew:
            try:
                for feed in batches:
                    renew()
                    begin = time.perf_counter()
                    loss = self.step(feed)
                    if progress is not None:
                        progress(Progress(self.steps_done, loss, time.perf_counter() - begin))
                    if checkpoint is not None and self.steps_done % every == 0:
                        self.save(checkpoint)
            except BaseException as error:
                if checkpoint is not None:
                    try:
                        self.save(checkpoint)
                    except Exception as failed:
                        failed.__context__, error.__context__ = error.__context__, failed
                        error.__suppress_context__ = False
                raise
            if checkpoint is not None:
                self.save(checkpoint)
        return loss

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, statistics, states and the number of steps; atomically.

        Random ops go on from seeds that follow from the number of steps, here and where the checkpoint is loaded, so
        that both go on alike. Raises StorageError, and AdapterError after a step that failed half done.
        """
        if self._torn:
            raise AdapterError("the last step failed while it changed parameters", remedy="load an earlier checkpoint")
        write_checkpoint(path, {name: value.numpy() for name, value in self._held.items()}, self._identity())
        self._session = self._step_session()

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint. Raises StorageError if it is damaged, PlanMismatchError if it is of another step."""
        arrays, about = read_checkpoint(path)
        mine = self._identity()
        for key, what in (("step_sha256", "step"), ("optimizer", "optimizer")):
            if about.get(key) != mine[key]:
                raise PlanMismatchError(
                    f"checkpoint {quoted(str(path))} is of another {what}: {about.get(key)}, not {mine[key]}",
                    remedy=f"load it with the {what} that it was saved with",
                )
        if arrays.keys() != self._held.keys():
            raise PlanMismatchError(f"checkpoint {quoted(str(path))} has other arrays", remedy="load another one")
        held = {name: on_device(array, self._device) for name, array in arrays.items()}
        with held_back():
            self._held, self.steps_done, self._torn = held, int(about["steps_done"]), False
            self._session = self._step_session()

    def _identity(self) -> dict[str, Any]:
        chosen = {"kind": self.optimizer.kind, **asdict(self.optimizer)}
        chosen.pop("lr")  # it may change from step to step
        chosen = {key: list(value) if isinstance(value, tuple) else value for key, value in chosen.items()}
        return {"step_sha256": self._model.digest, "optimizer": chosen, "steps_done": self.steps_done}

    def _described(self, name: str) -> tuple[tuple[int, ...], str]:
        shape, number = self._model.reads[name]
        return shape, DTYPES[number]

    def _step_session(self) -> Any:
        return open_session(
            self._model.content(self.steps_done), self._model.name, self._provider, self.about["session"], self._threads
        )

    def _optimizer_session(self) -> Any:
        listed = [(name, gradient, *self._described(name)) for name, gradient in self._gradients.items()]
        content = optimizer_graph(self.optimizer, listed)
        return open_session(content, self.optimizer.kind, self._provider, self.about["session"], self._threads)

    def _run(self, feed: Feed, wanted: list[str]) -> dict[str, Any]:
        names = [*self.about["inputs"], *self.about["seeds"]]
        if not isinstance(feed, Mapping):
            raise UsageError("the batch is no mapping", remedy=f"give {', '.join(map(quoted, names))} by name")
        if missing := [name for name in names if name not in feed]:
            raise UsageError(
                f"the batch has no array for {quoted(missing[0])}", remedy=f"give {', '.join(map(quoted, names))}"
            )
        if foreign := [name for name in feed if name not in names]:
            raise UsageError(
                f"{quoted(foreign[0])} is no input of {self._model.name}",
                remedy=f"give {', '.join(map(quoted, names))}",
            )
        binding = self._session.io_binding()
        for name in names:
            shape, dtype = self._described(name)
            try:
                array = np.asarray(feed[name], order="C")
            except Exception as error:  # of the object's own conversion
                raise UsageError(f"{quoted(name)} is no array: {error}", remedy="convert it to one of numpy") from None
            if array.shape != shape or str(array.dtype) != dtype:
                raise UsageError(
                    f"{quoted(name)} is {array.dtype} {array.shape}, and the step takes {dtype} {shape}",
                    remedy="convert it, or plan the model for this batch and write the step again",
                )
            if name in self.about["seeds"]:
                self._check_labels(name, array)
            binding.bind_ortvalue_input(name, on_device(array, self._device))
        for name in (*self._gradients, *self._statistics):
            binding.bind_ortvalue_input(name, self._held[name])
        for name in wanted:
            binding.bind_output(name, self._device)
        run_bound(self._session, binding, self._model.name)
        return dict(zip(wanted, binding.get_outputs(), strict=True))

    def _check_labels(self, name: str, array: Any) -> None:
        classes = self.about["classes"]
        wrong = [] if classes is None else array[(array < 0) | (array >= classes)].tolist()
        if wrong:
            raise UsageError(
                f"label {wrong[0]} in {quoted(name)} is none of the {classes} classes",
                remedy=f"give labels from 0 to {classes - 1}; none is ignored",
            )

    def _optimise(self, gradients: Mapping[str, Any]) -> None:
        """Run the optimizer's graph, whose results take the place of what they are made of."""
        scalars, binding = self.optimizer.scalars(self.steps_done + 1), self._update.io_binding()
        for entry in self._update.get_inputs():
            key, _, kind = entry.name.rpartition(" (")
            if key in scalars:
                value = on_device(np.asarray(scalars[key], kind.rstrip(")")), self._device)
            else:
                value = gradients[entry.name] if entry.name in gradients else self._held[entry.name]
            binding.bind_ortvalue_input(entry.name, value)
        for entry in self._update.get_outputs():
            binding.bind_ortvalue_output(entry.name, self._held[entry.name.removeprefix("new ")])
        run_bound(self._update, binding, self._optimizer.kind)
