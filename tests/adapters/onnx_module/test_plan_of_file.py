"""One plan of a bare file, trained by PyTorch."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch
from ogc_plan.adapters.pytorch import OnnxModule, bind, from_onnx, plan_of
from ogc_plan.planner import load_model, plan
from ogc_plan.planner.errors import PlanMismatchError
from ogc_plan.planner.plan_file.record import Plan
from torch import Tensor, nn

from models.meters.step_meters import by_allocator, clear_gradients
from tests.adapters.onnx_module.test_training import bits, convolutions, saved
from tests.files.onnx_models import model, node

pytestmark = pytest.mark.values


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convolutions(tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def of_file(path: Path) -> Plan:
    return plan(load_model(path, batch=4), "75%")


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Products with an activation each: kernels that take no workspace."""
    nodes = []
    for at in range(6):
        nodes += [node("MatMul", f"h{at} w{at}", f"p{at}"), node("Gelu", f"p{at}", f"h{at + 1}")]
    weights = {f"w{at}": (16, 16) for at in range(6)}
    return saved(model(nodes, {"h0": (64, 16)}, "h6", weights=weights), tmp_path_factory.mktemp("products"))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(4, 8, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def plain(path: Path) -> OnnxModule:
    return from_onnx(path, batch=4)


@pytest.fixture
def trained(plain: OnnxModule, of_file: Plan, x: Tensor) -> nn.Module:
    return bind(copy.deepcopy(plain), of_file, (x,))


def test_it_has_the_bits_of_a_step_without_a_plan(plain: OnnxModule, trained: nn.Module, x: Tensor) -> None:
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(bits(trained, x), bits(plain, x), strict=True))


def test_it_recomputes(trained: nn.Module) -> None:
    assert plan_of(trained).time.recompute_ns > 0


def test_its_peak_is_that_of_the_plan_of_the_file(products: Path) -> None:
    made = plan(load_model(products), "60%")
    trained = bind(from_onnx(products), made, (torch.zeros(64, 16),))
    assert plan_of(trained).peak.activation_nbytes == made.peak.activation_nbytes


def test_its_peak_is_measured_as_predicted(products: Path) -> None:
    given = torch.zeros(64, 16)
    trained = bind(from_onnx(products), plan(load_model(products), "60%"), (given,))
    clear_gradients(trained, (given,))
    held = by_allocator(lambda: trained(given).backward(torch.ones(64, 16)), trained, (given,)).activation_nbytes
    assert held == plan_of(trained).peak.activation_nbytes


def test_it_says_whose_decisions_it_has(trained: nn.Module) -> None:
    assert plan_of(trained).certificate.notes[0].startswith("decisions of the plan of the file model.onnx, graph ")


def test_dropout_draws_the_same_mask_again(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Dropout", "h half on", "d"), node("Relu", "d", "r"),
             node("MatMul", "r v", "y")]  # fmt: skip
    proto = model(nodes, {"x": (64, 32)}, "y", weights={"w": (32, 64), "v": (64, 4)},
                  constants={"half": 0.5, "on": True})  # fmt: skip
    path = saved(proto, tmp_path)
    plain, given = from_onnx(path), torch.randn(64, 32)
    bound = bind(copy.deepcopy(plain), plan(load_model(path), "min"), (given,))
    made = []
    for module in (bound, plain):
        torch.manual_seed(0)
        made.append(bits(module, given))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*made, strict=True))


def test_a_plan_of_another_batch_is_refused(path: Path, of_file: Plan, x: Tensor) -> None:
    with pytest.raises(PlanMismatchError, match="with the batch, dims and inputs of the plan"):
        bind(from_onnx(path, batch=2), of_file, (x[:2],))


class TestWorkspaceThatAFileDoesNotShow:
    """PyTorch's convolutions take more than the plan's budget leaves."""

    @pytest.fixture(scope="class")
    def tighter(self, path: Path, x: Tensor) -> Plan:
        """The plan of the largest budget at which this machine's convolutions take more than is left."""
        read = load_model(path, batch=4)
        made = (plan_of(bind(from_onnx(path, batch=4), plan(read, f"{share}%"), (x,))) for share in range(85, 40, -5))
        return next(bound for bound in made if len(bound.certificate.notes) > 1)

    def test_more_is_recomputed_until_the_budget_holds(self, tighter: Plan) -> None:
        assert tighter.peak.activation_nbytes <= tighter.budget.nbytes

    def test_the_plan_says_how_much_more(self, tighter: Plan) -> None:
        told = tighter.certificate.notes[1]
        assert re.fullmatch(r"\d+ more recomputations?, for the workspace of PyTorch's kernels", told)

    def test_a_budget_that_cannot_hold_is_refused(self, path: Path, plain: OnnxModule, x: Tensor) -> None:
        read = load_model(path, batch=4)
        smallest = plan(read, f"{plan(read, 'min', scope='total').peak.total_nbytes}B")
        with pytest.raises(PlanMismatchError, match=r"above its budget .*; .* within_budget\(module, args, budget="):
            bind(plain, smallest, (x,))


def test_another_module_is_told_to_come_from_the_file(of_file: Plan, x: Tensor) -> None:
    with pytest.raises(PlanMismatchError, match=r"bind it to from_onnx\(FILE\)"):
        bind(nn.Conv2d(8, 8, 3), of_file, (x,))


def test_a_bound_module_goes_through_a_pickle(trained: nn.Module, x: Tensor) -> None:
    pairs = zip(bits(pickle.loads(pickle.dumps(trained)), x), bits(trained, x), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


class TestFrozen:
    @pytest.fixture(scope="class")
    def without_head(self, path: Path) -> Plan:
        return plan(load_model(path, batch=4, frozen=["head"]), "80%")

    def test_a_parameter_that_the_plan_freezes_may_not_train(
        self, plain: OnnxModule, without_head: Plan, x: Tensor
    ) -> None:
        with pytest.raises(PlanMismatchError, match=r'no gradient to "head".*get_parameter\("head"\)'):
            bind(plain, without_head, (x,))

    def test_frozen_in_both_it_gets_no_gradient(self, plain: OnnxModule, without_head: Plan, x: Tensor) -> None:
        plain.get_parameter("head").requires_grad_(False)
        bind(plain, without_head, (x,))(x).sum().backward()
        assert plain.get_parameter("head").grad is None
