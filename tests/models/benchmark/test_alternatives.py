"""What PyTorch offers in the benchmark: where networks are divided, what steps take by the roofline, the table."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from ogc_plan.planner.costs.devices import DEVICES
from ogc_plan.planner.solver import Solver
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from models.alternatives.division import chains_of, segments_of, stages_of
from models.alternatives.methods import restored
from models.benchmark import measure as benchmark_measure
from models.benchmark.alternatives_table import alternatives, reason
from models.benchmark.measure import Settings, benchmark, methods, ours_within
from models.benchmark.network import FAKE, Network, Place
from models.benchmark.rows import overhead_of_calls, rows_of
from models.benchmark.search import Tradeoff
from models.benchmark.table import csv_rows, page
from models.meters.predicted_time import RooflineClock, predicted_s
from models.zoo import ZOO, Entry

PREDICTED = Place(FAKE, "rtx2080ti")
BLOCK, SELECTIVE = "checkpoint per block", "selective per block: save matmul, conv, attention"
SEQUENTIAL = "checkpoint_sequential, sqrt(n) segments"


def trunk(convolutions: int) -> list[nn.Module]:
    """Convolutions with ReLUs in place, a pooling of stride 1 after every second one."""
    layers: list[nn.Module] = []
    for number in range(convolutions):
        layers += [nn.Conv2d(8 if number else 3, 8, 3, padding=1), nn.ReLU(inplace=True)]
        if number % 2:
            layers.append(nn.MaxPool2d(3, 1, 1))
    return layers


class Plain(nn.Module):
    """A trunk as in VGG, of six convolutions, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*trunk(6))
        self.fc = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.features(images).mean((2, 3)))


PLAIN = Entry("plain", lambda _: Plain(), "images", 4, 16, 2, 16)


@pytest.fixture(scope="module")
def fake() -> Network:
    return Network("plain", Plain, lambda: PLAIN.inputs(4, 16), PREDICTED)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return benchmark(PLAIN, PREDICTED, Settings(solves=1), None, lambda _: None)


def lengths(layers: list[nn.Module]) -> list[int]:
    return [len(part) for part in segments_of(layers)]


class TestSegments:
    def test_they_are_those_of_checkpoint_sequential_where_these_work(self) -> None:
        assert lengths([nn.Linear(2, 2) for _ in range(11)]) == [3, 3, 5]

    def test_none_begins_in_place(self) -> None:
        begun = [part[0] for part in segments_of(trunk(7))]
        assert not any(isinstance(layer, nn.ReLU) for layer in begun)

    def test_one_that_would_begins_at_the_nearest_layer_that_works(self) -> None:
        layers = [nn.ReLU(inplace=place == 3) for place in range(9)]
        assert lengths(layers) == [2, 4, 3]

    def test_what_changes_nothing_does_not_hide_a_module_in_place(self) -> None:
        dense = [nn.Linear(2, 2), nn.Linear(2, 2)]
        assert lengths([*dense, nn.Identity(), nn.ReLU(inplace=True)]) == [1, 3]

    def test_a_sequential_begins_with_its_first_layer(self) -> None:
        inside = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2))
        assert lengths([nn.Linear(2, 2), nn.Linear(2, 2), inside, nn.Linear(2, 2)]) == [1, 3]

    def test_a_network_without_a_long_sequential_has_no_chain(self) -> None:
        with torch.device("meta"):
            assert chains_of(ZOO["nasnet_cifar10"].build(32)) == []


class TestStages:
    def test_a_trunk_of_layers_is_taken_from_pooling_to_pooling(self) -> None:
        assert [len(stage) for stage in stages_of(nn.Sequential(*trunk(6)))] == [5, 5, 5]

    def test_any_other_block_is_one(self) -> None:
        block = Plain()
        assert stages_of(block) == [[block]]


class TestMethods:
    @pytest.mark.parametrize("method", [BLOCK, SEQUENTIAL])
    def test_a_trunk_with_layers_in_place_has_plain_gradients(self, method: str) -> None:
        module, images = Plain(), torch.rand(2, 3, 16, 16)
        module(images).sum().backward()
        expected = [parameter.grad for parameter in module.parameters()]
        module.zero_grad()
        methods(module, fake=False, budgets=(), backend="")[method](module)(images).sum().backward()
        pairs = zip(module.parameters(), expected, strict=True)
        assert all(found.grad is not None and torch.equal(found.grad, wanted) for found, wanted in pairs)

    @pytest.mark.parametrize("method", [BLOCK, SEQUENTIAL])
    def test_a_trunk_of_layers_is_divided(self, method: str, found: dict[str, Any]) -> None:
        rows = rows_of(found)
        assert rows[method]["activation_nbytes"] < 0.9 * rows["plain"]["activation_nbytes"]


def time_ns(network: Network, module: nn.Module) -> float:
    """What the calls of a step of ``module`` take."""
    return 1e9 * (predicted_s(network, module) or 0.0)


