"""What PyTorch users pick today to train in less memory, and a plan at the same measured peak.

    python -m models.training.executor_benchmark -o models/results/executor_benchmark.json

For each case: eager; checkpointing by block, in sequential segments and selectively; `torch.compile` with
memory budgets. Each method's activation peak is measured, and the same module is then planned within
exactly those bytes, workspace that kernels take and give back included. Per row the measured peak, the step
time against eager (interleaved, medians), and what equals eager training after one step in every bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from models.meters.repeatable import repeatable  # first: it sets what torch reads when it loads

# isort: split
import torch
from ogc_plan.adapters.pytorch import plan_of, within_budget
from ogc_plan.planner.errors import InfeasibleBudgetError
from ogc_plan.planner.problem import Scope
from torch import Tensor, nn

from models.alternatives.methods import Chain, Method, compile_budget, per_block, plain, selective, sequential
from models.fidelity.executor import fresh, state_of
from models.meters.step_meters import by_allocator, by_storages, clear_gradients
from models.meters.step_times import Step, time_ratios
from models.reporting.command_line import add_output, command_parser
from models.reporting.option_values import count
from models.reporting.result_record import publish
from models.reporting.result_table import megabytes, table
from models.training.cases import CASES, GPT, Case, gpt_case, resnet_case, unet_case
from models.training.outcome import Forward, compare, train

ROUNDS = 5
BACKEND = "aot_eager"
"""Of torch.compile: PyTorch's own kernels, as eager runs them; it needs no C++ compiler."""
COMPILE_BUDGETS = (0.8, 0.5, 0.3, 0.1, 0)
SEGMENTS = (2, 4)
SMALL = {
    case.name: case for case in (resnet_case(4, 96), gpt_case(1, replace(GPT, width=256, heads=8)), unet_case(1, 128))
}
"""The same networks at smaller sizes, where memory that does not grow with the input weighs more."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A way to train a case: what results files have of it, and the step to time, None where it does not run.

    Of one that runs: measured activation peak in bytes, equality with eager and, of a plan, the recomputation that it
    predicts; of any other the reason.
    """

    known: dict[str, Any]
    step: Step | None = None


class Bench:
    """Measures one case on one device, against what one eager step leaves behind."""

    def __init__(self, case: Case, rounds: int, device: str) -> None:
        self.case, self.rounds, self.device = case, rounds, device
        self.reference = fresh(case, device)
        original = state_of(self.reference)
        self.expected, _ = train(case, self.reference, self.reference, 1, device=device)
        self.reference.load_state_dict(original)

    def method(self, method: Method) -> Tried:
        """Run a method; whatever it raises is a finding of the benchmark, not its end."""
        module = fresh(self.case, self.device)
        try:
            return self._ran(method(module), module)
        except Exception as error:
            return Tried({"reason": f"fails: {type(error).__name__}: {str(error).splitlines()[0][:80]}"})

    def plan(self, budget: str, strategy: str = "optimal") -> Tried:
        """Plan the case within a budget on its activations, and run it."""
        arguments = self.case.arguments(0, self.device)
        module = fresh(self.case, self.device)
        try:
            bound = within_budget(module, arguments, budget=budget, scope=Scope.ACTIVATIONS, strategy=strategy)
        except InfeasibleBudgetError as error:
            return Tried({"reason": "proven infeasible" if error.proven else "no plan found"})
        return self._ran(bound, bound, overhead=plan_of(bound).time.overhead)

    def _ran(self, forward: Forward, module: nn.Module, **known: Any) -> Tried:
        original = state_of(module)
        found, _ = train(self.case, module, forward, 1, device=self.device)
        module.load_state_dict(original)
        arguments = self.case.arguments(0, self.device)

        def step() -> Tensor:
            loss = forward(*arguments)
            loss.backward()
            return loss

        clear_gradients(module, arguments)
        meter = by_allocator if self.device == "cpu" else by_storages
        peak = meter(step, module, arguments).activation_nbytes
        equal = asdict(compare(found, self.expected))
        return Tried({"peak_nbytes": peak, "equal": equal, **known}, Step(forward, module))

    def row(self, name: str, method: Tried, plan: Tried | None) -> dict[str, Any]:
        """A row of two ways to train, timed side by side."""
        ready = [(way.known, way.step) for way in (method, plan) if way is not None and way.step is not None]
        reference = Step(self.reference, self.reference)
        arguments = self.case.arguments(0, self.device)
        eager_ms, ratios = time_ratios(reference, [step for _, step in ready], arguments, self.rounds)
        for (known, _), ratio in zip(ready, ratios, strict=True):
            known["time_ratio"] = ratio
        planned = None if plan is None else plan.known
        return {
            "case": self.case.name, "method": name, "result": method.known, "planned": planned, "eager_ms": eager_ms
        }  # fmt: skip


