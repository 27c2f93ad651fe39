"""From a module to a plan and back: export, the command line, bind, within_budget."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from ogc_plan.adapters.pytorch import bind, export, plan_of, predict, within_budget
from ogc_plan.cli.main import main
from ogc_plan.planner import load_model, plan, read_plan, write_plan
from ogc_plan.planner.errors import InfeasibleBudgetError, OgcPlanError, PlanMismatchError
from torch import Tensor, nn

from tests.modules.devices import DEVICE_TYPE, cpu_only, device_text
from tests.modules.torch_modules import Squares, WithLoss, convolutional
from tests.modules.torch_training import measured, predicted, train

BUDGET = "90%"
Exported = tuple[nn.Module, tuple[Tensor, ...], Path]


def run(*words: Any) -> tuple[int, str]:
    """One call of the command line: exit code and all it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main([str(word) for word in words])
    return code, printed.getvalue()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A module with batch norm and dropout, its arguments and its file.

    Its largest call is far from its store-all peak, whatever workspace this machine's convolutions take.
    """
    torch.manual_seed(0)
    head = [layer for _ in range(8) for layer in (nn.Conv2d(3, 3, 1), nn.Tanh())]
    module, args = WithLoss(nn.Sequential(*head, convolutional(), nn.Dropout(0.2))), (torch.randn(8, 3, 8, 8),)
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    export(module, args, path)
    return module, args, path


@pytest.fixture(scope="module")
def plan_file(exported: Exported) -> Path:
    path = exported[2].with_suffix(".plan.json")
    run(exported[2], "--budget", BUDGET, "-o", path)
    return path


class TestThroughTheFile:
    def test_the_command_line_plans_it(self, exported: Exported, plan_file: Path) -> None:
        assert json.loads(plan_file.read_text())["model"]["annotations"] == {
            "framework": f"torch {torch.__version__}",
            "device": device_text(),
        }

    def test_the_command_line_says_whose_graph_it_plans(self, exported: Exported) -> None:
        assert f"torch {torch.__version__} on {DEVICE_TYPE}" in run(exported[2], "--budget", BUDGET)[1]

    def test_the_plan_trains_the_module_bit_by_bit(self, exported: Exported, plan_file: Path) -> None:
        module, args, _ = exported
        assert train(bind(module, plan_file, args), args, steps=3) == train(module, args, steps=3)

    def test_the_plan_is_the_one_made_in_memory(self, exported: Exported, tmp_path: Path) -> None:
        module, args, path = exported
        run(path, "--budget", BUDGET, "--device", "t4", "-o", tmp_path / "plan.json")
        inside = within_budget(module, args, budget=BUDGET, device="t4")
        assert plan_of(inside).schedule == read_plan(tmp_path / "plan.json").schedule

    def test_verify_reproduces_the_peak_of_the_executor(self, exported: Exported, plan_file: Path) -> None:
        module, args, path = exported
        peak = predict(bind(module, plan_file, args)).activation_nbytes
        report = json.loads(plan_file.read_text())["peak"]["activation_nbytes"]
        assert (run("verify", plan_file, path)[0], peak) == (0, report)

    def test_the_step_stays_within_the_budget(self, exported: Exported, plan_file: Path) -> None:
        module, args, _ = exported
        trained = bind(module, plan_file, args)
        assert measured(trained, args)[1] <= plan_of(trained).budget.nbytes

    def test_a_file_may_be_planned_bare(self, exported: Exported) -> None:
        assert run("show", exported[2], "--ignore-annotations")[0] == 0


class TestRefusals:
    def test_a_plan_of_a_bare_file_is_refused(self, exported: Exported, tmp_path: Path) -> None:
        module, args, path = exported
        bare = onnx.load(path)
        del bare.metadata_props[:]
        for node in bare.graph.node:
            del node.metadata_props[:]
        onnx.save(bare, tmp_path / "bare.onnx")
        made = plan(load_model(tmp_path / "bare.onnx"), "100%")
        with pytest.raises(PlanMismatchError, match="made from the bare file"):
            bind(module, made, args)

    def test_another_shape_is_refused(self, exported: Exported, plan_file: Path) -> None:
        module, args, _ = exported
        with pytest.raises(PlanMismatchError, match="with these arguments has"):
            bind(module, plan_file, (torch.cat([args[0], args[0]]),))

    def test_a_plan_of_another_module_is_refused(self, plan_file: Path) -> None:
        other = WithLoss(nn.Linear(4, 4))
        with pytest.raises(PlanMismatchError, match="WithLoss with these arguments has"):
            bind(other, plan_file, (torch.randn(2, 4),))

    def test_a_plan_of_another_torch_version_is_refused(
        self, exported: Exported, plan_file: Path, tmp_path: Path
    ) -> None:
        text = plan_file.read_text().replace(f'"torch {torch.__version__}"', '"torch 2.0.0"')
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(PlanMismatchError, match=rf"made for torch 2\.0\.0 on {DEVICE_TYPE}, .*, this is torch"):
            bind(exported[0], tmp_path / "plan.json", exported[1])

    def test_a_budget_below_the_floor_is_refused_with_what_python_takes(self, exported: Exported) -> None:
        with pytest.raises(InfeasibleBudgetError, match="proven infeasible") as refused:
            within_budget(exported[0], exported[1], budget="1%")
        says = r'pass budget="\d+B" or more with scope="activations", or a smaller batch'
        assert re.fullmatch(f".*; {says}", str(refused.value))

    def test_dimensions_of_an_annotated_file_cannot_be_changed(self, exported: Exported) -> None:
        assert "export the model again" in run(exported[2], "--budget", BUDGET, "--batch", "2")[1]


class TestPrediction:
    @cpu_only("bytes of a card hold its context too: tests/cuda/test_cap.py")
    def test_a_byte_budget_bounds_everything(self, exported: Exported) -> None:
        module, args, _ = exported
        whole = predict(within_budget(module, args, budget="100%", strategy="keep-all")).total_nbytes
        assert predict(within_budget(module, args, budget=f"{whole - 1}B")).total_nbytes < whole

    @pytest.mark.parametrize(
        ("option", "says"),
        [
            ({"headroom": 5.0}, "headroom 5.0 is"),
            ({"recompute": [None]}, "recompute None is"),
            ({"time_limit_s": "a"}, "time limit 'a' is"),
            ({"seed": -1}, "seed -1 is"),
        ],
    )
    def test_a_value_that_an_option_cannot_have_is_named(
        self, exported: Exported, option: dict[str, Any], says: str
    ) -> None:
        module, args, _ = exported
        with pytest.raises(OgcPlanError, match=f"^{says}"):
            within_budget(module, args, **{"budget": BUDGET, **option})

    def test_headroom_may_be_a_number_of_bytes(self, exported: Exported) -> None:
        module, args, _ = exported
        budgets = [plan_of(within_budget(module, args, budget=BUDGET, headroom=size)).budget for size in (0, 1000)]
        assert budgets[0].nbytes - budgets[1].nbytes == 1000

    def test_present_gradients_add_one_full_set(self, exported: Exported) -> None:
        module, args, _ = exported
        trained = within_budget(module, args, budget="100%")
        every = sum(parameter.nbytes for parameter in module.parameters())
        alone, present = predict(trained), predict(trained, gradients_present=True)
        assert present.total_nbytes - alone.total_nbytes == every

    def test_a_scalar_that_holds_a_whole_tensor_is_charged_for_it(self) -> None:
        module, args = Squares(), (torch.randn(32, 16), torch.randn(32, 16))
        trained = within_budget(module, args, budget="100%", strategy="keep-all")
        assert measured(trained, args) == predicted(trained)

    def test_a_plan_can_be_written_and_bound_again(self, exported: Exported, tmp_path: Path) -> None:
        module, args, _ = exported
        write_plan(plan_of(within_budget(module, args, budget=BUDGET)), tmp_path / "plan.json.gz")
        assert train(bind(module, tmp_path / "plan.json.gz", args), args) == train(module, args)
