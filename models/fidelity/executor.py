"""Whether the executor holds what its plan predicts and trains as eager PyTorch does, bit by bit.

For each case and budget: the peaks predicted for the bound module and those measured of a real step, first
without and then with gradients to accumulate into; and everything that training leaves behind, compared with
plain eager training after one step, after several steps of AdamW, and after accumulating over two. The exit
code is 1 where anything is unequal, above its budget, or further from its prediction than the tolerance.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from ogc_plan.adapters.pytorch import plan_of, predict, within_budget
from ogc_plan.planner.errors import InfeasibleBudgetError, OgcPlanError
from torch import Tensor, nn

from models.fidelity.tables import executor_report
from models.meters.repeatable import repeatable
from models.meters.step_meters import (
    CudaPeak,
    StepPeak,
    by_allocator,
    by_cuda,
    by_storages,
    clear_gradients,
    parameter_gradients,
)
from models.meters.step_times import Step, time_ratios
from models.reporting.option_values import count, count_or_none
from models.reporting.result_record import publish
from models.training.cases import CASES, Case, Supervised
from models.training.outcome import Equality, Outcome, compare, train

BUDGETS = ("store-all", "60%", "40%", "30%", "min")
STEPS = 20
ROUNDS = 5
STORAGE_TOLERANCE_NBYTES = 64 * 1024
ALLOCATOR_TOLERANCE_NBYTES = 2**20
ALLOCATOR_TOLERANCE = 0.001
WEIGHT_SEED = 1
VIA = "memory"
"""How a row is planned."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A peak predicted for the bound module and measured of its step, in bytes."""

    predicted_nbytes: int
    measured_nbytes: int

    @property
    def difference_nbytes(self) -> int:
        """How much the measurement is above (positive) or below the prediction."""
        return self.measured_nbytes - self.predicted_nbytes


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks of one step under one meter; the CUDA allocator cannot tell activations from the rest."""

    total: Pair
    activations: Pair | None = None

    @property
    def pairs(self) -> tuple[tuple[str, Pair], ...]:
        """What was compared, by name."""
        return (("total", self.total), *((("activations", self.activations),) if self.activations else ()))


@dataclass(frozen=True, slots=True)
class Measured:
    """The peaks of a first step and of one with ``.grad`` present, under both meters.

    ``cuda`` has what else the CUDA allocator's statistics say, None on the CPU.
    """

    storages: Peaks
    storages_accumulating: Peaks
    allocator: Peaks
    allocator_accumulating: Peaks
    cuda: CudaPeak | None = None


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A budget for which there is no plan: the proven floor and the smallest peak found, in bytes."""

    proven: bool
    floor_nbytes: int
    smallest_nbytes: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One case at one budget planned one way.

    ``budget_nbytes`` bounds the activation peak, None where no number of bytes was asked for. ``equal`` says
    after which training what was equal to eager. ``failures`` says what is not as it should be.
    """

    case: str
    budget: str
    via: str
    plan_s: float
    infeasible: Infeasible | None = None
    budget_nbytes: int | None = None
    overhead: float = 0.0
    recomputed_ops: int = 0
    measured: Measured | None = None
    equal: dict[str, Equality] = field(default_factory=dict)
    eager_ms: float | None = None
    time_ratio: float | None = None
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Eager:
    """A case trained as it is: what every row is held against, and its peaks.

    ``repeats`` says whether eager training equals itself, without which nothing else can.
    """

    outcomes: dict[str, Outcome]
    repeats: bool
    storages: StepPeak
    allocator: StepPeak | CudaPeak


def fresh(case: Case, device: str) -> Supervised:
    """The case's module with the same weights each time."""
    torch.manual_seed(WEIGHT_SEED)
    return case.build().to(device)


