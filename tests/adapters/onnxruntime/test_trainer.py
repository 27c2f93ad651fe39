"""The trainer: resuming, checkpoints that are whole, and one line for each fault."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ogc_plan.adapters.onnxruntime import SGD, AdamW, Progress, Trainer
from ogc_plan.planner.errors import (
    AdapterError,
    InvalidModelError,
    OgcPlanError,
    PlanMismatchError,
    StorageError,
    UsageError,
)

from tests.adapters.onnx_module.test_training import convolutions
from tests.adapters.onnx_step.gradient_cases import written
from tests.files.onnx_models import model, node, save

pytestmark = pytest.mark.values

Feed = dict[str, Any]


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = convolutions(tmp_path, 3)
    (tmp_path / "step.onnx").write_bytes(written(path, "60%", "cross_entropy", batch=4).content)
    return tmp_path / "step.onnx"


def batches(count: int) -> list[Feed]:
    random = np.random.default_rng(0)
    return [
        {"x": random.normal(size=(4, 8, 16, 16)).astype(np.float32), "target": random.integers(0, 4, 4)}
        for _ in range(count)
    ]


def dropping(folder: Path) -> Path:
    """A step with a dropout."""
    nodes = [node("MatMul", "x a", "h"), node("Dropout", "h", "d"), node("MatMul", "d b", "y")]
    proto = model(nodes, {"x": (8, 16)}, weights={"a": (16, 64), "b": (64, 2)})
    random = np.random.default_rng(0)
    for entry in proto.graph.initializer:
        entry.CopyFrom(
            onnx.numpy_helper.from_array(random.normal(size=tuple(entry.dims)).astype(np.float32), entry.name)
        )
    (folder / "dropping.onnx").write_bytes(written(save(proto, folder), "100%", "mse").content)
    return folder / "dropping.onnx"


def test_a_resumed_run_has_the_numbers_of_one_that_went_on_dropout_included(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    feeds = [{"x": random.normal(size=(8, 16)).astype(np.float32), "target": np.zeros((8, 2), np.float32)}] * 4
    path = dropping(tmp_path)
    going = Trainer(path, AdamW())
    going.fit(feeds[:2], checkpoint=tmp_path / "c")
    resumed = Trainer(path, AdamW())
    resumed.load(tmp_path / "c")
    losses = [[trainer.step(feed) for feed in feeds[2:]] for trainer in (going, resumed)]
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1]


def test_each_step_drops_other_elements(tmp_path: Path) -> None:
    trainer = Trainer(dropping(tmp_path), SGD(0.0))
    feed = {"x": np.ones((8, 16), np.float32), "target": np.zeros((8, 2), np.float32)}
    assert len({trainer.step(feed) for _ in range(3)}) == 3


def test_progress_is_told_after_each_step(step: Path) -> None:
    told: list[Progress] = []
    last = Trainer(step).fit(batches(3), told.append)
    assert [(entry.step, entry.loss is not None) for entry in told] == [(1, True), (2, True), (3, True)]
    assert told[-1].loss == last


def test_an_interrupted_run_leaves_a_checkpoint(step: Path, tmp_path: Path) -> None:
    def interrupted() -> Iterable[Feed]:
        yield from batches(2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trainer(step).fit(interrupted(), checkpoint=tmp_path / "c")
    trainer = Trainer(step)
    trainer.load(tmp_path / "c")
    assert trainer.steps_done == 2


def interrupting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function during which Ctrl-C is pressed."""

    def pressed(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return function(*given)

    return pressed


@pytest.mark.usefixtures("usual_interrupts")
def test_ctrl_c_while_a_step_changes_the_parameters_waits_until_all_are_changed(
    step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, trainer = Trainer(step), Trainer(step)
    whole.step(batches(1)[0])
    monkeypatch.setattr(SGD, "scalars", interrupting(SGD.scalars))
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(batches(2), checkpoint=tmp_path / "c")
    trainer.load(tmp_path / "c")
    same = all(np.array_equal(whole.parameters[name], array) for name, array in trainer.parameters.items())
    assert (trainer.steps_done, same) == (1, True)


@pytest.mark.usefixtures("usual_interrupts")
def test_a_second_ctrl_c_does_not_end_the_saving(step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", interrupting(os.fsync))
    with pytest.raises(KeyboardInterrupt):
        Trainer(step).fit(map(interrupting(dict), batches(1)), checkpoint=tmp_path / "c")
    assert (tmp_path / "c").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_checkpoint_that_fails_hides_no_exception_of_the_batches(step: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as found:
        Trainer(step).fit(({} for divisor in [0] if 1 / divisor), checkpoint=tmp_path / "none" / "c")
    assert isinstance(found.value.__context__, StorageError)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_half_written_checkpoint_is_refused_and_changes_nothing(share: float, step: Path, tmp_path: Path) -> None:
    trainer = Trainer(step)
    trainer.step(batches(1)[0])
    trainer.save(tmp_path / "c")
    content = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(content[: int(len(content) * share)])
    before = trainer.parameters
    with pytest.raises(StorageError, match="is damaged or none") as found:
        trainer.load(tmp_path / "c")
    assert found.value.exit_code == 8
    assert all(np.array_equal(before[name], array) for name, array in trainer.parameters.items())


def test_a_full_disk_leaves_the_checkpoint_before(step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(step)
    trainer.save(tmp_path / "c")
    trainer.step(batches(1)[0])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        trainer.save(tmp_path / "c")
    trainer.load(tmp_path / "c")
    assert (trainer.steps_done, [path.name for path in tmp_path.glob(".c*")]) == (0, [])


def test_a_checkpoint_of_another_optimizer_is_refused(step: Path, tmp_path: Path) -> None:
    Trainer(step, SGD(0.1)).save(tmp_path / "c")
    with pytest.raises(PlanMismatchError, match="is of another optimizer"):
        Trainer(step, AdamW()).load(tmp_path / "c")


def test_a_checkpoint_of_another_step_is_refused(step: Path, tmp_path: Path) -> None:
    Trainer(dropping(tmp_path)).save(tmp_path / "c")
    with pytest.raises(PlanMismatchError, match="is of another step"):
        Trainer(step).load(tmp_path / "c")


def test_a_file_that_is_no_step_is_refused(step: Path) -> None:
    with pytest.raises(InvalidModelError, match=r'"model\.onnx" is no training step'):
        Trainer(step.with_name("model.onnx"))


def test_a_provider_that_is_not_there_is_refused(step: Path) -> None:
    with pytest.raises(UsageError, match="provider 'TPU' is not in the installed onnxruntime"):
        Trainer(step, provider="TPU")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target": None}, 'the batch has no array for "target"'),
        ({"y": np.zeros(1)}, '"y" is no input of'),
        ({"x": [[0], 0]}, '"x" is no array: '),
        ({"target": np.array([0, 1, -1, 2])}, 'label -1 in "target" is none of the 4 classes'),
        ({"target": np.array([0, 1, -100, 2])}, "label -100 in"),
        ({"target": np.array([0, 1, 4, 2])}, "label 4 in"),
        ({"x": np.zeros((2, 8, 16, 16), np.float32)}, r'"x" is float32 \(2, 8, 16, 16\), and the step takes float32'),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(change: Feed, told: str, step: Path) -> None:
    feed = {key: value for key, value in {**batches(1)[0], **change}.items() if value is not None}
    trainer = Trainer(step)
    with pytest.raises(OgcPlanError, match=told):
        trainer.step(feed)
    assert trainer.steps_done == 0


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda _: SGD(-1.0), "SGD: lr -1.0 is no number"),
        (lambda _: SGD(float("inf")), "SGD: lr inf is no number"),
        (lambda _: SGD(momentum=float("nan")), "SGD: momentum nan is no number"),
        (lambda _: SGD("0.1"), "SGD: lr '0.1' is no number"),  # type: ignore[arg-type]
        (lambda _: AdamW(betas=(1.0, 0.9)), "AdamW: beta 1.0 is no number from 0 to below 1"),
        (lambda _: AdamW(betas=(0.9,)), "are no pair"),  # type: ignore[arg-type]
        (lambda path: Trainer(path, "adam"), "'adam' is no optimizer"),  # type: ignore[arg-type]
        (lambda path: Trainer(path, threads=-3), "threads -3 is no number of threads"),
        (lambda path: Trainer(path).fit([], every=0), "every 0 is no number of steps"),
        (lambda path: Trainer(path).step(np.zeros(3)), "the batch is no mapping"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_that_does_not_fit_is_refused(make: Callable[[Path], object], told: str, step: Path) -> None:
    with pytest.raises(UsageError) as found:
        make(step)
    assert told in found.value.message


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"format": "ogc-plan-step", "version": 1}'])
def test_a_step_with_damaged_metadata_is_refused(text: str, step: Path) -> None:
    proto = onnx.load(step)
    proto.metadata_props[0].value = text
    onnx.save(proto, step)
    with pytest.raises(InvalidModelError, match=r'"step\.onnx" is no training step'):
        Trainer(step)


def small(folder: Path, proto: onnx.ModelProto, loss: str = "mse") -> Trainer:
    """A trainer of a model."""
    (folder / "small.onnx").write_bytes(written(save(proto, folder), "100%", loss).content)
    return Trainer(folder / "small.onnx")


def test_a_model_with_a_scalar_output_trains(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "h"), node("ReduceSum", "h", "y", keepdims=0)]
    trainer = small(tmp_path, model(nodes, {"x": (2, 3)}, weights={"w": (3, 4)}))
    weights = trainer.parameters["w"].sum()
    loss = trainer.step({"x": np.ones((2, 3), np.float32), "target": np.float32(1)})
    assert loss == pytest.approx((2 * weights - 1) ** 2, rel=1e-5)


def test_a_parameter_named_loss_has_its_gradient(tmp_path: Path) -> None:
    trainer = small(tmp_path, model([node("MatMul", "x loss", "y")], {"x": (2, 3)}, weights={"loss": (3, 4)}))
    made = trainer.gradients({"x": np.ones((2, 3), np.float32), "target": np.zeros((2, 4), np.float32)})
    assert {name: array.shape for name, array in made.items()} == {"loss": (3, 4), trainer.about["loss"]: ()}


def test_an_error_of_onnx_runtime_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    proto = model([node("Gather", "w x", "y")], {"x": (2,)}, weights={"w": (3, 4)})
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    trainer = small(tmp_path, proto)
    with pytest.raises(AdapterError, match="cannot run") as found:
        trainer.step({"x": np.array([0, 7]), "target": np.zeros((2, 4), np.float32)})
    assert (str(found.value).count("\n"), capfd.readouterr().err) == (0, "")


def test_a_step_that_fails_half_done_is_not_saved(step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(step)
    monkeypatch.setattr(SGD, "scalars", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.step(batches(1)[0])
    with pytest.raises(AdapterError, match="failed while it changed parameters"):
        trainer.save(tmp_path / "c")
