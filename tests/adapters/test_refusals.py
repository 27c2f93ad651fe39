"""What no plan can do exactly is refused in one line that says what, where, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError, within_budget
from ogc_plan.planner.errors import AdapterError
from torch import Tensor, nn

from tests.modules.generators import seeded
from tests.modules.torch_training import planned, train

X = (torch.randn(4, 6, generator=seeded(0)),)
IDS = (torch.arange(8).view(4, 2) % 5,)


class Drawing(nn.Module):
    """A linear layer with noise from a generator of its own."""

    def __init__(self, noise: Callable[[torch.Generator], Tensor]) -> None:
        super().__init__()
        self.linear, self.noise, self.source = nn.Linear(6, 6), noise, seeded(0)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) + self.noise(self.source)).square().sum()


DRAWS: dict[str, Callable[[torch.Generator], Tensor]] = {
    "rand": lambda source: torch.rand(4, 6, generator=source),
    "a permutation": lambda source: torch.randperm(6, generator=source),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_a_draw_from_an_own_generator_is_refused(draw: str) -> None:
    with pytest.raises(UnsupportedModuleError, match=r"Drawing draws from a torch\.Generator \('source'\) in aten\."):
        planned(Drawing(DRAWS[draw]), X)


def test_a_draw_from_the_default_generator_is_planned_as_the_remedy_says() -> None:
    module = Drawing(lambda _: torch.rand(4, 6))
    assert train(planned(module, X), X, steps=2) == train(module, X, steps=2)


def seeding(source: torch.Generator) -> Tensor:
    source.manual_seed(3)
    return torch.zeros(6)


def test_seeding_an_own_generator_is_refused_and_undone() -> None:
    module = Drawing(seeding)
    before = module.source.get_state()
    with pytest.raises(UnsupportedModuleError, match="seeds the generator 'source'"):
        planned(module, X)
    assert torch.equal(module.source.get_state(), before)


class Taking(nn.Module):
    """A linear layer with a required factor and an optional shift."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, factor: Any, *, shift: Any = 0) -> Tensor:
        return (self.linear(torch.as_tensor(x)) * torch.as_tensor(factor) + shift).sum()


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "one too few": (X, {}, "Taking.forward needs 'factor', missing"),
    "an unknown name": (X * 2, {"scale": 2}, "does not take these arguments: got an unexpected keyword argument"),
    "one twice": (X * 2, {"x": 2}, "does not take these arguments: multiple values for argument 'x'"),
    "an array": ((X[0], numpy.ones(6)), {}, "argument args[1] is a numpy.ndarray, which a plan cannot take"),
    "a named number of numpy's": (X, {"factor": numpy.float32(2)}, "argument kwargs['factor'] is a numpy.float32"),
}


@pytest.mark.parametrize("call", CALLS)
def test_arguments_that_do_not_fit_are_named(call: str) -> None:
    args, kwargs, message = CALLS[call]
    with pytest.raises(AdapterError, match=re.escape(message)):
        planned(Taking(), args, kwargs=kwargs)


def test_an_array_is_planned_as_the_remedy_says() -> None:
    module, args = Taking(), (torch.from_numpy(numpy.ones((4, 6), "f")), torch.from_numpy(numpy.ones(6, "f")))
    assert train(planned(module, args), args) == train(module, args)


def test_a_lazy_module_is_refused() -> None:
    with pytest.raises(AdapterError, match="has no shape yet: the module that holds it is lazy"):
        planned(nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(1)), X)


def test_a_lazy_module_is_planned_after_one_forward() -> None:
    module = nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(1))
    module(*X)
    assert train(planned(module, X), X, loss=torch.sum) == train(module, X, loss=torch.sum)


class Slotted(nn.Module):
    """A linear layer whose result is scaled by what is kept in a slot."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 6), 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


def test_a_module_with_slots_is_refused() -> None:
    with pytest.raises(UnsupportedModuleError, match=r"keeps 'scale' in a slot.*leave __slots__ out of Slotted"):
        planned(nn.Sequential(Slotted()), X)


class Embedded(nn.Module):
    """An embedding and a linear layer."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.linear = table, nn.Linear(6, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.table(ids)).square().sum()


def test_a_sparse_gradient_is_refused() -> None:
    with pytest.raises(
        UnsupportedModuleError, match=r"submodule 'table' of Embedded makes a sparse gradient .* sparse=False"
    ):
        planned(Embedded(nn.EmbeddingBag(5, 6, mode="sum", sparse=True)), IDS)


