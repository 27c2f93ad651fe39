"""A module that branches on values of its arguments trains by one plan for each branch, bit for bit as in eager."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.adapters.pytorch import InputMismatchError, plans_of, within_budget
from ogc_plan.adapters.pytorch.capture.joint_graph import capture
from ogc_plan.adapters.pytorch.errors import UnsupportedModuleError
from ogc_plan.adapters.pytorch.step.annotate import annotate
from ogc_plan.adapters.pytorch.step.step_graph import TracedStep
from torch import Tensor, nn

from tests.modules.asserting import Checked
from tests.modules.devices import cpu_only
from tests.modules.generators import seeded
from tests.modules.torch_training import backward_calls, bits, planned, train

WHOLE = torch.ones(8, 16, dtype=torch.bool)
PADDED = WHOLE.clone()
PADDED[-1, 10:] = False
X = torch.randn(8, 16, generator=seeded(0))


class Masked(nn.Module):
    """Takes another branch if nothing is masked, as attention does; the mask is edited in place first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
        self.register_buffer("limit", torch.tensor(16 * 8))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        counted = mask.long()
        counted[:, 0] = 1
        if counted.sum() < self.limit:
            x = x.masked_fill(~mask, 0.0)
        return self.last(nn.functional.dropout(self.first(x).relu(), 0.1)).square().mean()


class Asking(nn.Module):
    """Branches on a value that it computes."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self.layer, self.question = nn.Linear(16, 16), question

    def forward(self, x: Tensor) -> Tensor:
        asked = {"parameter": self.layer(x), "random": torch.rand(300), "written": torch.zeros(3)}[self.question]
        if self.question == "written":
            asked[0] = self.layer.weight.detach()[0, 0]
        return (self.layer(x) if asked.sum() > 0.5 else x * self.layer.weight.sum()).mean()


def masked() -> Masked:
    torch.manual_seed(0)
    return Masked()


def trained(module: nn.Module, masks: tuple[Tensor, ...]) -> list[bytes]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(module.parameters())
    for mask in masks:
        optimizer.zero_grad()
        module(X, mask).backward()
        optimizer.step()
    return [bits(tensor) for p in module.parameters() for tensor in (p, p.grad)]


@pytest.mark.values
@pytest.mark.parametrize("mask", [WHOLE, PADDED], ids=["whole", "padded"])
def test_each_branch_trains_to_the_bits_of_eager(mask: Tensor) -> None:
    module = masked()
    expected = trained(copy.deepcopy(module), (mask,) * 2)
    assert trained(planned(module, (X, mask), strategy="greedy"), (mask,) * 2) == expected


@pytest.mark.values
def test_arguments_that_lead_to_another_branch_are_refused() -> None:
    module = planned(masked(), (X, WHOLE), strategy="greedy")
    with pytest.raises(InputMismatchError, match=r"args\[1\].*was False .*is not for these"):
        module(X, PADDED)


@pytest.mark.values
def test_both_branches_are_planned_as_they_come() -> None:
    masks = (WHOLE, PADDED, WHOLE, PADDED)
    module = within_budget(masked(), (X, WHOLE), budget="100%", strategy="greedy", device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = trained(module, masks)
    assert (found, len(plans_of(module))) == (trained(masked(), masks), 2)


@pytest.mark.parametrize("question", ["parameter", "random", "written"])
def test_a_value_that_arguments_do_not_decide_is_refused(question: str) -> None:
    with pytest.raises(UnsupportedModuleError, match="cannot be traced"):
        planned(Asking(question), (X,))


class DroppedLayer(nn.Module):
    """A layer drop as speech models write it: a random number is drawn and compared even where the rate is 0."""

    def __init__(self, rate: float, noise: Callable[[Tensor], Tensor] = F.dropout) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.rate, self.noise = nn.Linear(16, 16), rate, noise

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.noise(x)
        if not (torch.rand([]) < self.rate):
            x = self.layer(x)
        return nn.functional.dropout(self.layer(x), 0.1).square().mean()


class TwoDropped(nn.Module):
    """Two outputs behind a layer drop; a loss may use one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.other = DroppedLayer(0.5), nn.Linear(16, 1)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x, mask), self.other(x).mean()


def test_a_layer_drop_of_zero_trains_as_eager_does() -> None:
    module = DroppedLayer(0.0)
    expected = trained(copy.deepcopy(module), (WHOLE,))
    assert trained(planned(module, (X, WHOLE)), (WHOLE,)) == expected


