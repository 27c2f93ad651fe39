"""Loops and library calls compute functions and sums in the forms of the plain step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from ogc_plan.adapters.inductor import budget, torch_private
from ogc_plan.adapters.inductor.copies import read_alone, with_copies
from ogc_plan.adapters.inductor.forms import Forms, Sum
from ogc_plan.adapters.inductor.joint_graph import JointGraph, lay_inputs_out
from ogc_plan.adapters.inductor.lowering import lower_step
from ogc_plan.adapters.inductor.scheduling import compute_as
from ogc_plan.adapters.inductor.search import Search
from ogc_plan.adapters.inductor.workspace import WorkspaceMeter
from torch import Tensor, fx, nn

from tests.modules.devices import cpu_only

pytestmark = cpu_only("compiled steps of a card are refused")


class Classes(nn.Module):
    """The step that saves all it reads sums over the ten classes in vectors, the plain step row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layers(x), torch.arange(16) % 10)


class Images(nn.Module):
    """Norms over many places of few channels, whose sums threads share in some kernels."""

    def __init__(self) -> None:
        super().__init__()
        layers = [layer for inputs in (3, 8) for layer in (nn.Conv2d(inputs, 8, 1), nn.GroupNorm(2, 8), nn.ReLU())]
        self.layers = nn.Sequential(*layers, nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layers(x), torch.zeros(2, 48, 48, dtype=torch.long))


class Found(NamedTuple):
    """The forms of backwards: the plain step's, and those of another step that is left alone, and steered."""

    plain: Forms
    left_alone: Forms
    steered: Forms

    def differing(self, forms: Forms) -> set[str]:
        """What is computed otherwise than in the plain step."""
        return {name for name in forms.keys() & self.plain.keys() if not forms[name] <= self.plain[name]}


class Lowers(torch_private.Partitioner):
    """Lowers three steps of a joint graph, and stops the compilation."""

    found: Found

    def __init__(self, saved: Callable[[JointGraph], list[fx.Node]]) -> None:
        self.saved = saved

    def __call__(
        self, graph_module: fx.GraphModule, joint_inputs: object, *, num_fwd_outputs: int, **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """No graphs."""
        joint = JointGraph(graph_module, num_fwd_outputs, options.get("static_lifetime_input_indices") or ())
        plain = Search(joint, WorkspaceMeter()).plain
        forms = {**plain.ahead.forms, **plain.back.forms}
        saved = joint.with_sums(self.saved(joint))
        forward, backward = joint.cut(saved)
        again = [node.name for node in joint.again(saved)]
        entries = read_alone(backward, frozenset(again), {node.name for node in joint.costly})
        if entries:
            backward, _ = with_copies(backward, again, entries)
        left_alone = lower_step(forward, backward, joint.outputs, joint.static)[1].forms
        lay_inputs_out(forward, backward, forms)
        compute_as(backward, forms)
        self.found = Found(forms, left_alone, lower_step(forward, backward, joint.outputs, joint.static)[1].forms)
        raise NotImplementedError


def found(
    module: nn.Module, *arguments: Tensor, saved: Callable[[JointGraph], list[fx.Node]] = JointGraph.read_later
) -> Found:
    torch._dynamo.reset()
    torch.manual_seed(0)
    made = Lowers(saved)
    step = torch.compile(module, options=budget("min") | {"custom_partitioner_fn": made}, dynamic=False)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        step(*arguments)
    return made.found


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def classes() -> Found:
    return found(Classes(), torch.randn(16, 32))


@pytest.fixture
def images(two_threads: None) -> Found:
    return found(Images(), torch.randn(2, 3, 48, 48), saved=lambda joint: joint.cuts_for(())[0])


def gradients(options: dict[str, Any]) -> list[Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = Images()
    torch.compile(module, options=options, dynamic=False)(torch.randn(2, 3, 48, 48)).backward()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def test_a_sum_along_the_lanes_of_vectors_is_told_from_the_plain_steps(classes: Found) -> None:
    assert [form.along_vectors for form in classes.left_alone["sum_4"] if isinstance(form, Sum)] == [True]


def test_it_is_summed_as_in_the_plain_step(classes: Found) -> None:
    assert "sum_4" not in classes.differing(classes.steered)


def test_functions_shared_sums_and_layouts_are_told_from_the_plain_steps(images: Found) -> None:
    differing = images.differing(images.left_alone)
    assert differing == {"log", "sum_5", "sum_6", "sum_11", "sum_12", "convolution_backward_2"}


def test_all_are_computed_as_in_the_plain_step(images: Found) -> None:
    assert not images.differing(images.steered)


def test_on_two_threads_the_smallest_step_has_the_plain_steps_bits(two_threads: None) -> None:
    assert all(map(torch.equal, gradients(budget("min")), gradients({})))
