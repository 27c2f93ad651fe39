"""A Flax model under a plan's save-list: exported by jax2onnx, planned, checkpointed, and its saved residuals compared.

    python -m models.runtimes.flax_save_list --budget 60%

needs jax, flax and jax2onnx. It fails unless jax.checkpoint saves exactly the tensors that the emitted policy names,
and gives the gradients of the plain step. The last line has the memory that XLA takes. On a CPU it hardly falls: XLA
merges the recomputation with the forward again. Run it on a GPU to see it fall.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import runpy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from flax import nnx
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals
from jax2onnx import to_onnx
from ogc_plan.cli.main import main as ogc_plan

WIDTH, BLOCKS, ROWS = 64, 4, 512


class Block(nnx.Module):
    """x + down(gelu(up(x))), every tensor named after the block."""

    def __init__(self, name: str, rngs: nnx.Rngs) -> None:
        self.name = name
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """One residual block."""
        wide = checkpoint_name(self.up(x), f"{self.name}.up")
        active = checkpoint_name(nnx.gelu(wide), f"{self.name}.gelu")
        return checkpoint_name(x + self.down(active), f"{self.name}.out")


class Network(nnx.Module):
    """A few blocks."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([Block(f"block{number}", rngs) for number in range(BLOCKS)])

    def __call__(self, x: Any) -> Any:
        """The result of the last block."""
        for block in self.blocks:
            x = block(x)
        return x


@dataclass(frozen=True)
class Outcome:
    """What one run found.

    Attributes:
        wanted: the names that the emitted policy saves.
        saved: the names that jax.checkpoint saved.
        others: what it saved besides, other than arguments of the step.
        equal: whether gradients equal those of the plain step to 1e-5.
        temporary_nbytes: the memory that XLA takes for the plain step and for the checkpointed one.
    """

    wanted: frozenset[str]
    saved: frozenset[str]
    others: tuple[str, ...]
    equal: bool
    temporary_nbytes: tuple[int, int]


def residuals(loss: Callable[..., Any], *args: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names of what jax saves for the backward of ``loss``, and its lines on what has none and is no argument."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_saved_residuals(loss, *args)
    lines = text.getvalue().splitlines()
    named = [match[1] for line in lines if (match := re.search(r"named '(.*?)'", line))]
    others = tuple(line for line in lines if "named '" not in line and "from the argument" not in line)
    return frozenset(named), others


def run(folder: Path, budget: str) -> Outcome:
    """Export, plan, emit and compare. Raises SystemExit where ogc-plan does not end well."""
    network, x = Network(nnx.Rngs(0)), jnp.asarray(np.random.default_rng(0).normal(size=(ROWS, WIDTH)), jnp.float32)
    onnx.save(to_onnx(network, [(ROWS, WIDTH)]), folder / "model.onnx")
    words = ([folder / "model.onnx", "--budget", budget, "-q", "-o", folder / "plan.json"],)
    words += (["emit", folder / "plan.json", folder / "model.onnx", "--to", "jax", "-q", "-o", folder / "policy.py"],)
    for command in words:
        code = ogc_plan([str(word) for word in command])
        if code:
            raise SystemExit(code)
    emitted = runpy.run_path(str(folder / "policy.py"))
    definition, state = nnx.split(network)

    def loss(state: Any, x: Any) -> Any:
        return jnp.mean(nnx.merge(definition, state)(x) ** 2)

    checkpointed = jax.checkpoint(loss, policy=emitted["policy"](loss, state, x))
    names = emitted["names"](loss, state, x)
    saved, others = residuals(checkpointed, state, x)
    steps = [jax.jit(jax.grad(step)) for step in (loss, checkpointed)]
    pairs = zip(*(jax.tree.leaves(step(state, x)) for step in steps), strict=True)
    memory = [step.lower(state, x).compile().memory_analysis().temp_size_in_bytes for step in steps]
    return Outcome(
        frozenset(names[call] for call in emitted["CALLS"]),
        saved,
        others,
        all(np.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs),
        (memory[0], memory[1]),
    )


def main() -> int:
    """Run once; 1 where jax saves something else than the policy names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="60%")
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), parser.parse_args().budget)
    print(f"saved as named: {', '.join(sorted(found.saved))}")
    print(f"gradients equal: {found.equal}; unnamed residuals: {len(found.others)}")
    plain, less = found.temporary_nbytes
    print(f"XLA on {jax.default_backend()}: {plain:,} bytes for the plain step, {less:,} checkpointed")
    return int(found.saved != found.wanted or not found.equal or bool(found.others))


if __name__ == "__main__":
    raise SystemExit(main())
