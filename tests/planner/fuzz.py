"""Plans damaged models, reads odd nodes, checks damaged plans: ``python -m tests.planner.fuzz`` counts the outcomes.

    python -m tests.planner.fuzz --models 100000 --plans 20000 --nodes 20000 --kills 200 -o models/results/hostile.json

A case is planned or refused by one line with a remedy. Anything else is a defect: another exception (traceback), more
than CASE_S seconds of processor time (hang), or the end of the process (crash). Cases run in a process of their own, a
few hundred at a time; a seed and the kind of input make a case again.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import onnx
from ogc_plan.planner.errors import OgcPlanError, PlanError
from ogc_plan.planner.model import load_model
from ogc_plan.planner.pipeline import plan, verify
from ogc_plan.planner.plan_file.reader import read_plan

from models.graphs import FAMILIES
from models.light import NAMES, light_path
from models.reporting.command_line import add_output, command_parser
from models.reporting.result_record import publish
from tests.cli.killed_writers import killed
from tests.files.annotated_files import annotated_model
from tests.files.mutations import damaged
from tests.files.node_attacks import attack
from tests.files.node_cases import cases, prepare
from tests.files.onnx_mutations import mutate
from tests.files.plan_fixtures import FIXTURES, FOLDER

CASE_S = 20
"""Most seconds of processor time for one case; the slowest whole file takes one."""
_AT_ONCE = 200
_LARGE = 20
"""Of so many cases one is a whole network."""


class _Hang(BaseException):
    """A case takes too long; not an Exception, so that nothing in the program catches it."""


def outcome(kind: str, seed: int, folder: Path) -> str:
    """What comes of one case: ``planned``, ``refused``, ``hang``, or ``traceback: ...``."""

    def late(number: int, frame: object) -> None:
        raise _Hang

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, CASE_S)
    try:
        CASES[kind](Random(seed), seed, folder)
    except OgcPlanError as error:
        whole = error.remedy and "\n" not in error.message + error.remedy
        return "refused" if whole else f"not one line and a remedy: {error.message!r}, {error.remedy!r}"
    except _Hang:
        return "hang"
    except BaseException as error:
        return f"traceback: {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "planned"


def _model_case(generator: Random, seed: int, folder: Path) -> None:
    """A damaged file of any origin, under options that are mostly those of a real use."""
    path = folder / "model.onnx"
    content = mutate(_whole(generator), seed).SerializeToString()
    path.write_bytes(_bitten(content, generator) if generator.random() < 0.1 else content)
    model = load_model(
        path,
        batch=3 if generator.random() < 0.2 else None,
        charge_unknown=generator.random() < 0.3,
        ignore_annotations=generator.random() < 0.3,
        optimizer="adamw",
    )
    plan(model, "100%", strategy="keep-all")


def _node_case(generator: Random, seed: int, folder: Path) -> None:
    """A file of one node that no exporter would write."""
    path = folder / "node.onnx"
    path.write_bytes(attack(generator).SerializeToString())
    load_model(path, charge_unknown=seed % 2 == 0)


def _plan_case(generator: Random, seed: int, folder: Path) -> None:
    """A damaged plan; what is read of it is replayed."""
    path = folder / "plan.json"
    text = json.dumps(damaged(generator.choice(_plans()), generator))
    content = text.encode("utf-8", "surrogatepass")
    path.write_bytes(_bitten(content, generator) if generator.random() < 0.2 else content)
    try:
        verify(read_plan(path))
    except OgcPlanError as error:
        if not isinstance(error, PlanError):
            raise TypeError(f"a {type(error).__name__} for a plan") from error
        raise


CASES: dict[str, Callable[[Random, int, Path], None]] = {
    "models": _model_case, "plans": _plan_case, "nodes": _node_case,
}  # fmt: skip
"""What is done in a case, by its kind; it returns or raises."""


def _whole(generator: Random) -> onnx.ModelProto:
    if generator.randrange(_LARGE) == 0:
        return _network(generator.choice((*NAMES, "unet", "gpt12")))
    return annotated_model() if generator.random() < 0.1 else prepare(generator.choice(sorted(cases()))).model


@cache
def _network(name: str) -> onnx.ModelProto:
    return onnx.load(light_path(name)) if name in NAMES else FAMILIES[name](1)


@cache
def _plans() -> list[Any]:
    return [json.loads((FOLDER / name).read_text(encoding="utf-8")) for name in FIXTURES]


def _bitten(content: bytes, generator: Random) -> bytes:
    """Content with a few bytes changed, or cut off."""
    bitten = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        bitten[generator.randrange(len(bitten))] = generator.randrange(256)
    return bytes(bitten[: generator.randrange(len(bitten))] if generator.random() < 0.2 else bitten)


def outcomes(kind: str, seeds: Sequence[int]) -> list[str]:
    """What comes of some cases, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        return [outcome(kind, seed, Path(folder)) for seed in seeds]


def counted(kind: str, count: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """How often each outcome came, and each defect with its seed."""
    found: Counter[str] = Counter()
    defects: list[str] = []
    chunks = [range(at, min(at + _AT_ONCE, first + count)) for at in range(first, first + count, _AT_ONCE)]
    while chunks:
        seeds = chunks.pop(0)
        try:
            with ProcessPoolExecutor(1) as pool:
                said = pool.submit(outcomes, kind, seeds).result()
        except BrokenProcessPool:
            if len(seeds) > 1:  # find the one
                chunks = [range(seed, seed + 1) for seed in seeds] + chunks
                continue
            said = ["crash"]
        for seed, what in zip(seeds, said, strict=True):
            found[what.partition(":")[0]] += 1
            if what not in ("planned", "refused"):
                defects.append(f"{kind} {seed}: {what}")
                print(defects[-1], file=sys.stderr, flush=True)
    return found, defects


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; returns 1 if there is a defect."""
    parser = command_parser("tests.planner.fuzz", __doc__)
    parser.add_argument("--models", type=int, default=100_000)
    parser.add_argument("--plans", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=200, help="how often a program that writes a plan is killed")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first case")
    add_output(parser)
    options = parser.parse_args(arguments)
    rows: dict[str, dict[str, int]] = {}
    defects: list[str] = []
    for kind in CASES:
        found, more = counted(kind, getattr(options, kind), options.first)
        rows[f"damaged {kind}"], defects = dict(found.most_common()), defects + more
    with tempfile.TemporaryDirectory() as folder:
        kills = Counter(killed(Path(folder), seed) for seed in range(options.kills))
    rows["writers killed"] = dict(kills.most_common())
    defects += [what for what in kills if what.startswith("broken")]
    lines = [f"- {kind}: " + ", ".join(f"{n:,} {what}" for what, n in row.items()) + "." for kind, row in rows.items()]
    publish(
        "\n".join([*lines, f"- defects: {len(defects)}.", *(f"  - {defect}" for defect in defects)]),
        options.output,
        script="tests.planner.fuzz",
        arguments=arguments,
        device="cpu",
        quantity="outcomes of damaged files and of killed writers",
        rows=rows,
        defects=defects,
    )
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