def outcomes(case: Case, module: nn.Module, original: dict[str, Tensor], steps: int, device: str) -> dict[str, Outcome]:
    """Train from the ``original`` state for ``steps`` with AdamW, then from it again, accumulating over two."""
    module.load_state_dict(original)
    first, last = train(case, module, module, steps, device=device)
    module.load_state_dict(original)
    _, accumulated = train(case, module, module, 2, device=device, accumulate=True)
    module.load_state_dict(original)
    return {"step 1": first, f"step {steps}": last, "2 accumulated": accumulated}


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the module's state."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def run_eager(case: Case, steps: int, device: str) -> Eager:
    """Train the case as it is, and meter one step."""
    module = fresh(case, device)
    original = state_of(module)
    found = outcomes(case, module, original, steps, device)
    again, _ = train(case, module, module, 1, device=device)
    storages, allocator = _meter(case, module, device)
    return Eager(found, compare(again, found["step 1"]).everything, storages, allocator)


def _meter(case: Case, module: nn.Module, device: str, *, accumulate: bool = False) -> tuple[StepPeak, Any]:
    """A step under the storage meter and one under the allocator's; ``.grad`` is there before each or neither."""
    arguments = case.arguments(0, device)

    def step() -> Tensor:
        loss: Tensor = module(*arguments)
        loss.backward()
        return loss

    found: list[Any] = []
    for meter in (by_storages, by_allocator if device == "cpu" else by_cuda):
        if not accumulate:
            clear_gradients(module, arguments)
        elif not parameter_gradients(module):
            step()
        found.append(meter(step, module, arguments))
    clear_gradients(module, arguments)
    return found[0], found[1]


def _peaks(module: nn.Module, found: StepPeak | CudaPeak, *, workspace: bool, accumulate: bool) -> Peaks:
    expected = predict(module, kernel_workspace=workspace, gradients_present=accumulate)
    if isinstance(found, CudaPeak):
        return Peaks(Pair(expected.total_nbytes, found.requested_nbytes))
    return Peaks(
        Pair(expected.total_nbytes, found.total_nbytes), Pair(expected.activation_nbytes, found.activation_nbytes)
    )


def measure(case: Case, module: nn.Module, device: str) -> Measured:
    """Predict and measure every peak of a bound module."""
    storages, allocator = _meter(case, module, device)
    storages_accumulating, allocator_accumulating = _meter(case, module, device, accumulate=True)
    return Measured(
        _peaks(module, storages, workspace=False, accumulate=False),
        _peaks(module, storages_accumulating, workspace=False, accumulate=True),
        _peaks(module, allocator, workspace=True, accumulate=False),
        _peaks(module, allocator_accumulating, workspace=True, accumulate=True),
        allocator if isinstance(allocator, CudaPeak) else None,
    )


def failures_of(row: Row) -> Iterator[str]:
    """What is not as it should be in a row that has a plan."""
    measured = row.measured
    assert measured is not None
    for when, found in row.equal.items():
        if found.unequal:
            yield f"{', '.join(found.unequal)} unequal after {when}"
    for meter, peaks in (("storage meter", measured.storages), ("allocator", measured.allocator)):
        if peaks.activations and row.budget_nbytes is not None:
            excess = peaks.activations.measured_nbytes - row.budget_nbytes
            if excess > 0:
                yield f"activations {excess} B above the budget by the {meter}"
    for name, peaks, share, slack_nbytes in (
        ("storage meter", measured.storages, 0.0, STORAGE_TOLERANCE_NBYTES),
        ("storage meter, accumulating", measured.storages_accumulating, 0.0, STORAGE_TOLERANCE_NBYTES),
        ("allocator", measured.allocator, ALLOCATOR_TOLERANCE, ALLOCATOR_TOLERANCE_NBYTES),
        ("allocator, accumulating", measured.allocator_accumulating, ALLOCATOR_TOLERANCE, ALLOCATOR_TOLERANCE_NBYTES),
    ):
        for what, pair in peaks.pairs:
            if abs(pair.difference_nbytes) > share * pair.predicted_nbytes + slack_nbytes:
                yield f"{what} {pair.difference_nbytes:+d} B off by the {name}"


