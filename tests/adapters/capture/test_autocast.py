"""Under autocast a planned module leaves the bits of plain training under the same autocast, in the bytes predicted."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch import InputMismatchError, bind, export, plan_of, plans_of, within_budget
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.errors import UnsupportedModuleError
from ogc_plan.adapters.pytorch.guards.autocast_state import AutocastState
from ogc_plan.planner.errors import PlanMismatchError
from torch import Tensor, fx, nn

from tests.modules.devices import DEVICE_TYPE, random_state
from tests.modules.torch_modules import Attention, WithLoss, convolutional
from tests.modules.torch_training import CountedCalls, backward_calls, bits, measured, planned, predicted


def cast(dtype: torch.dtype = torch.bfloat16, **options: Any) -> torch.autocast:
    return torch.autocast(DEVICE_TYPE, dtype, **options)


class Shared(nn.Module):
    """One linear layer applied three times: eager training casts its weight once, and sums its gradients in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(16, 16), nn.LayerNorm(16), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + self.dropout(F.gelu(self.linear(self.norm(x))))
        return x


class Language(nn.Module):
    """Attention between an embedding and a head that share their weight; the head's is cast, the embedding's is not."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention, self.head = nn.Embedding(11, 16), Attention(), nn.Linear(16, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        scores = self.head(self.attention(self.embedding(ids)))
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Excepted(nn.Module):
    """A region of full precision between two linear layers, and a product that is cast again inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        with torch.autocast(DEVICE_TYPE, enabled=False):
            y = self.other(y.float()).sigmoid()
            with torch.autocast(DEVICE_TYPE):
                y = self.one(y)
        return self.other(y)


