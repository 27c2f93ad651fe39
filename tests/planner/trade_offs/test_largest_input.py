"""The largest input within a memory, against planning every size: six networks, and lines drawn by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ogc_plan.planner.errors import BudgetSyntaxError, InfeasibleBudgetError, SearchStoppedError, UsageError
from ogc_plan.planner.limits import Limits
from ogc_plan.planner.model import Model, load_model
from ogc_plan.planner.pipeline import plan
from ogc_plan.planner.plan_file.record import Plan
from ogc_plan.planner.trade_offs.largest_input import Fit, fit
from torch import Tensor, nn

from models.export import export_module
from tests.files.onnx_models import model, node

pytestmark = pytest.mark.values


class Residual(nn.Module):
    """Blocks of a layer or two that add their input."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = x + part(x)
        return x


class Attending(nn.Module):
    """Self-attention of two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        result: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return result


class Dense(nn.Module):
    """Convolutions that read all earlier results."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4 + 4 * at, 4, 3, padding=1) for at in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x).relu()], 1)
        return x


class Hourglass(nn.Module):
    """Down, up and joined again."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(*sizes, 3, padding=1) for sizes in ((4, 8), (8, 16)))
        self.up = nn.ModuleList(nn.Conv2d(*sizes, 3, padding=1) for sizes in ((16, 8), (16, 4)))

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x).relu()
        last = self.down[1](F.max_pool2d(first, 2)).relu()
        back = F.interpolate(self.up[0](last).relu(), scale_factor=2.0)
        result: Tensor = self.up[1](torch.cat([first, back], 1))
        return result


def _norms() -> nn.Module:
    parts = [part for _ in range(5) for part in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())]
    return nn.Sequential(*parts)


def _perceptron() -> nn.Module:
    return Residual(*(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)))


def _transformer() -> nn.Module:
    return Residual(Attending(), _perceptron(), Attending(), _perceptron())


class Recurrent(nn.Module):
    """A recurrent layer between two others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(32, 32), nn.GRU(32, 32, batch_first=True), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.middle(self.first(x).tanh())[0].tanh())
        return result


ROWS, IMAGES = (2, 24, 32), (2, 4, 16, 16)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (_perceptron, ROWS),
    "transformer": (_transformer, ROWS),
    "recurrent": (Recurrent, ROWS),
    "norms": (_norms, IMAGES),
    "dense": (Dense, IMAGES),
    "hourglass": (Hourglass, IMAGES),
}
STORED = 3
"""The memory is what so many samples take without recomputation."""


@dataclass(frozen=True)
class Searched:
    """A network, the memory, and what was found within it."""

    load: Callable[[int], Model]
    memory: str
    found: Fit
    planned: Callable[[int], Any]
    """The plan of a size, or the error in its place."""


@pytest.fixture(scope="module", params=list(NETWORKS))
def searched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    build, shape = NETWORKS[request.param]
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("fit") / "model.onnx"
    path.write_bytes(export_module(build(), (torch.randn(shape),), opset=23).SerializeToString())
    load = cache(lambda size: load_model(path, batch=size))
    memory = f"{load(STORED).store_all().peak_total_nbytes}B"

    @cache
    def planned(size: int) -> Any:
        try:
            return plan(load(size), memory, effort="fast")
        except InfeasibleBudgetError as error:
            return error

    return Searched(load, memory, fit(load, memory, effort="fast"), planned)


def test_the_largest_size_without_recomputation_is_the_last_whose_store_all_step_fits(searched: Searched) -> None:
    assert searched.found.without is not None
    assert searched.found.without.size == STORED


def test_every_size_up_to_the_largest_has_a_plan(searched: Searched) -> None:
    sizes = range(1, searched.found.largest.size + 1)
    assert [size for size in sizes if isinstance(searched.planned(size), InfeasibleBudgetError)] == []


def test_the_next_sizes_have_none(searched: Searched) -> None:
    after = searched.found.largest.size
    assert all(isinstance(searched.planned(after + step), InfeasibleBudgetError) for step in (1, 2, 3))