def examine(case: Case, budget: str, eager: Eager, *, steps: int, rounds: int, device: str) -> Row:
    """Plan, bind, measure and train one case at one budget."""
    module = fresh(case, device)
    original = state_of(module)
    text, strategy = ("100%", "keep-all") if budget == "store-all" else (budget, "optimal")
    started = time.perf_counter()
    try:
        bound = within_budget(module, case.arguments(0, device), budget=text, strategy=strategy)
    except InfeasibleBudgetError as error:
        found = Infeasible(error.proven, error.lower_bound_nbytes, error.smallest_known_nbytes)
        return Row(case.name, budget, VIA, time.perf_counter() - started, found)
    except OgcPlanError as error:
        return Row(case.name, budget, VIA, time.perf_counter() - started, failures=(str(error),))
    plan_s = time.perf_counter() - started
    plan = plan_of(bound)
    measured = measure(case, bound, device)
    trained = outcomes(case, bound, original, steps, device)
    equal = {when: compare(found, eager.outcomes[when]) for when, found in trained.items() if when in eager.outcomes}
    eager_ms = ratio = None
    if rounds:
        reference = fresh(case, device)
        steps_of = Step(reference, reference), [Step(bound, bound)]
        eager_ms, (ratio,) = time_ratios(*steps_of, case.arguments(0, device), rounds)
    row = Row(
        case.name,
        budget,
        VIA,
        plan_s,
        None,
        plan.budget.nbytes if budget.endswith(("%", "B")) else None,
        plan.time.overhead,
        len(plan.recomputed),
        measured,
        equal,
        eager_ms,
        ratio,
    )
    return replace(row, failures=tuple(failures_of(row)))


def examined(case: Case, rows: Sequence[Row], eager: Eager, steps: int) -> dict[str, Any]:
    """One network as results files have it."""
    return {
        "sizes": case.sizes,
        "steps": steps,
        "repeats": eager.repeats,
        "storages": asdict(eager.storages),
        "allocator": asdict(eager.allocator),
        "rows": [asdict(row) for row in rows],
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this kind."""
    parser.add_argument("--case", action="append", choices=CASES, help="a case (default: all; may be given again)")
    parser.add_argument("--budgets", default=",".join(BUDGETS), help="separated by commas (default %(default)s)")
    parser.add_argument("--steps", type=count, default=STEPS, help="steps of AdamW (default %(default)s)")
    parser.add_argument(
        "--rounds", type=count_or_none, default=ROUNDS, help="timed rounds, 0 for none (default %(default)s)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")


def run(options: argparse.Namespace) -> int:
    """Examine the cases asked for; 1 where anything is not as it should be."""
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    repeatable(device)
    found: dict[str, dict[str, Any]] = {}
    for name in options.case or CASES:
        case = CASES[name]
        eager = run_eager(case, options.steps, device)
        if not eager.repeats:
            print(f"{name}: eager training does not repeat itself on this device", file=sys.stderr)
        rows: list[Row] = []
        for budget in options.budgets.split(","):
            rows.append(examine(case, budget, eager, steps=options.steps, rounds=options.rounds, device=device))
            print(f"{name} {budget}: {'; '.join(rows[-1].failures) or 'done'}", file=sys.stderr, flush=True)
        found[name] = examined(case, rows, eager, options.steps)
    record = {
        "eager": {name: {key: value for key, value in one.items() if key != "rows"} for name, one in found.items()},
        "rows": [row for one in found.values() for row in one["rows"]],
    }
    publish(
        executor_report(record),
        options.output,
        script="models.fidelity",
        arguments=options.arguments,
        device=device,
        quantity="peaks of one training step in bytes",
        **record,
    )
    return int(any(row["failures"] for row in record["rows"]))