@cpu_only("where the CPU's generator draws dropout, too")
class TestRandomWays:
    @pytest.mark.filterwarnings("ignore:planned .* again")
    def test_a_layer_drop_trains_to_the_bits_of_eager_by_one_plan_for_each_way_that_none_counts(self) -> None:
        module = within_budget(DroppedLayer(0.5), budget="100%", strategy="greedy", device="cpu", max_plans=1)
        found = trained(module, (WHOLE,) * 8)
        assert (found, len(plans_of(module))) == (trained(DroppedLayer(0.5), (WHOLE,) * 8), 2)

    def test_a_bound_plan_refuses_the_other_way(self) -> None:
        module = planned(DroppedLayer(0.5), (X, WHOLE))
        with pytest.raises(InputMismatchError, match="of random numbers"):
            trained(module, (WHOLE,) * 8)

    def test_a_loss_without_one_output_goes_the_way_of_its_forward(self) -> None:
        def drops(seed: int) -> bool:
            torch.manual_seed(seed)
            F.dropout(X)
            return bool(torch.rand([]) < 0.5)

        way, other = (next(seed for seed in range(99) if drops(seed) is dropped) for dropped in (True, False))
        found = []
        for bind in (partial(within_budget, budget="100%", strategy="greedy", device="cpu"), lambda module: module):
            module = bind(TwoDropped())
            torch.manual_seed(way)
            loss, _ = module(X, WHOLE)
            torch.manual_seed(other)
            loss.backward()
            found.append([bits(p.grad) for p in module.net.parameters()])
        assert found[0] == found[1]

    def test_a_random_number_that_is_taken_out_of_its_tensor_is_refused(self) -> None:
        with pytest.raises(UnsupportedModuleError, match="cannot be traced"):
            planned(DroppedLayer(0.0, lambda x: x * torch.rand([]).item()), (X, WHOLE))

    def test_after_draws_whose_number_depends_on_values_it_is_refused(self) -> None:
        with pytest.raises(UnsupportedModuleError, match="a branch\\) that does not follow from its arguments"):
            planned(DroppedLayer(0.5, lambda x: torch.poisson(x.abs())), (X, WHOLE))