def test_a_table_with_dense_gradients_is_planned_as_the_remedy_says() -> None:
    module = Embedded(nn.EmbeddingBag(5, 6, mode="sum"))
    assert train(planned(module, IDS), IDS, steps=2) == train(module, IDS, steps=2)


def test_a_sparse_table_that_takes_no_gradient_is_planned() -> None:
    module = Embedded(nn.Embedding(5, 6, sparse=True))
    module.table.requires_grad_(False)
    assert train(planned(module, IDS), IDS, steps=2) == train(module, IDS, steps=2)


def test_an_embedding_that_renormalises_its_weight_is_refused() -> None:
    with pytest.raises(
        UnsupportedModuleError, match=r"changes parameter 'table\.weight', which takes a gradient.* max_norm=None"
    ):
        planned(Embedded(nn.Embedding(5, 6, max_norm=1.0)), IDS)


class Averaging(nn.Linear):
    """Writes what takes a gradient into a buffer."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.mean.copy_(y.mean(0))
        return y.sum()


def test_a_buffer_that_takes_part_in_the_gradient_is_refused() -> None:
    with pytest.raises(UnsupportedModuleError, match=r"changes buffer 'mean' in place .* detach"):
        planned(Averaging(), X)


def normed(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, **options), nn.Linear(6, 1))


@pytest.mark.values  # the count of batches decides
def test_a_cumulative_average_is_refused() -> None:
    with pytest.raises(UnsupportedModuleError, match="submodule '1' is a BatchNorm1d with momentum=None"):
        planned(normed(momentum=None), X)


REMEDIES = {"a momentum": {"momentum": 0.1}, "no average": {"momentum": None, "track_running_stats": False}}


@pytest.mark.parametrize("remedy", REMEDIES)
def test_a_norm_is_planned_as_the_remedy_says(remedy: str) -> None:
    module, loss = normed(**REMEDIES[remedy]), Tensor.sum
    assert train(planned(module, X), X, steps=3, loss=loss) == train(module, X, steps=3, loss=loss)


def test_a_cumulative_average_that_stands_still_is_planned() -> None:
    module, loss = normed(momentum=None), Tensor.sum
    module.get_submodule("1").eval()
    assert train(planned(module, X), X, steps=3, loss=loss) == train(module, X, steps=3, loss=loss)


class Selecting(nn.Linear):
    """Selects rows by a mask."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y[y[:, 0] > 0].sum()


class Logging(nn.Linear):
    """Returns its loss, and a number for a log."""

    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        loss = super().forward(x).square().sum()
        return loss, loss.item()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Selecting, "the shape of what aten.nonzero.default returns depends on values"),
        (Logging, r"it needs a number \(\.item"),
    ],
)
def test_a_call_that_cannot_be_traced_is_named_with_its_line(kind: type[nn.Linear], message: str) -> None:
    with pytest.raises(UnsupportedModuleError, match=rf"cannot be traced at test_refusals\.py:\d+: {message}"):
        planned(kind(6, 6), (torch.randn(4, 6),))


class Routed(nn.Module):
    """Sends the rows that a router picks through an expert: the loop of a mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(6, 1), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        rows = (self.router(x)[:, 0] > 0).nonzero()[:, 0]
        return x.index_add(0, rows, self.expert(x[rows]))


@pytest.mark.values
def test_what_can_be_planned_around_a_refused_module_trains_as_the_advice_says() -> None:
    blocks = [nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.Tanh()), Routed()) for _ in range(2)]
    model: Any = nn.Sequential(*blocks, nn.Linear(6, 6))
    expected = train(model, X, steps=2, loss=lambda y: y.square().sum())
    with pytest.raises(UnsupportedModuleError, match=r"submodule '0\.1' of Sequential cannot be traced") as refused:
        planned(model, X)
    advice = refused.value.remedy.split("budget of its own: ")[1].replace("...", "'100%'")
    exec(advice, {"model": model, "within_budget": within_budget})
    found = train(model, X, steps=2, loss=lambda y: y.square().sum())
    assert (advice.count("within_budget"), found) == (2, expected)


@pytest.mark.parametrize("path", ["", "0"])
def test_a_module_that_is_compiled_is_refused(path: str) -> None:
    module = nn.Sequential(nn.Linear(6, 6))
    module.get_submodule(path).compile(backend="eager")
    with pytest.raises(UnsupportedModuleError, match=r"is compiled \(torch\.compile\)"):
        planned(module, (torch.randn(4, 6),))


def test_a_submodule_that_is_compiled_is_named() -> None:
    module = nn.Sequential(nn.Linear(6, 6))
    module[0] = torch.compile(module[0], backend="eager")
    with pytest.raises(UnsupportedModuleError, match=r"submodule '0' is compiled \(torch\.compile\)"):
        planned(module, (torch.randn(4, 6),))


def test_a_compiled_module_is_refused_when_it_is_bound() -> None:
    with pytest.raises(UnsupportedModuleError, match=r"the module is compiled .* compile=True"):
        within_budget(torch.compile(nn.Linear(6, 6), backend="eager"), budget="60%")


class Chosen(nn.Module):
    """One of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, self.one, self.other, (x,)).square().sum()