def test_no_size_is_faster_by_more_than_a_thousandth(searched: Searched) -> None:
    rates = []
    for size in range(1, searched.found.largest.size + 1):
        time_of = searched.planned(size).time
        rates.append(size * 1e9 / (time_of.store_all_ns + time_of.recompute_ns))
    assert searched.found.fastest.per_s >= max(rates) / 1.001


def test_plans_keep_the_memory(searched: Searched) -> None:
    assert all(sized.plan.peak.total_nbytes <= searched.found.memory_nbytes for sized in searched.found.planned)


# One network, corner by corner


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Model]:
    """Ten products in a row, whose step takes 64 bytes more for each row of the input and layer."""
    names = ["x", *(f"t{at}" for at in range(9)), "y"]
    nodes = [node("MatMul", f"{source} w{at}", made) for at, (source, made) in enumerate(pairwise(names))]
    proto = model(nodes, {"x": ("n", 16)}, weights={f"w{at}": (16, 16) for at in range(10)})
    path = Path(tmp_path_factory.mktemp("chain")) / "chain.onnx"
    path.write_bytes(proto.SerializeToString())
    return cache(lambda size: load_model(path, dims={"n": size}))


def test_sizes_are_multiples(chain: Callable[[int], Model]) -> None:
    found = fit(chain, "100kB", dimension="n", multiple_of=8)
    assert {sized.size % 8 for sized in found.planned} == {0}


def test_a_size_that_needs_recomputation_from_the_start_has_no_place_without(chain: Callable[[int], Model]) -> None:
    memory = f"{chain(512).store_all().peak_total_nbytes - 1}B"
    assert fit(chain, memory, dimension="n", multiple_of=512).without is None


def test_the_search_stays_short_beside_what_a_device_takes_beyond_the_step(chain: Callable[[int], Model]) -> None:
    alone, sizes = chain(150).store_all().peak_total_nbytes, []

    def plan_at(size: int) -> Plan:
        sizes.append(size)
        return plan(chain(size), f"{alone}B", effort="fast")

    without = fit(chain, f"{alone + 50_000}B", dimension="n", plan_at=plan_at, effort="fast").without
    assert (without is not None and without.size, len(sizes) < 60) == (150, True)


def test_a_memory_that_not_even_the_smallest_size_fits_is_refused_with_its_floor(chain: Callable[[int], Model]) -> None:
    with pytest.raises(InfeasibleBudgetError, match="not even n 1 fits 20kB, it is proven not to fit"):
        fit(chain, "20kB", dimension="n")


def test_a_dimension_that_takes_no_memory_is_refused(chain: Callable[[int], Model]) -> None:
    with pytest.raises(UsageError, match="still fits 100kB"):
        fit(lambda size: chain(8), "100kB", dimension="m")


@pytest.mark.parametrize("memory", ["60%", "min", "much"])
def test_a_memory_is_a_size(chain: Callable[[int], Model], memory: str) -> None:
    with pytest.raises(BudgetSyntaxError, match="is not a size"):
        fit(chain, memory)


def test_a_search_that_is_stopped_at_once_says_so(chain: Callable[[int], Model]) -> None:
    with pytest.raises(SearchStoppedError):
        fit(chain, "100kB", limits=Limits(stop=lambda: True))


def test_a_search_that_is_stopped_later_keeps_what_it_found(chain: Callable[[int], Model]) -> None:
    told: list[str] = []
    limits = Limits(
        stop=lambda: sum("reading" in line for line in told) > 8, progress=lambda doing, *_: told.append(doing)
    )
    found = fit(chain, "100kB", dimension="n", limits=limits)
    assert (found.stopped_early, found.beyond) == (True, None)


def test_progress_names_the_largest_size_so_far_once_one_fits(chain: Callable[[int], Model]) -> None:
    told: list[tuple[str, int | None]] = []
    found = fit(
        chain, "100kB", dimension="n", limits=Limits(progress=lambda doing, best, _: told.append((doing, best)))
    )
    before, after = told[0], told[-1]
    assert (before[1], "fits" in before[0]) == (None, False)
    assert (after[1] is not None, after[0].endswith(f", {found.largest.size:,} fits")) == (True, True)
