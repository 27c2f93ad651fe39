"""Times and workspace measured in real steps: what a profile holds, who plans by it, and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import bind, export, plan_of, profile, within_budget
from ogc_plan.adapters.pytorch.execution.op_timing import Clock
from ogc_plan.cli.main import main
from ogc_plan.planner import StepProfile, load_model, read_plan, read_profile
from ogc_plan.planner.errors import AdapterError, OgcPlanError, PlanMismatchError, StorageError, UsageError
from torch import Tensor, nn

from tests.modules.devices import cpu_only, device_text, random_state
from tests.modules.torch_modules import Attention, WithLoss, convolutional
from tests.modules.torch_training import train

BUDGET = "85%"
HUGE_NS = 10**12


def run(*words: Any) -> tuple[int, str]:
    """One call of the command line: exit code and all it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main([str(word) for word in words])
    return code, printed.getvalue()


def network() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(32, 32), nn.GELU()]
    return WithLoss(nn.Sequential(*layers, nn.Dropout(0.2)))


ARGS = (torch.linspace(-1, 1, 2048).view(64, 32),)


@pytest.fixture(scope="module")
def measured() -> StepProfile:
    return profile(network(), ARGS, rounds=3)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "model.onnx"
    export(network(), ARGS, path)
    return path


@pytest.fixture(scope="module")
def saved(measured: StepProfile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    measured.save(path)
    return path


def changed(given: StepProfile, name: str, **figures: int) -> StepProfile:
    """The profile with other figures for one op."""
    return replace(given, ops=tuple(replace(op, **figures) if op.name == name else op for op in given.ops))


def a_rerun(measured: StepProfile) -> str:
    """An op that a plan by the profile as measured runs again."""
    return next(iter(plan_of(within_budget(network(), ARGS, budget=BUDGET, profile=measured)).recomputed))


class TestWhatItHolds:
    def test_a_profile_has_every_op_of_the_step(self, measured: StepProfile, exported: Path) -> None:
        assert [op.name for op in measured.ops] == [op.name for op in load_model(exported).training.ops]

    def test_a_profile_has_a_time_for_every_forward_and_backward(self, measured: StepProfile, exported: Path) -> None:
        found = [(op.forward_ns > 0, op.backward_ns > 0) for op in measured.ops]
        assert found == [(True, op.backward is not None) for op in load_model(exported).training.ops]

    def test_a_profile_has_the_workspace_of_the_calls(self, measured: StepProfile, exported: Path) -> None:
        found = [(op.forward_workspace_nbytes, op.backward_workspace_nbytes) for op in measured.ops]
        costs = load_model(exported).costs
        assert found == [(cost.forward_workspace_nbytes, cost.backward_workspace_nbytes) for cost in costs]

    def test_a_profile_names_graph_framework_and_device(self, measured: StepProfile, exported: Path) -> None:
        found = (measured.graph, measured.framework, measured.device)
        device = device_text()
        assert found == (load_model(exported).training.fingerprint, f"torch {torch.__version__}", device)

    @cpu_only("both are too short for a card")
    def test_a_slow_op_takes_longer_than_a_quick_one(self) -> None:
        class Two(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.tanh(x @ x).mean()

        x = torch.randn(500, 500, requires_grad=True)
        times = {op.name: op.forward_ns for op in profile(Two(), (x,), rounds=3).ops}
        assert times["mm"] > 5 * times["mean"]

    def test_on_cuda_the_times_are_those_between_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Event:
            """The n-th event is recorded after n milliseconds."""

            count = 0

            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: str) -> None:
                Event.count += 1
                self.at_ms = Event.count

            def elapsed_time(self, later: Event) -> float:
                return float(later.at_ms - self.at_ms)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "stream")
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        clock = Clock(torch.device("cuda"))
        for place in (-1, 0, 1):
            clock.on_step(place)
        assert (clock.read(), clock.read()) == ([(-1, 0.0), (0, 1e6), (1, 2e6)], [])

    def test_a_profile_can_be_measured_within_a_budget(self, measured: StepProfile) -> None:
        found = profile(network(), ARGS, rounds=1, budget=BUDGET)
        assert ([op.name for op in found.ops], found.graph) == ([op.name for op in measured.ops], measured.graph)


