"""One training step of small modules: the activation peak that torch reaches, against the simulated one.

Each module is run by eager torch under a meter of storages, and exported and read as a bare file. Temporaries
between kernels are simulated, scratch inside kernels is not: the meter cannot see it.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from ogc_plan.planner.autodiff.derive import derive_backward
from ogc_plan.planner.autodiff.rule_table import RULES, call_of
from ogc_plan.planner.autodiff.rules import aten_calls
from ogc_plan.planner.autodiff.rules.temporaries import temporaries_nbytes
from ogc_plan.planner.graph import ATEN_DOMAIN, Graph, View
from ogc_plan.planner.model import store_all_timeline
from ogc_plan.planner.onnx_import.reader import read_onnx
from ogc_plan.planner.training_graph import OpCost, TrainingGraph

from models.export import export_module
from models.meters.storage_meter import measure_step
from tests.modules.step_modules import BETWEEN, ON_IMAGES, build

LOSS_NBYTES = 8
"""The loss and its gradient, which a bare file does not have."""

ABOVE = {
    "clamp": "written as Max and Min, two ops",
    "reduce max": "torch lets the input go before it sums the two gradients",
    "log-sum-exp": "the same",
    "read four times": "the same",
    "variance": "written as six ops",
    "attention by einsum": "charged with a gradient laid out anew",
    "lstm": "the exporter reorders the gates of the weights inside the graph",
    "lstm, last state": "the same",
    "lstm, both directions": "the same",
    "gru": "the same, and cuDNN keeps the output",
}
"""Modules whose peak may be simulated more than a tenth above the measured one, and why."""


def simulated(graph: Graph, training: TrainingGraph) -> int:
    """Store-all activation peak with the temporaries of every op."""
    costs = []
    for planned in training.ops:
        op = graph.ops[planned.forward]
        needs = frozenset(edge.position for edge in planned.backward.gives) if planned.backward else frozenset[int]()
        between = (0, 0)
        if op.domain == ATEN_DOMAIN:
            between = aten_calls.temporaries_nbytes(call_of(op, graph, needs))
        elif op.op_type in RULES and not op.domain and op.view is View.NONE:
            between = temporaries_nbytes(call_of(op, graph, needs))
        costs.append(OpCost(0, 0, *between))
    return store_all_timeline(training, tuple(costs))[1].peak_activation_nbytes


@pytest.mark.parametrize("name", [*BETWEEN, *ON_IMAGES])
def test_a_step_is_simulated_at_or_just_above_what_torch_reaches(name: str, tmp_path: Path) -> None:
    module, inputs = build(name)
    gc.collect()
    measured = measure_step(module.train(), inputs).activations.nbytes - LOSS_NBYTES
    path = tmp_path / "module.onnx"
    path.write_bytes(export_module(build(name)[0].train(), inputs, opset=23).SerializeToString())
    graph = read_onnx(path)
    most = 1.5 if name in ABOVE else 1.1
    assert measured <= simulated(graph, derive_backward(graph)) <= most * measured


def test_the_page_counts_the_modules() -> None:
    page = (Path(__file__).resolve().parents[2] / "planner" / "README.md").read_text(encoding="utf-8")
    assert f"{len(BETWEEN) + len(ON_IMAGES)} small modules to whole steps" in page.replace("\n", " ")
