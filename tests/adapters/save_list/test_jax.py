"""The policy for jax.checkpoint saves what it names; skipped where JAX is not installed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import load as load_onnx
from onnx import numpy_helper

from tests.adapters.save_list.networks import ROWS, WIDTH, emitted, write_layers

jax = pytest.importorskip("jax", reason="needs JAX: pip install jax flax jax2onnx")
ad_checkpoint = pytest.importorskip("jax.ad_checkpoint")


def loss_of(model: Path, names: dict[str, str]) -> tuple[Any, list[Any]]:
    """The network of `write_layers` in JAX, and its arguments; ``names`` are given to its tensors."""
    weights = {entry.name: numpy_helper.to_array(entry) for entry in load_onnx(model).graph.initializer}
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)

    def named(value: Any, name: str) -> Any:
        return ad_checkpoint.checkpoint_name(value, names[name]) if name in names else value

    def loss(weights: dict[str, Any], x: Any) -> Any:
        for i in range(len(weights) // 2):
            m = named(x @ weights[f"w{i}"], f"m{i}")
            h = named(m + weights[f"b{i}"], f"h{i}")
            x = named(jax.nn.gelu(h, approximate=False), f"t{i}")
        return (x**2).mean()

    return loss, [weights, x]


def residuals(loss: Any, args: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[set[str], list[str]]:
    ad_checkpoint.print_saved_residuals(loss, *args)
    lines = [line for line in capsys.readouterr().out.splitlines() if "from the argument" not in line]
    names = {line.partition("named '")[2].partition("'")[0] for line in lines if "named '" in line}
    return names, [line for line in lines if "named '" not in line]


def test_what_is_saved_is_what_the_policy_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_layers(tmp_path / "m.onnx")
    policy = runpy.run_path(str(emitted(model, "jax", "60%")))
    loss, args = loss_of(model, {name: name for i in range(4) for name in (f"m{i}", f"h{i}", f"t{i}")})
    checkpointed = jax.checkpoint(loss, policy=policy["policy"](loss, *args))
    assert residuals(checkpointed, args, capsys) == (set(policy["SAVED"]), [])


def test_calls_of_checkpoint_name_in_the_file_are_found_by_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_layers(tmp_path / "m.onnx", named=True)
    policy = runpy.run_path(str(emitted(model, "jax", "80%")))
    loss, args = loss_of(model, {f"t{i}": f"layer {i}" for i in range(4)})
    checkpointed = jax.checkpoint(loss, policy=policy["policy"](loss, *args))
    assert residuals(checkpointed, args, capsys)[0] == {name.replace("t", "layer ") for name in policy["SAVED"]}


def test_a_checkpointed_step_has_the_gradients_of_the_plain_one(tmp_path: Path) -> None:
    model = write_layers(tmp_path / "m.onnx")
    policy = runpy.run_path(str(emitted(model, "jax", "60%")))
    loss, args = loss_of(model, {name: name for i in range(4) for name in (f"m{i}", f"h{i}", f"t{i}")})
    checkpointed = jax.checkpoint(loss, policy=policy["policy"](loss, *args))
    pairs = zip(jax.tree.leaves(jax.grad(loss)(*args)), jax.tree.leaves(jax.grad(checkpointed)(*args)), strict=True)
    assert all(np.allclose(a, b, rtol=1e-5) for a, b in pairs)


def test_a_name_that_the_function_lacks_is_told(tmp_path: Path) -> None:
    model = write_layers(tmp_path / "m.onnx")
    policy = runpy.run_path(str(emitted(model, "jax", "60%")))
    loss, args = loss_of(model, {})
    with pytest.raises(ValueError, match="no checkpoint_name gives"):
        policy["policy"](loss, *args)


@pytest.mark.parametrize("budget", ["70%", "50%"])
def test_a_flax_model_saves_what_its_plan_keeps(tmp_path: Path, budget: str) -> None:
    pytest.importorskip("flax", reason="needs Flax: pip install flax")
    pytest.importorskip("jax2onnx", reason="needs jax2onnx: pip install jax2onnx")
    from models.runtimes.flax_save_list import run

    found = run(tmp_path, budget)
    assert (found.saved, found.others, found.equal) == (found.wanted, (), True)