class TestWhatItLeavesAlone:
    @pytest.mark.values
    def test_profiling_leaves_buffers_and_gradients_alone(self) -> None:
        module = WithLoss(convolutional())
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        profile(module, (torch.randn(8, 3, 8, 8),), rounds=1)
        same = all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())
        assert (same, [p.grad for p in module.parameters() if p.grad is not None]) == (True, [])

    def test_the_random_generator_is_left_alone(self) -> None:
        module, args = WithLoss(Attention()), (torch.randn(4, 9, 16),)
        before = random_state()
        profile(module, args, rounds=1)
        assert torch.equal(random_state(), before)


class TestPlansUseIt:
    def test_an_op_that_takes_very_long_is_never_run_again(self, measured: StepProfile) -> None:
        name = a_rerun(measured)
        slow = changed(measured, name, forward_ns=HUGE_NS)
        made = plan_of(within_budget(network(), ARGS, budget=BUDGET, profile=slow))
        assert (name in made.recomputed, bool(made.recomputed)) == (False, True)

    def test_a_plan_by_a_profile_has_its_times(self, measured: StepProfile) -> None:
        made = plan_of(within_budget(network(), ARGS, budget=BUDGET, profile=measured))
        assert (made.time.source, made.time.store_all_ns) == ("profile", measured.step_ns)

    def test_a_plan_by_a_profile_counts_its_workspace(self, measured: StepProfile) -> None:
        much = changed(measured, measured.ops[0].name, forward_workspace_nbytes=10**9)
        made = plan_of(within_budget(network(), ARGS, budget="2GB", profile=much))
        assert made.peak.store_all_activation_nbytes > 10**9

    def test_an_export_carries_the_profiles_times(self, measured: StepProfile, tmp_path: Path) -> None:
        slow = changed(measured, measured.ops[0].name, forward_ns=HUGE_NS)
        export(network(), ARGS, tmp_path / "timed.onnx", profile=slow)
        assert load_model(tmp_path / "timed.onnx").costs[0].forward_ns == HUGE_NS


class TestFile:
    def test_a_round_trip_changes_nothing(self, measured: StepProfile, saved: Path) -> None:
        assert read_profile(saved) == measured

    def test_within_budget_reads_a_profile_file(self, measured: StepProfile, saved: Path) -> None:
        assert plan_of(within_budget(network(), ARGS, budget=BUDGET, profile=saved)).time.source == "profile"

    def test_the_command_line_plans_by_a_profile(self, measured: StepProfile, exported: Path, tmp_path: Path) -> None:
        name = a_rerun(measured)
        changed(measured, name, forward_ns=HUGE_NS).save(tmp_path / "slow.json")
        run(exported, "--budget", BUDGET, "--profile", tmp_path / "slow.json", "-o", tmp_path / "plan.json")
        made = read_plan(tmp_path / "plan.json")
        assert (made.time.source, name in made.recomputed) == ("profile", False)

    def test_a_plan_by_a_profile_binds_and_trains(self, exported: Path, saved: Path, tmp_path: Path) -> None:
        run(exported, "--budget", BUDGET, "--profile", saved, "-o", tmp_path / "plan.json")
        module = network()
        assert train(bind(module, tmp_path / "plan.json", ARGS), ARGS) == train(module, ARGS)

    def test_a_plan_by_a_profile_verifies(self, measured: StepProfile, exported: Path, tmp_path: Path) -> None:
        changed(measured, measured.ops[0].name, forward_workspace_nbytes=4096).save(tmp_path / "more.json")
        run(exported, "--budget", BUDGET, "--profile", tmp_path / "more.json", "-o", tmp_path / "plan.json")
        code, printed = run("verify", tmp_path / "plan.json", exported)
        assert (code, "a profile gave them" in printed) == (0, True)

    def test_show_takes_its_times_from_a_profile(self, measured: StepProfile, exported: Path, saved: Path) -> None:
        data = json.loads(run("show", exported, "--profile", saved, "--format", "json")[1])
        assert (data["time_source"], data["store_all"]["step_ns"]) == ("profile", measured.step_ns)

    def test_a_plan_by_a_profile_is_for_the_profiles_machine(
        self, measured: StepProfile, exported: Path, tmp_path: Path
    ) -> None:
        replace(measured, device="cpu, 64 threads").save(tmp_path / "server.json")
        data = json.loads(run("show", exported, "--profile", tmp_path / "server.json", "--format", "json")[1])
        assert data["annotations"]["device"] == "cpu, 64 threads"


