"""The reference executor passes every case, trains, and needs no ogc_plan; broken executors fail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance.__main__ import main
from tests.conformance.cases import CASES, load, small, write_cases
from tests.conformance.check import complaints
from tests.conformance.numpy_executor import Executor, key
from tests.conformance.numpy_kernels import Array
from tests.conformance.numpy_runtime import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    write_cases(folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_the_reference_executor_passes(cases: Path, name: str) -> None:
    run(cases / name)
    assert complaints(cases / name) == []


@pytest.mark.parametrize("name", CASES)
def test_every_case_recomputes(cases: Path, name: str) -> None:
    assert Executor(cases / name / "plan.json", cases / name / "model.onnx").plan["recompute"]


class SkipsAFree(Executor):
    def free(self, name: str) -> None:
        if name != "m":
            super().free(name)


class RecomputesOneOpMore(Executor):
    def recompute(self, name: str) -> None:
        super().recompute(name)
        super().recompute(next(iter(self.ops)))


class SumsInAnotherOrder(Executor):
    """Keeps the contributions, and adds them up from the last to the first."""

    def backward(self, name: str) -> None:
        before = dict(self.grads)
        for gradient in {gradient for gradient, _ in self.ops[name]["backward"]["gives"]} & before.keys():
            del self.grads[gradient]
        super().backward(name)
        for gradient, kept in before.items():
            if gradient in self.tensors and gradient in self.grads and self.grads[gradient] is not kept:
                parts = self.parts.setdefault(gradient, [kept])
                parts.append(self.grads[gradient])
                self.grads[gradient] = sum(parts[-2::-1], parts[-1])

    @property
    def parts(self) -> dict[str, list[Array]]:
        found: dict[str, list[Array]] = self.__dict__.setdefault("_parts", {})
        return found


class DrawsNewNumbers(Executor):
    def recompute(self, name: str) -> None:
        self.compute(self.ops[name])


class KeepsTheBatchOfTheFile(Executor):
    def __init__(self, plan: Path, model: Path) -> None:
        super().__init__(plan, model)
        self.given = {}


class ForgetsViews(Executor):
    def compute(self, op: dict[str, Any]) -> None:
        for place in op["nodes"]:
            self.run(key(place))


BROKEN: list[tuple[type[Executor], str, str]] = [
    (SkipsAFree, "two-layers", "alive but for the plan"),
    (RecomputesOneOpMore, "two-layers", "alive but for the plan"),
    (SumsInAnotherOrder, "sums", "the gradient of w1 is wrong"),
    (DrawsNewNumbers, "random", "the gradient of w2 is wrong"),
]


@pytest.mark.parametrize(("executor", "name", "says"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_executor_fails(cases: Path, tmp_path: Path, executor: type[Executor], name: str, says: str) -> None:
    case = shutil.copytree(cases / name, tmp_path / name)
    run(case, executor)
    assert says in " ".join(complaints(case))


@pytest.mark.parametrize(("executor", "name"), [(KeepsTheBatchOfTheFile, "batch"), (ForgetsViews, "batch")])
def test_an_executor_that_reads_less_of_the_plan_cannot_run(cases: Path, executor: type[Executor], name: str) -> None:
    runtime = executor(cases / name / "plan.json", cases / name / "model.onnx")
    with pytest.raises((ValueError, KeyError, AttributeError, TypeError)):
        list(runtime.step({"x": small(4, 8, seed=4)}, lambda outputs: load(cases / name / "given.json")["seeds"]))


def test_a_log_that_ends_early_is_named(cases: Path, tmp_path: Path) -> None:
    case = shutil.copytree(cases / "sums", tmp_path / "sums")
    run(case)
    lines = (case / "log.jsonl").read_text().splitlines(keepends=True)
    (case / "log.jsonl").write_text("".join(lines[:-1]))
    assert "the log has" in complaints(case)[0]


def test_the_command_fails_where_a_case_does(cases: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(cases, tmp_path / "all")
    for name in CASES:
        run(folder / name, SkipsAFree if name == "two-layers" else Executor)
    assert main("check", folder) == 1


def trained(gradients: Callable[[dict[str, Array]], dict[str, Array]], start: dict[str, Array]) -> dict[str, Array]:
    """Parameters after twenty steps of SGD."""
    parameters = {name: array.copy() for name, array in start.items()}
    for _ in range(20):
        for name, gradient in gradients(parameters).items():
            parameters[name] = parameters[name] - np.float32(2**-12) * gradient
    return parameters


def test_it_trains_two_layers_as_numpy_alone_does(cases: Path) -> None:
    runtime = Executor(cases / "two-layers" / "plan.json", cases / "two-layers" / "model.onnx")
    x, target = small(4, 8, seed=6), small(4, 8, seed=7)
    output = runtime.plan["seeds"][0]
    losses: list[float] = []

    def by_plan(parameters: dict[str, Array]) -> dict[str, Array]:
        runtime.parameters = parameters
        list(runtime.step({"x": x}, lambda values: {output: values["y"] - target}))
        losses.append(float(((runtime.values["y"] - target) ** 2).sum()))
        return {runtime.tensors[name]: runtime.grads[name] for name in runtime.is_parameter}

    def alone(p: dict[str, Array]) -> dict[str, Array]:
        y = np.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"]
        right = CASES["two-layers"].gradients
        assert right is not None
        return right(p, x, y - target)

    start = dict(runtime.parameters)
    planned, plain = trained(by_plan, start), trained(alone, start)
    right = [np.allclose(planned[name], plain[name], rtol=1e-6, atol=0) for name in start]
    assert (all(right), losses[-1] < losses[0] / 2) == (True, True)


def holds(whole: Any, part: Any) -> bool:
    """Whether each entry of a shortened document is in the whole one."""
    if isinstance(part, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    if isinstance(part, list) and any(isinstance(entry, dict) for entry in part):
        return all(any(holds(one, entry) for one in whole) for entry in part)
    return bool(whole == part or (isinstance(part, list) and part and set(map(str, part)) <= set(map(str, whole))))


def test_the_page_shows_the_plan_of_the_first_case(cases: Path) -> None:
    page = (ROOT / "planner" / "plan_file" / "README.md").read_text(encoding="utf-8")
    shown = json.loads(page.partition("```json\n")[2].partition("```")[0])
    assert holds(json.loads((cases / "two-layers" / "plan.json").read_text()), shown)


def test_it_knows_nothing_of_ogc_plan() -> None:
    code = "import sys, tests.conformance.numpy_executor as e; print(any('ogc_plan' in m for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