class TestPredictedTime:
    @pytest.mark.parametrize("name", ["resnet18", "vgg11"])
    def test_the_calls_of_a_plain_step_take_what_the_planner_says(self, name: str) -> None:
        entry = ZOO[name]
        net = Network(name, lambda: entry.build(64), lambda: entry.inputs(16, 64), PREDICTED)
        assert predicted_s(net, net.module) == pytest.approx(net.problem.store_all_ns / 1e9, rel=0.02)

    def test_the_calls_of_a_planned_step_take_what_its_plan_says(self, fake: Network) -> None:
        solver = Solver(effort="fast")
        point = Tradeoff(fake.problem, solver).smallest()
        planned = fake.planned(fake.plan(point.solution, solver))
        added = time_ns(fake, planned) - time_ns(fake, fake.module)
        assert added == pytest.approx(point.solution.objective_ns, rel=0.1)

    def test_checkpointing_everything_adds_a_forward_pass(self, fake: Network) -> None:
        with fake.active(), RooflineClock(DEVICES["rtx2080ti"]) as forward:
            fake.module.features(*fake.arguments())
        with restored(fake.module):
            checkpointed = time_ns(fake, methods(fake.module, fake=True, budgets=(), backend="")[BLOCK](fake.module))
        added = checkpointed - time_ns(fake, fake.module)
        assert added == pytest.approx(forward.time_ns, rel=0.15)  # each stage stops once all that is needed is there

    def test_a_call_in_place_takes_what_it_takes_out_of_place(self) -> None:
        times = []
        with FakeTensorMode():
            data = torch.empty(1000, 1000)
            for call in (torch.relu, torch.relu_):
                with RooflineClock(DEVICES["h100"]) as clock:
                    call(data)
                times.append(clock.time_ns)
        assert times[0] == times[1] > 0

    def test_a_view_takes_no_time(self) -> None:
        with FakeTensorMode(), RooflineClock(DEVICES["h100"]) as clock:
            torch.empty(4, 4).view(16).expand(3, 16)
        assert clock.time_ns == 0

    def test_nothing_is_predicted_where_steps_are_timed(self) -> None:
        real = Network("plain", Plain, lambda: PLAIN.inputs(2, 16), Place("cpu", "rtx2080ti"))
        assert predicted_s(real, real.module) is None


class TestTable:
    @pytest.mark.parametrize("method", [BLOCK, SEQUENTIAL])
    def test_ours_holds_no_more_than_the_method_beside_it(self, method: str, found: dict[str, Any]) -> None:
        rows = rows_of(found)
        assert rows[ours_within(method)]["activation_nbytes"] <= rows[method]["activation_nbytes"]

    @pytest.mark.parametrize("method", [BLOCK, SEQUENTIAL])
    def test_ours_adds_less_time_at_that_memory(self, method: str, found: dict[str, Any]) -> None:
        rows = rows_of(found)
        theirs, ours = (overhead_of_calls(rows[name], rows["plain"]) or 0.0 for name in (method, ours_within(method)))
        assert 0 < ours < theirs

    def test_a_line_has_cut_time_and_our_time(self) -> None:
        plain = {"method": "plain", "activation_nbytes": 100, "calls_s": 1.0}
        theirs = {"method": BLOCK, "activation_nbytes": 60, "calls_s": 1.3}
        ours = {"method": ours_within(BLOCK), "activation_nbytes": 60, "calls_s": 1.1}
        text = alternatives({"any": {"rows": [plain, theirs, ours]}}, predicted=True)
        assert [cell.strip() for cell in text.splitlines()[-1].split("|")[2:-1]] == [BLOCK, "40.0%", "30.0%", "10.0%"]

    def test_seconds_that_were_measured_come_first(self) -> None:
        plain, row = {"seconds": 1.0, "calls_s": 1.0}, {"seconds": 1.5, "calls_s": 1.3}
        assert overhead_of_calls(row, plain) == 0.5

    def test_a_method_that_does_not_apply_has_a_dash(self, found: dict[str, Any]) -> None:
        without = {**found, "rows": [row for row in found["rows"] if row["method"] != SEQUENTIAL]}
        text = alternatives({"one": found, "other": without}, predicted=True)
        cells = [
            line.split("|")[3:-1] for line in text.splitlines() if line.startswith("| other") and SEQUENTIAL in line
        ]
        assert [[cell.strip() for cell in line] for line in cells] == [["-", "-", "-"]]

    def test_a_failure_is_a_few_words_in_the_table(self, found: dict[str, Any]) -> None:
        assert "fails: in-place ReLU after a saved tensor |" in page({"plain": found}, PREDICTED)

    def test_a_failure_is_a_few_words_in_the_lines(self, found: dict[str, Any]) -> None:
        (line,) = [line for line in csv_rows({"plain": found}) if line["method"] == SELECTIVE]
        assert line["error"] == "in-place ReLU after a saved tensor"

    def test_a_failure_is_told_in_full_in_the_results(self, found: dict[str, Any]) -> None:
        assert "RuntimeError: Tensor cached during selective activation checkpoint" in json.dumps(found)

    def test_an_unknown_failure_is_shortened_between_words(self) -> None:
        assert (
            reason("RuntimeError: " + "word " * 40) == "RuntimeError: word word word word word word word word word ..."
        )


def test_kernels_are_compiled_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(benchmark_measure, "prepare_kernels", lambda: done.append("compiled"))
    monkeypatch.setattr(benchmark_measure, "benchmark", lambda *given: done.append("timed"))
    benchmark_measure.main(["resnet18", "--small"], lambda line: None)
    assert done == ["compiled", "timed"]