def methods(
    case: Case, *, budgets: tuple[float, ...] = COMPILE_BUDGETS, counts: tuple[int, ...] = SEGMENTS
) -> dict[str, Method]:
    """Every offer of PyTorch that the case allows, by the name it has in tables."""
    found: dict[str, Method] = {"checkpoint per block": per_block(case.blocks)}
    if case.sequential is not None:
        found |= {f"checkpoint_sequential, {number} segments": segments(case, number) for number in counts}
    found["selective: save matmul, conv, attention"] = selective(case.blocks)
    return found | {f"compile budget {budget:g} ({BACKEND})": compile_budget(budget, BACKEND) for budget in budgets}


def segments(case: Case, number: int) -> Method:
    """`checkpoint_sequential` with so many segments on the network of a case that is a chain."""
    assert case.sequential is not None
    chain_of = case.sequential
    return sequential(lambda module: [Chain(module.network, chain_of(module), number)])


def benchmark(case: Case, found: dict[str, Method], rounds: int, device: str) -> list[dict[str, Any]]:
    """Every row of one case: eager and a plan that stores everything, then each method and the plan at its peak."""
    bench = Bench(case, rounds, device)
    rows = [bench.row("eager", bench.method(plain), bench.plan("100%", "keep-all"))]
    for name, method in found.items():
        tried = bench.method(method)
        plan = None if tried.step is None else bench.plan(f"{tried.known['peak_nbytes']}B")
        rows.append(bench.row(name, tried, plan))
        print(f"{case.name}, {name}: done", file=sys.stderr, flush=True)
    return rows


def _cells(result: dict[str, Any] | None) -> list[str]:
    if result is None:
        return ["-", "-", "-"]
    if "reason" in result:
        return [result["reason"], "-", "-"]
    unequal = [part for part, same in result["equal"].items() if same is False and part != "parameters"]
    same = f"not {', '.join(unequal)}".replace("_", " ") if unequal else "all"
    return [megabytes(result["peak_nbytes"]), f"{result['time_ratio']:.2f}", same]


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Each way to train and the plan within its peak, as Markdown."""
    header = ["network", "method", "peak MB", "time", "equal to eager", "planned to that peak: MB", "time", "equal"]
    lines = [[row["case"], row["method"], *_cells(row["result"]), *_cells(row["planned"])] for row in rows]
    return table(header, lines)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("models.training.executor_benchmark", __doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="a case (default: all; may be given again)")
    parser.add_argument("--small", action="store_true", help="smaller inputs, a wider GPT")
    parser.add_argument("--rounds", type=count, default=ROUNDS, help="timed rounds (default %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    add_output(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Benchmark what the command line asks for, print the tables and write the results."""
    options = _parser().parse_args(arguments)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    repeatable(device)
    cases = [(SMALL if options.small else CASES)[name] for name in options.case or CASES]
    rows: list[dict[str, Any]] = []
    for case in cases:
        rows += benchmark(case, methods(case), options.rounds, device)
    sizes = "\n".join(f"- {case.name}: {case.sizes}" for case in cases)
    publish(
        f"{sizes}\n\n{report(rows)}",
        options.output,
        script="models.training.executor_benchmark",
        arguments=arguments,
        device=device,
        quantity="activation peak of one training step in bytes; time of a step, eager = 1",
        rows=rows,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