class Selecting(nn.Module):
    """Goes on with what ``select`` takes from a layer's result by a mask."""

    def __init__(self, select: Callable[[Selecting, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.token = nn.Linear(16, 16), nn.Linear(16, 4), nn.Parameter(torch.ones(()))
        self.select = select

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        taken = self.select(self, self.first(x).tanh(), mask)
        return nn.functional.dropout(taken, 0.1).square().mean() + (self.last(self.first(x)) * self.token).sum()


def written(net: Selecting, x: Tensor, mask: Tensor) -> Tensor:
    x = x.clone()
    x[mask] = net.token
    return x


def with_ctc_loss(net: Selecting, x: Tensor, mask: Tensor) -> Tensor:
    scores = x.log_softmax(-1)[:, None].expand(8, 2, 16)
    lengths = torch.stack([mask.sum() // 32, mask[-1].sum() // 8])
    return nn.functional.ctc_loss(scores, torch.arange(1, 1 + int(lengths.sum())), torch.tensor([8, 8]), lengths)


SELECTED: dict[str, Callable[[Selecting, Tensor, Tensor], Tensor]] = {
    "an index": lambda net, x, mask: x[mask],
    "an index of rows": lambda net, x, mask: net.last(x[mask.all(1)]),
    "a selection": lambda net, x, mask: x.masked_select(mask),
    "positions": lambda net, x, mask: x[tuple(mask.nonzero().unbind(1))],
    "distinct values": lambda net, x, mask: x[mask.sum(1).unique() % 8],
    "a list": lambda net, x, mask: torch.cat([row[:count] for row, count in zip(x, mask.sum(1).tolist(), strict=True)]),
    "a write": written,
    "draws from equal values": lambda net, x, mask: (
        x if (~mask)[:, :3].reshape(-1)[torch.randperm(24)].any() else net.last(x)
    ),
    "the CTC loss": with_ctc_loss,
}


@pytest.mark.values
@pytest.mark.parametrize("select", SELECTED)
def test_a_size_that_a_mask_decides_is_planned_as_it_comes(select: str) -> None:
    masks, build = (WHOLE, PADDED, WHOLE), partial(Selecting, SELECTED[select])
    torch.manual_seed(0)
    module = build()
    expected = trained(copy.deepcopy(module), masks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert trained(within_budget(module, budget="100%", strategy="greedy", device="cpu"), masks) == expected


@pytest.mark.parametrize("select", ["an index", "a selection", "positions", "distinct values", "a write"])
def test_the_workspace_of_a_selection_is_measured_with_a_mask_of_its_size(select: str) -> None:
    step = TracedStep(capture(Selecting(SELECTED[select]), (X, PADDED)))
    assert not annotate(step).meter.unmeasured


@pytest.mark.values
class Counting(nn.Linear):
    """Counts in a buffer which of its outputs is the largest."""

    def __init__(self, count: Callable[[Tensor], Tensor]) -> None:
        super().__init__(6, 3)
        self.count = count
        self.register_buffer("counts", torch.zeros(3, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.counts += self.count(y.argmax(1))
        return y.sum()


def test_a_count_whose_size_values_decide_is_refused_with_one_that_has_a_size() -> None:
    with pytest.raises(UnsupportedModuleError, match=r"bincount.* depends on values; count by .*one_hot\("):
        planned(Counting(lambda found: found.bincount(minlength=3)), (torch.ones(4, 6),))


@pytest.mark.values
def test_a_count_is_planned_as_the_remedy_says() -> None:
    net, x = Counting(lambda found: nn.functional.one_hot(found, 3).sum(0)), (torch.randn(4, 6),)
    assert train(planned(net, x), x, steps=2) == train(net, x, steps=2)


@pytest.mark.values
def test_a_mask_that_selects_another_number_is_refused() -> None:
    module = planned(Selecting(SELECTED["an index"]), (X, WHOLE), strategy="greedy")
    with pytest.raises(InputMismatchError, match=r"count_true of args\[1\]\) was 128"):
        module(X, PADDED)


class Classes(nn.Module):
    """Rows of a table by one-hot classes; positive sums are asserted: [3] -> []."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.rand(4, 6))

    def forward(self, classes: Tensor) -> Tensor:
        rows = F.one_hot(classes, 4).float() @ self.table
        total = rows.sum()
        torch._assert_async(total > 0, "a sum is not positive")
        return total.sqrt()


class Raising(nn.Linear):
    """Raises for missing numbers, in words: [n, 16] -> []."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if y.isnan().any() or not y.isfinite().all():
            raise ValueError(f"of {y.numel()} numbers some are missing: {y}")
        return y.square().sum()


class Sampling(nn.Linear):
    """A variational layer, whose distributions check their arguments: [n, 16] -> []."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        # `torch.compile` in another test leaves these checks off for all.
        drawn = torch.distributions.Normal(y, F.softplus(y) + 0.1, validate_args=True)
        plain = torch.distributions.Normal(torch.zeros_like(y), torch.ones_like(y))
        return drawn.rsample().square().mean() + torch.distributions.kl_divergence(drawn, plain).mean()


class Mended(nn.Linear):
    """Replaces missing numbers, and raises if there are more: [n, 16] -> []."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if y.isnan().any():
            y = y.nan_to_num()
            raise ValueError(str(y.shape))
        return y.square().sum()


class Uncertain(nn.Linear):
    """Takes a loss that checks the variances that it is given: [n, 16] -> []."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return F.gaussian_nll_loss(y, torch.zeros_like(y), torch.where(y.isfinite(), y.exp(), -1.0))


CHECKS: dict[str, type[nn.Linear]] = {
    "an if that raises": Raising,
    "of a distribution": Sampling,
    "of a loss": Uncertain,
}
ASSERTED = cpu_only("an assertion that fails on a card ends the process")


class TestAssertions:
    @ASSERTED
    def test_a_class_that_eager_training_refuses_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="one_hot: Class values must be"):
            planned(Classes(), (torch.tensor([0, 1, 3]),))(torch.tensor([0, 1, 7]))

    @ASSERTED
    def test_what_a_module_asserts_is_checked(self) -> None:
        trained = planned(Classes(), (torch.tensor([0, 1, 3]),))
        with torch.no_grad():
            trained.table.neg_()
        with pytest.raises(RuntimeError, match="a sum is not positive"):
            trained(torch.tensor([0, 1, 3]))

    @pytest.mark.values
    def test_an_assert_statement_holds_for_the_bits_of_eager(self) -> None:
        module = Checked(16, 16)
        assert train(planned(module, (X,)), (X,)) == train(module, (X,))

    @ASSERTED
    @pytest.mark.parametrize("value", [float("nan"), 1e3], ids=["the first", "the second"])
    def test_an_assert_statement_is_checked(self, value: float) -> None:
        trained = planned(Checked(16, 16), (X,))
        with pytest.raises(RuntimeError, match=r"the check at asserting\.py:1[34] fails"):
            trained(X * value)

    @pytest.mark.parametrize("name", CHECKS)
    @pytest.mark.values
    def test_a_check_that_raises_holds_for_the_bits_of_eager(self, name: str) -> None:
        module = CHECKS[name](16, 16)
        assert train(planned(module, (X,)), (X,)) == train(module, (X,))

    @ASSERTED
    @pytest.mark.parametrize("name", CHECKS)
    def test_a_check_that_raises_is_made(self, name: str) -> None:
        trained = planned(CHECKS[name](16, 16), (X,))
        with pytest.raises(RuntimeError, match=r"the check at \w+\.py:\d+ fails"):
            trained(X * float("nan"))

    def test_a_branch_that_does_more_than_raise_is_refused(self) -> None:
        with pytest.raises(UnsupportedModuleError, match="needs a number"):
            planned(Mended(16, 16), (X,))

    def test_an_assertion_is_not_recomputed(self) -> None:
        trained = planned(Classes(), (torch.tensor([0, 1, 3]),), "1GB", "segments:2")
        assert backward_calls(trained, (torch.tensor([0, 1, 3]),))["_assert_async"] == 0