def edited(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    def edit(data: dict[str, Any]) -> Any:
        return {**data, key: value}

    return edit


def first_op(**figures: Any) -> Callable[[dict[str, Any]], Any]:
    def edit(data: dict[str, Any]) -> Any:
        return {**data, "ops": [{**data["ops"][0], **figures}, *data["ops"][1:]]}

    return edit


BROKEN: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda data: [data], "is no profile"),
    (edited("format", "ogc-plan"), '"format" is not "ogc-plan profile"'),
    (edited("version", 2), "has version 2, this program reads version 1"),
    (edited("ops", [1]), "ops[0] is not an object"),
    (first_op(name=None), 'ops[0]: "name" is missing or not text'),
    (first_op(forward_ns=-1), 'ops[0]: "forward_ns" is missing or no whole number from 0'),
    (first_op(colour="red"), 'ops[0] has the unknown key "colour"'),
    (lambda data: {**data, "ops": [{**op, "forward_ns": 2**59} for op in data["ops"]]}, "add up to"),
    (edited("graph", "0" * 64), 'the profile was measured of graph "000000000000"'),
]


class TestRefusals:
    @pytest.mark.parametrize(("edit", "says"), BROKEN, ids=[says for _, says in BROKEN])
    def test_a_broken_profile_is_refused_in_one_line(
        self, edit: Callable[[dict[str, Any]], Any], says: str, exported: Path, saved: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "broken.json"
        path.write_text(json.dumps(edit(json.loads(saved.read_text()))))
        code, printed = run("show", exported, "--profile", path)
        first, *others = printed.splitlines()
        assert (code, says in first, [line.split(":")[0] for line in others]) == (2, True, ["help"])

    @pytest.mark.parametrize(
        ("content", "says"), [(b"{", "is not JSON"), (b"\xff\xfe", "is not UTF-8")], ids=["cut off", "not text"]
    )
    def test_a_profile_that_is_not_json_is_refused(self, content: bytes, says: str, tmp_path: Path) -> None:
        (tmp_path / "broken.json").write_bytes(content)
        with pytest.raises(UsageError, match=says):
            read_profile(tmp_path / "broken.json")

    def test_a_profile_that_cannot_be_read_is_refused(self) -> None:
        with pytest.raises(StorageError, match="cannot be read"):
            read_profile("absent.json")

    def test_a_profile_of_another_graph_is_refused(self, measured: StepProfile) -> None:
        with pytest.raises(UsageError, match="measured of graph") as caught:
            within_budget(network(), (torch.randn(32, 32),), budget=BUDGET, profile=measured)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "source", [{"framework": "torch 2.0.0"}, {"device": "another kind, H100"}], ids=["version", "device"]
    )
    def test_a_profile_of_another_machine_is_refused(self, source: dict[str, str], measured: StepProfile) -> None:
        with pytest.raises(PlanMismatchError, match="the profile was made for"):
            within_budget(network(), ARGS, budget=BUDGET, profile=replace(measured, **source))

    def test_a_profile_for_a_bare_file_is_refused(self, exported: Path, saved: Path) -> None:
        code, printed = run("show", exported, "--profile", saved, "--ignore-annotations")
        assert (code, "the profile was measured of graph" in printed) == (2, True)

    def test_a_profile_and_a_device_on_the_command_line_are_refused(self, exported: Path, saved: Path) -> None:
        code, printed = run("show", exported, "--profile", saved, "--device", "t4")
        assert (code, "both give times" in printed) == (2, True)

    def test_a_profile_and_a_device_in_python_are_refused(self, measured: StepProfile) -> None:
        with pytest.raises(OgcPlanError, match="both give times"):
            within_budget(network(), ARGS, budget=BUDGET, profile=measured, device="t4")

    @pytest.mark.parametrize("rounds", [0, 1.5])
    def test_a_wrong_number_of_rounds_is_refused(self, rounds: Any) -> None:
        with pytest.raises(AdapterError, match="rounds is"):
            profile(network(), ARGS, rounds=rounds)

    @cpu_only("an index out of range ends the process on a card")
    def test_a_step_that_fails_while_it_is_profiled_is_one_clear_error(self) -> None:
        module = WithLoss(nn.Embedding(3, 4))
        with pytest.raises(
            AdapterError, match="a step of WithLoss fails when it is profiled: IndexError: index out"
        ) as caught:
            profile(module, (torch.tensor([7]),))
        assert "\n" not in str(caught.value)
