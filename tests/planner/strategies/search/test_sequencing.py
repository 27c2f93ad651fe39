"""The search for orders, and that a PyTorch module trains the same bits in any legal order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from ogc_plan.adapters.pytorch.binding.bound_module import bound
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.execution.executor import Executor
from ogc_plan.adapters.pytorch.step.annotate import annotate
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from ogc_plan.planner import pipeline
from ogc_plan.planner.infeasible import Asked
from ogc_plan.planner.model import from_annotation, load_model
from ogc_plan.planner.plan_file.reader import read_plan
from ogc_plan.planner.plan_file.writer import write_plan
from ogc_plan.planner.problem import Scope
from ogc_plan.planner.solver import Solver
from ogc_plan.planner.strategies import strategy_named
from ogc_plan.planner.strategies.orders.reordered_problem import ordered, restored
from ogc_plan.planner.strategies.orders.sequencing import Tokens, better_order
from torch import Tensor, nn

from models.plan_benchmark.sources import SOURCES
from tests.graphs.legal_orders import alive_by_step, random_order, random_orders, random_tokens
from tests.modules.torch_modules import RandomNet
from tests.modules.torch_training import measured, predicted, train


def test_a_branch_that_ends_low_runs_before_one_that_ends_high() -> None:
    # Steps 0 and 1 are a branch that peaks high and ends low, 2 and 3 one that peaks low and ends high; 4 joins them.
    tokens = Tokens([[] for _ in range(5)])
    for nbytes, steps in ((100, (0, 1)), (10, (1, 4)), (60, (2, 3)), (50, (3, 4))):
        tokens.add(nbytes, steps)
    assert better_order((2, 3, 0, 1, 4), ((), (0,), (), (2,), (1, 3)), tokens)[0] == (0, 1, 2, 3, 4)


def test_what_is_alive_under_an_order_is_counted_from_the_definition() -> None:
    for seed in range(50):
        rng = Random(seed)
        tokens = random_tokens(rng, 9)
        order = random_order(rng, range(9), ((),) * 9)
        assert tokens.alive(order) == alive_by_step(order, tokens), seed


def test_a_budget_that_no_plan_of_the_default_order_meets_has_one_in_another(tmp_path: Path) -> None:
    model = load_model(SOURCES["unet"].file(tmp_path), batch=SOURCES["unet"].batch, device="h200")
    floor = model.problem(Scope.ACTIVATIONS).floor_of_order.nbytes
    made = pipeline.plan(model, f"{floor - 1}B", scope="activations", effort="default")
    assert pipeline.check(model.training, model.costs, made).peak_activation_nbytes < floor


class SharedGradients(nn.Module):
    """Parameters whose gradients are also what flows on to earlier ops."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.offsets = nn.ParameterList([torch.randn(4, 6), torch.randn(4, 6)])

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(self.layers[0](x) + self.offsets[0])
        second = self.layers[1](torch.sin(first)) + self.offsets[1]
        return (torch.exp(second) * first).square().mean()


def reordered(module: nn.Module, args: tuple[Tensor, ...], seed: int, folder: Path) -> nn.Module:
    """The module bound to a plan in random legal orders, which went through a plan file."""
    step = TracedStep(capture(module, args, None))
    annotated = annotate(step, measure=False)
    model = from_annotation(annotated.annotation, name="module", device="cpu")
    problem = model.problem(Scope.ACTIVATIONS)
    orders = random_orders(Random(seed), problem.graph)
    solution = strategy_named("sqrt")(ordered(problem, orders), None)
    assert solution.decisions is not None
    solution = replace(solution, decisions=restored(solution.decisions, orders), bound_ns=0)
    made = pipeline.assembled(model, problem, Asked("min", None), solution, Solver("sqrt"))
    write_plan(made, folder / "plan.json")
    made = read_plan(folder / "plan.json")
    pipeline.verify(made)
    return bound(module, Executor(module, made, annotated))


@pytest.mark.parametrize("seed", range(3))
def test_a_module_trained_in_other_orders_computes_the_same_bits_in_the_bytes_predicted(
    seed: int, tmp_path: Path
) -> None:
    torch.manual_seed(seed)
    module: nn.Module = RandomNet(seed, 12) if seed else SharedGradients()
    args = (torch.randn(4, 6),)
    plain = train(module, args, steps=2)  # before the meter runs a step, which moves the buffers both share
    trained = reordered(module, args, seed, tmp_path)
    assert (train(trained, args, steps=2), measured(trained, args)) == (plain, predicted(trained))


@pytest.mark.parametrize("floor_of", ["floor_of_order", "forced_floor"])
def test_a_plan_that_states_a_floor_of_earlier_versions_is_still_verified(floor_of: str, tmp_path: Path) -> None:
    model = load_model(str(SOURCES["unet"].file(tmp_path)))
    made = pipeline.plan(model, "60%", effort="fast")
    floor = getattr(model.problem(Scope.ACTIVATIONS), floor_of).nbytes
    assert floor != made.peak.floor_activation_nbytes
    peaks = replace(made.peak, floor_activation_nbytes=floor)
    assert pipeline.check(model.training, model.costs, replace(made, peak=peaks)) == made.timeline


def test_the_floor_of_a_u_net_is_a_peak_that_a_plan_reaches(tmp_path: Path) -> None:
    model = load_model(str(SOURCES["unet"].file(tmp_path)))
    made = pipeline.plan(model, "min", scope="activations")
    assert made.peak.activation_nbytes == made.peak.floor_activation_nbytes