class Own(nn.Module):
    """Enters autocast in its own forward, twice: eager training clears its casts between the two regions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(16, 16), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            with torch.autocast(DEVICE_TYPE):
                x = self.dropout(torch.tanh(self.linear(torch.tanh(self.linear(x)))))
        return x.float()


class Doubled(torch.autograd.Function):
    """A product whose backward enters autocast as its forward had it."""

    @staticmethod
    @torch.amp.custom_fwd(device_type=DEVICE_TYPE)
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type=DEVICE_TYPE)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.t() * 2, x.t() @ gradient * 2


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(16, 16), nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Doubled.apply(self.linear(x), self.weight)
        return result


Case = tuple[nn.Module, Tensor]


def rows() -> Tensor:
    return torch.randn(8, 16)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "shared layer": (Shared, rows),
    "tied embedding": (Language, lambda: torch.randint(0, 11, (3, 9))),
    "convolutional": (convolutional, lambda: torch.randn(4, 3, 8, 8)),
    "excepted region": (Excepted, rows),
    "own region": (Own, rows),
    "custom function": (Custom, rows),
}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    torch.manual_seed(0)
    build, batch = CASES[request.param]
    return build(), batch()


@pytest.fixture
def shared() -> Case:
    torch.manual_seed(0)
    return Shared(), rows()


def under(
    module: nn.Module,
    x: Tensor,
    dtype: torch.dtype = torch.bfloat16,
    budget: str = "min",
    strategy: str = "optimal",
    *,
    cached: bool = True,
) -> nn.Module:
    """The module planned as it trains under autocast."""
    with cast(dtype, cache_enabled=cached):
        return planned(module, (x,), budget, strategy)


def scalar(output: Tensor) -> Tensor:
    return output if output.dim() == 0 else output.square().mean()


def fitted(
    module: nn.Module,
    x: Tensor,
    dtype: torch.dtype = torch.bfloat16,
    *,
    steps: int = 2,
    scaler: torch.amp.GradScaler | None = None,
    parts: int = 1,
    cached: bool = True,
    loss_outside: bool = False,
) -> tuple[list[bytes], list[bytes], list[float], bytes]:
    """Losses, parameters and buffers, loss scales and the random state of a usual loop, with clipped gradients."""
    module = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    scaler = scaler or torch.amp.GradScaler(DEVICE_TYPE, enabled=False)
    torch.manual_seed(3)
    losses, scales = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            with cast(dtype, cache_enabled=cached):
                output = module(x * (1 + part) if x.is_floating_point() else x)
                loss = scalar(output) if not loss_outside else torch.zeros(())
            if loss_outside:
                loss = scalar(output)
            scaler.scale(loss / parts).backward()
            losses.append(bits(loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return losses, [bits(value) for value in module.state_dict().values()], scales, bits(random_state())


class TestBits:
    @pytest.mark.parametrize(("dtype", "budget"), [(torch.bfloat16, "min"), (torch.float16, "100%")], ids=str)
    def test_two_steps_are_bitwise_equal(self, case: Case, dtype: torch.dtype, budget: str) -> None:
        module, x = case
        assert fitted(under(module, x, dtype, budget), x, dtype) == fitted(module, x, dtype)

    def test_recomputed_casts_are_bitwise_equal(self, shared: Case) -> None:
        module, x = shared
        trained = under(module, x, torch.bfloat16, "1GB", "segments:2")
        with cast():
            assert backward_calls(trained, (x,))["_to_copy"] > 0
        assert fitted(trained, x) == fitted(module, x)

    @pytest.mark.values
    def test_five_steps_with_a_scaler_that_skips_one_are_bitwise_equal(self, shared: Case) -> None:
        module, x = shared
        found = [
            fitted(
                made,
                x,
                torch.float16,
                steps=5,
                scaler=torch.amp.GradScaler(DEVICE_TYPE, 2.0**40, backoff_factor=2.0**-30),
            )
            for made in (under(module, x, torch.float16), module)
        ]
        assert found[0] == found[1]
        assert found[0][2] == [2.0**10] * 5  # the first step overflowed and lowered the scale

    @pytest.mark.parametrize("options", [{"parts": 3}, {"loss_outside": True}, {"cached": False}], ids=str)
    def test_other_training_loops_are_bitwise_equal(self, shared: Case, options: dict[str, Any]) -> None:
        module, x = shared
        trained = under(module, x, cached=options.get("cached", True))
        assert fitted(trained, x, **options) == fitted(module, x, **options)

    def test_a_backward_inside_autocast_is_the_one_outside(self, shared: Case) -> None:
        module, x = shared
        trained, found = under(module, x), []
        for inside in (True, False):
            trained.zero_grad()
            torch.manual_seed(3)
            with cast():
                loss = scalar(trained(x))
            with cast(enabled=inside):
                loss.backward()
            found.append([bits(p.grad) for p in trained.parameters() if p.grad is not None])
        assert found[0] == found[1]

    @pytest.mark.values
    def test_two_forwards_in_one_region_sum_their_gradients_in_full_precision(self) -> None:
        """Eager keeps one cast for both and sums in 16 bits: equal up to the rounding of that sum."""
        torch.manual_seed(0)
        module, inputs = nn.Linear(16, 16), [rows(), rows()]
        trained = under(copy.deepcopy(module), inputs[0])
        for made in (trained, module):
            with cast():
                loss = sum(scalar(made(x)) for x in inputs)
            loss.backward()
        ours, plain = trained.weight.grad, module.weight.grad
        assert bool(((ours - plain).abs() <= 2.0**-8 * plain.abs()).all())


class TestBytes:
    @pytest.mark.parametrize(
        ("name", "budget"),
        [("shared layer", "100%"), ("shared layer", "75%"), ("shared layer", "min"), ("tied embedding", "min"),
         ("excepted region", "min"), ("convolutional", "min")],
    )  # fmt: skip
    def test_the_measured_peaks_are_the_predicted_ones(self, name: str, budget: str) -> None:
        torch.manual_seed(0)
        build, batch = CASES[name]
        module, x = build(), batch()
        module = module if name == "tied embedding" else WithLoss(module)
        with cast():
            trained = planned(module, (x,), budget)
            assert measured(trained, (x,)) == predicted(trained)


class TestState:
    def test_planning_leaves_the_state_as_it_was(self, shared: Case) -> None:
        with cast(torch.float16, cache_enabled=False):
            before = AutocastState.now()
            planned(shared[0], (shared[1],))
            assert AutocastState.now() == before

    @pytest.mark.parametrize("enters", [True, False])
    @pytest.mark.parametrize("enabled", [True, False])
    @pytest.mark.parametrize("cached", [True, False])
    def test_what_a_step_sees_of_it_is_the_same_read_quickly(self, enters: bool, enabled: bool, cached: bool) -> None:
        with cast(enabled=enabled, cache_enabled=cached):
            assert AutocastState.now_seen_by(enters) == AutocastState.now().seen_by(enters)

    def test_a_module_that_cannot_be_traced_leaves_the_state_as_it_was(self) -> None:
        class Branch(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return x * 2 if self.weight.sum() > 0 else x

        with cast(cache_enabled=False):
            before = AutocastState.now()
            with pytest.raises(UnsupportedModuleError, match="cannot be traced"):
                capture(Branch(4, 4), (rows().requires_grad_(),))
            assert AutocastState.now() == before

    def test_a_planned_step_leaves_no_cast_behind(self, shared: Case) -> None:
        module, x = shared
        trained = under(module, x)
        with cast():
            scalar(trained(x)).backward()
            with CountedCalls() as counted:
                module.linear(x)
        assert counted.count["_to_copy"] == 3  # of weight, bias and argument

    def test_tied_weights_keep_their_names_after_planning(self) -> None:
        module = Language()
        under(module, torch.randint(0, 11, (3, 9)))
        assert module.head.weight is module.embedding.weight


class TestRefusals:
    @pytest.mark.parametrize(
        ("planning", "running", "message"),
        [
            (cast(enabled=False), cast(), f"autocast on {DEVICE_TYPE} to bfloat16; .* with no autocast"),
            (
                cast(torch.float16),
                cast(enabled=False),
                f"no autocast; the plan was bound with autocast on {DEVICE_TYPE} to float16",
            ),
            (cast(torch.float16), cast(), f"{DEVICE_TYPE} to bfloat16; .* {DEVICE_TYPE} to float16"),
            (cast(), cast(cache_enabled=False), "without its cache"),
        ],
        ids=["planned outside", "planned inside", "another dtype", "another cache"],
    )
    def test_a_forward_under_another_autocast_than_planned_is_refused(
        self, planning: torch.autocast, running: torch.autocast, message: str, shared: Case
    ) -> None:
        module, x = shared
        with planning:
            trained = planned(module, (x,))
        with running, pytest.raises(InputMismatchError, match=message):
            trained(x)

    def test_a_disabled_region_is_the_same_state(self, shared: Case) -> None:
        trained = planned(shared[0], (shared[1],))
        with cast(enabled=False):
            trained(shared[1])

    def test_a_disabled_region_around_a_module_that_enters_autocast_is_refused(self) -> None:
        trained = planned(Own(), (rows(),))
        with cast(enabled=False), pytest.raises(InputMismatchError, match="a disabled autocast context is open"):
            trained(rows())

    def test_a_plan_made_outside_is_not_bound_inside(self, shared: Case) -> None:
        made = plan_of(planned(shared[0], (shared[1],)))
        with cast(), pytest.raises(PlanMismatchError, match="was made for graph"):
            bind(shared[0], made, (shared[1],))

    def test_a_graph_module_under_autocast_is_refused(self) -> None:
        with cast(), pytest.raises(UnsupportedModuleError, match="is a traced graph"):
            capture(fx.symbolic_trace(nn.Sequential(nn.Linear(16, 16))), (rows(),))

    def test_an_export_inside_autocast_is_refused(self, tmp_path: Any) -> None:
        with cast(), pytest.raises(UnsupportedModuleError, match=f"autocast on {DEVICE_TYPE} to bfloat16"):
            export(nn.Linear(16, 16), (rows(),), tmp_path / "m.onnx")


class TestPlannedAgain:
    def test_another_state_is_planned_once(self, shared: Case) -> None:
        module, x = shared
        trained = within_budget(module, (x,), budget="80%", device="cpu", strategy="greedy")
        with cast():
            with pytest.warns(UserWarning, match=f"planned .* again .*, as autocast on {DEVICE_TYPE} to bfloat16"):
                trained(x)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                trained(x)
        assert len(plans_of(trained)) == 2
