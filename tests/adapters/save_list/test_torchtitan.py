"""The memory policy for torchtitan's graph trainer: its tags, and on a snapshot of its sources whole steps.

The steps run where torchtitan can be imported, its graph trainer included: from a checkout on PYTHONPATH, on a CPU.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ogc_plan.adapters.save_list.titan_policy import policy_file, save_ops, saved_calls
from ogc_plan.planner.model import load_model
from ogc_plan.planner.pipeline import plan
from ogc_plan.planner.plan_file.record import Plan

from tests.adapters.save_list.networks import command

torch = pytest.importorskip("torch")
TRAINER = "torchtitan.experiments.graph_trainer"
ROWS, WIDTH = 128, 64


def network() -> Any:
    """Residual blocks called layers.N between an embedding and an lm_head, as torchtitan's models are."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.Linear(256, WIDTH)

        def forward(self, x: Any) -> Any:
            wide = nn.functional.gelu(self.up(self.norm(x)))
            return x + self.down(nn.functional.gelu(wide))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lm_head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.layers = nn.ModuleDict({str(number): Block() for number in range(4)})

        def forward(self, x: Any) -> Any:
            x = self.embed(x)
            for layer in self.layers.values():
                x = layer(x)
            return self.lm_head(x)

    torch.manual_seed(0)
    return Network()


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    from ogc_plan.adapters.pytorch import export

    folder = tmp_path_factory.mktemp("titan")
    export(network(), (torch.randn(ROWS, WIDTH),), folder / "model.onnx")
    words = ("--budget", "60%", "--strategy", "greedy", "-q", "-o", folder / "plan.json")
    assert command(folder / "model.onnx", *words) == (0, "")
    words = ("--to", "torchtitan", "-q", "-o", folder / "policy.py")
    assert command("emit", folder / "plan.json", folder / "model.onnx", *words) == (0, "")
    return plan(load_model(folder / "model.onnx"), "60%", strategy="greedy"), folder / "policy.py"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Any]]:
    """The two names of the trainer that a policy imports; nodes are tagged in their order. Returns the registry."""
    registry: dict[str, Callable[..., Any]] = {}

    def register(key: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda function: registry.setdefault(key, function)

    def tag_sac_policy(gm: Any, *, policy_fn: Callable[[Any], Any]) -> None:
        for node in gm:
            node.meta["recompute"] = policy_fn(node)

    for name, content in (
        ("torchtitan", {}), ("torchtitan.experiments", {}), (TRAINER, {}),
        (f"{TRAINER}.memory_policy", {"tag_sac_policy": tag_sac_policy}),
        (f"{TRAINER}.registry", {"register_memory_policy": register}),
    ):  # fmt: skip
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return registry


def node_of(path: str, op_type: str) -> Any:
    target = SimpleNamespace(__name__=f"{op_type}.default", tags=())
    return SimpleNamespace(target=target, meta={"custom": {"module_fqn": path}})


def nodes_of(made: Plan, left_out: str = "") -> list[Any]:
    """The ops of a plan as nodes of the trainer's graph, but for those of the module ``left_out``."""
    paths = dict(made.modules)
    found = []
    for op in made.graph.ops:
        path = paths[made.graph.storages[op.writes[0]].name]
        if path != "lm_head" and path != left_out:
            found.append(node_of(path, op.op_type))
    return found


@pytest.mark.parametrize(("budget", "strategy"), [("60%", "greedy"), ("100%", "keep-all")])
def test_exactly_the_calls_of_the_choice_are_tagged_as_saved(
    emitted: tuple[Plan, Path], stand_in: dict[str, Callable[..., Any]], budget: str, strategy: str
) -> None:
    made = plan(load_model(emitted[1].with_name("model.onnx")), budget, strategy=strategy)
    exec(policy_file(save_ops(made)), {})
    nodes = nodes_of(made)
    stand_in["ogc_plan"](nodes, config=None)
    tagged = [
        (node.meta["custom"]["module_fqn"], node.target.__name__.partition(".")[0])
        for node in nodes
        if node.meta["recompute"].name == "MUST_SAVE"
    ]
    calls = saved_calls(save_ops(made))
    assert sorted(tagged) == sorted((path, op) for path, ops in calls.items() for op, at in ops.items() for _ in at)


def test_calls_are_counted_in_their_module(emitted: tuple[Plan, Path], stand_in: dict[str, Callable[..., Any]]) -> None:
    space: dict[str, Any] = {}
    exec(emitted[1].read_text(), space)
    space["SAVED"] = {"a": {"gelu": (1,)}}
    nodes = [node_of(path, "gelu") for path in ("a", "b", "a")]
    stand_in["ogc_plan"](nodes, config=None)
    assert [node.meta["recompute"].name == "MUST_SAVE" for node in nodes] == [False, False, True]


def test_what_a_later_layer_reads_is_saved(emitted: tuple[Plan, Path]) -> None:
    graph, always = emitted[0].graph, save_ops(emitted[0]).always
    assert {"add", "add_1", "add_2"} <= {op.name for op in graph.ops if always.issuperset(op.writes)}


def test_a_graph_without_a_saved_call_is_refused(
    emitted: tuple[Plan, Path], stand_in: dict[str, Callable[..., Any]]
) -> None:
    runpy.run_path(str(emitted[1]))
    with pytest.raises(RuntimeError, match="module 'embed' calls addmm 0 times; the plan saves call 0"):
        stand_in["ogc_plan"](nodes_of(emitted[0], left_out="embed"), config=None)


class Peak:
    """Runs a graph and counts the bytes that are no inputs, each storage once, freed after its last use."""

    def __init__(self, gm: Any) -> None:
        outer = self
        self.nbytes = 0

        class Interpreter(torch.fx.Interpreter):
            def run_node(self, node: Any) -> Any:
                result = super().run_node(node)
                values = [
                    v
                    for one in (*self.env.values(), result)
                    for v in (one if isinstance(one, (tuple, list)) else [one])
                ]
                storages = [value.untyped_storage() for value in values if isinstance(value, torch.Tensor)]
                live = {storage.data_ptr(): storage.nbytes() for storage in storages}
                given = {a.untyped_storage().data_ptr() for a in outer.args if isinstance(a, torch.Tensor)}
                outer.nbytes = max(outer.nbytes, sum(size for at, size in live.items() if at not in given))
                return result

        self.interpreter = Interpreter(gm)

    def __call__(self, *args: Any) -> Any:
        self.args = args
        return self.interpreter.run(*args)


@pytest.fixture
def trainer() -> Any:
    """The modules of the graph trainer; skipped where they cannot be imported."""
    reason = "needs torchtitan's graph trainer: a checkout of pytorch/torchtitan on PYTHONPATH"
    policy = pytest.importorskip(f"{TRAINER}.memory_policy", reason=reason, exc_type=ImportError)
    return SimpleNamespace(
        tracer=pytest.importorskip(f"{TRAINER}.make_fx_tracer"),
        common=pytest.importorskip(f"{TRAINER}.common_utils"),
        registry=policy.MEMORY_POLICY_REGISTRY,
        remat=pytest.importorskip(f"{TRAINER}.selective_activation_remat"),
    )


def step(trainer: Any, policy: str | None) -> tuple[int, list[Any]]:
    """The peak in bytes, and the loss and gradients, of one step that the trainer's passes have changed."""
    model = network()
    trainer.common.annotate_module_fqns(model)
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2))

    def forward_and_backward(x: Any, y: Any) -> list[Any]:
        loss = trainer.common.compute_annotated_loss(torch.nn.functional.mse_loss, model(x), y)
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    traced = trainer.tracer.minimal_fx_tracer(forward_and_backward, module=model)(x, y)
    if policy is not None:
        for node in traced.gm.graph.nodes:  # torch 2.13 marks sums of gradients as the loss, which hides the layers
            if node.meta.get("autograd_backward") and node.target is torch.ops.aten.add.Tensor:
                node.meta["custom"] = {}
        trainer.registry[policy](traced.gm, config=None)
        trainer.remat.selective_activation_remat_pass(traced.gm)
    peak = Peak(traced.gm)
    traced.gm.forward = peak
    results = trainer.tracer.run_traced(traced, module=model)(x, y)
    return peak.nbytes, results


def test_the_trainer_takes_the_bytes_that_were_predicted(emitted: tuple[Plan, Path], trainer: Any) -> None:
    made, policy = emitted
    runpy.run_path(str(policy))
    rounded = save_ops(made)
    held = made.graph.stationary.total_nbytes
    predicted = [rounded.unwrapped.peak_total_nbytes - held, rounded.made.peak_total_nbytes - held]
    assert [step(trainer, name)[0] for name in (None, "ogc_plan")] == predicted


def test_the_trainer_computes_the_same_bits(emitted: tuple[Plan, Path], trainer: Any) -> None:
    runpy.run_path(str(emitted[1]))
    (_, plain), (_, planned) = step(trainer, None), step(trainer, "ogc_plan")
    assert all(torch.equal(a, b) for a, b in zip(plain, planned, strict=True))