class ChosenByIf(Chosen):
    def forward(self, x: Tensor) -> Tensor:
        return (self.one if x.sum() > 0 else self.other)(x).square().sum()


class ChosenByWhere(Chosen):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.sum() > 0, self.one(x), self.other(x)).square().sum()


def test_a_choice_that_torch_makes_is_refused() -> None:
    with pytest.raises(UnsupportedModuleError, match=r"Chosen calls torch\.cond at test_refusals\.py:\d+"):
        planned(Chosen(), X)


@pytest.mark.values
@pytest.mark.parametrize("kind", [ChosenByIf, ChosenByWhere])
def test_it_is_planned_as_the_remedy_says(kind: type[Chosen]) -> None:
    module = kind()
    assert train(planned(module, X), X) == train(module, X)


class Filled(nn.Module):
    """Rows of a learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.value = nn.Linear(6, 6), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).index_fill(0, torch.tensor([1, 3]), self.value).square().sum()


class FilledByWhere(Filled):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.tensor([False, True, False, True])
        return torch.where(rows[:, None], self.value, self.linear(x)).square().sum()


def test_rows_filled_with_a_learned_number_are_refused() -> None:
    with pytest.raises(UnsupportedModuleError, match=r"choose by torch\.where\(mask, value, x\)"):
        planned(Filled(), X)


@pytest.mark.values
def test_they_are_planned_as_the_remedy_says() -> None:
    module = FilledByWhere()
    assert train(planned(module, X), X) == train(module, X)


class DrawingFrom(nn.Linear):
    """A linear layer with noise from a generator that it is given."""

    def forward(self, x: Tensor, source: torch.Generator) -> Tensor:
        return (super().forward(x) + torch.rand(4, 6, generator=source)).square().sum()


class Unused(nn.Linear):
    """Does not draw from it."""

    def forward(self, x: Tensor, source: torch.Generator) -> Tensor:
        return super().forward(x).square().sum()


@pytest.mark.parametrize("kind", [DrawingFrom, Unused])
def test_a_generator_among_the_arguments_is_refused(kind: type[nn.Linear]) -> None:
    with pytest.raises(AdapterError, match=r"argument args\[1\] is a torch._C.Generator"):
        planned(kind(6, 6), (*X, seeded(0)))


class Touching(nn.Linear):
    """Does something to a container among its arguments."""

    def __init__(self, touch: Callable[[Any], object]) -> None:
        super().__init__(6, 6)
        self.touch = touch

    def forward(self, x: Tensor, batch: Any) -> Tensor:
        self.touch(batch)
        return super().forward(x).square().sum()


TOUCHES: dict[str, tuple[Callable[[Any], object], Any]] = {
    "an item taken out": (lambda batch: batch.pop("labels"), {"labels": X[0]}),
    "an item put in": (lambda batch: batch.update(seen=torch.ones(2)), {}),
    "an item replaced": (lambda batch: batch.update(labels=torch.ones(2)), {"labels": X[0]}),
    "a longer list": (lambda batch: batch.append(1), []),
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_a_container_among_the_arguments_that_the_forward_changes_is_refused(touch: str) -> None:
    do, batch = TOUCHES[touch]
    with pytest.raises(UnsupportedModuleError, match="changes a container among its arguments"):
        planned(Touching(do), (*X, batch))


def test_an_attribute_of_a_tensor_that_the_forward_reads_is_refused() -> None:
    class Reading(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * getattr(self.weight, "scale", 1.0)

    module = Reading(6, 6)
    module.weight.scale = 2.0  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedModuleError, match="reads 'scale' of a tensor"):
        planned(module, X)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_submodule_is_refused() -> None:
    module = nn.Sequential(nn.Linear(6, 6), torch.jit.script(nn.Linear(6, 6)))
    with pytest.raises(UnsupportedModuleError, match="submodule '1' is scripted"):
        planned(module, X)


class TestDataParallel:
    def test_it_is_refused_by_name(self) -> None:
        with pytest.raises(AdapterError, match=r"bind what it wraps and train that: model = .*model\.module"):
            within_budget(nn.DataParallel(nn.Linear(6, 6)), budget="60%")
