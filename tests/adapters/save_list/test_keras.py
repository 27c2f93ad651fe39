"""The layers named for keras.RematScope are rematerialised, and no others; skipped where Keras or JAX is missing."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.adapters.save_list.networks import ROWS, WIDTH, emitted, write_layers

jax = pytest.importorskip("jax", reason="needs Keras on JAX: pip install jax keras")
os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras", reason="needs Keras on JAX: pip install jax keras")


def built() -> Any:
    x = y = keras.Input((WIDTH,), batch_size=ROWS)
    for i in range(4):
        y = keras.layers.Dense(WIDTH, activation="gelu", name=f"dense_{i}")(y)
    return keras.Model(x, y)


@pytest.fixture
def policy(tmp_path: Path) -> dict[str, Any]:
    return runpy.run_path(str(emitted(write_layers(tmp_path / "m.onnx", keras=True), "keras", "80%")))


def test_as_many_layers_as_are_named_are_rematerialised(policy: dict[str, Any]) -> None:
    with policy["scope"]():
        model = built()

    def loss(weights: Any, x: Any) -> Any:
        return (model.stateless_call(weights, [], x)[0] ** 2).mean()

    weights = [variable.value for variable in model.trainable_variables]
    trace = jax.make_jaxpr(loss)(weights, np.ones((ROWS, WIDTH), np.float32))
    marked = [eqn for eqn in trace.jaxpr.eqns if "checkpoint" in eqn.primitive.name or "remat" in eqn.primitive.name]
    assert len(marked) == len(policy["LAYERS"]) > 0


def test_its_check_accepts_the_model(policy: dict[str, Any]) -> None:
    with policy["scope"]():
        model = built()
    policy["check"](model)


def test_its_check_refuses_a_model_that_was_built_outside(policy: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="made outside scope"):
        policy["check"](built())


def test_its_check_refuses_a_model_without_the_layer(policy: dict[str, Any]) -> None:
    with policy["scope"]():
        x = keras.Input((WIDTH,))
        model = keras.Model(x, keras.layers.Dense(4, name="other")(x))
    with pytest.raises(ValueError, match="has no layer"):
        policy["check"](model)


def test_it_trains(policy: dict[str, Any]) -> None:
    with policy["scope"]():
        model = built()
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    losses = model.fit(x, x, epochs=3, batch_size=ROWS, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
