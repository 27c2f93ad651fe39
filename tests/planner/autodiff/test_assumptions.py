"""What `show` says it took for granted, and models of which nothing can be trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from ogc_plan.cli.main import main
from ogc_plan.cli.reports.explanation import explain
from ogc_plan.planner.autodiff.assumptions import parameters_of
from ogc_plan.planner.errors import ModelError, UnsupportedOpError, UsageError
from ogc_plan.planner.model import Model, load_model
from ogc_plan.planner.pipeline import plan

from tests.files.onnx_models import model, node, save


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Model]:
    """Read a model of these nodes over ``x`` of 4 x 8."""

    def loaded(
        nodes: Sequence[onnx.NodeProto], *, frozen: Sequence[str] = (), outputs: str = "y", **parts: Any
    ) -> Model:
        return load_model(save(model(nodes, {"x": (4, 8)}, outputs, **parts), tmp_path), frozen=frozen)

    return loaded


Load = Callable[..., Model]
NORM = [node("MatMul", "x w", "h"), node("BatchNormalization", "h s b m v", "y")]
NORM_WEIGHTS = {"w": (8, 8), "s": (8,), "b": (8,), "m": (8,), "v": (8,)}


class TestNothingToTrain:
    def test_a_model_without_constants(self, load: Load) -> None:
        with pytest.raises(ModelError, match="has no parameter to train: it holds no constants; inputs are data"):
            load([node("Relu", "x", "y")])

    def test_a_floating_constant_that_is_no_weight_is_named_with_the_reason(self, load: Load) -> None:
        with pytest.raises(ModelError, match=r"'d' \(float32, 8\), is input 1 of Div before any weight"):
            load([node("Div", "x d", "y")], weights={"d": (8,)})

    def test_a_gradient_that_stops_before_every_parameter_is_traced(self, load: Load) -> None:
        with pytest.raises(ModelError, match=r"reaches the only parameter of .* it stops at Equal 'end'"):
            load([node("MatMul", "x w", "h"), node("Equal", "h x", "y", node_name="end")], weights={"w": (8, 8)})

    def test_freezing_everything_is_an_option_that_cannot_be_used(self, load: Load) -> None:
        with pytest.raises(UsageError, match=r'frozen "w\*" leaves not even the only parameter'):
            load([node("MatMul", "x w", "y")], weights={"w": (8, 8)}, frozen=["w*"])


@pytest.mark.parametrize("name", ["w", "t"])
def test_a_parameter_that_is_read_transposed_is_frozen_by_either_name(load: Load, name: str) -> None:
    nodes = [node("Transpose", "w", "t"), node("MatMul", "x t", "h"), node("MatMul", "h v", "y")]
    found = load(nodes, weights={"w": (8, 8), "v": (8, 8)}, frozen=[name])
    assert found.training.parameter_gradient_nbytes == 8 * 8 * 4


class TestParameters:
    def test_running_statistics_are_distinguished_from_weights_with_the_reason(self, load: Load) -> None:
        found = load(NORM, weights=NORM_WEIGHTS)
        assert found.graph is not None
        told = parameters_of(found.graph, found.training, ())
        assert (told.count, told.elements, {leaf.name: leaf.reason for leaf in told.others}) == (
            3,
            80,
            {
                name: f"is a running {what}, which training updates without a gradient"
                for name, what in (("m", "mean"), ("v", "variance"))
            },
        )

    def test_what_the_exporter_recorded_is_counted_apart(self, tmp_path: Path) -> None:
        proto = model(
            [node("MatMul", "x u", "h"), node("Add", "h w", "y")], {"x": (4, 8)}, weights={"u": (8, 8), "w": (8,)}
        )
        entry = proto.graph.initializer[0].metadata_props.add()
        entry.key, entry.value = "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"
        found = load_model(save(proto, tmp_path))
        assert found.graph is not None
        told = parameters_of(found.graph, found.training, ())
        assert (told.count, told.recorded) == (2, 1)


class TestExplanation:
    def test_batch_norms_in_inference_form_are_said_to_train(self, load: Load) -> None:
        groups = explain(load(NORM, weights=NORM_WEIGHTS))
        assert groups["training"] == ["1 BatchNormalization in inference form is charged as in training"]

    def test_dropout_is_said_to_drop_and_to_save_its_generator(self, load: Load) -> None:
        groups = explain(load([node("MatMul", "x w", "h"), node("Dropout", "h", "y")], weights={"w": (8, 8)}))
        assert "1 Dropout at random; one that is recomputed saves 5,056 B of generator state" in groups["training"]

    def test_constants_that_are_not_trained_are_one_sentence_per_reason(self, load: Load) -> None:
        groups = explain(load(NORM, weights=NORM_WEIGHTS))
        assert [sentence.split(",")[0] for sentence in groups["not_trained"]] == [
            "m float32[8] is a running mean",
            "v float32[8] is a running variance",
        ]

    def test_the_workspace_of_a_convolution_is_an_estimate(self, tmp_path: Path) -> None:
        proto = model([node("Conv", "x w", "y")], {"x": (1, 3, 8, 8)}, weights={"w": (4, 3, 3, 3)})
        estimates = explain(load_model(save(proto, tmp_path)))["estimates"]
        assert estimates == ["workspace of 1 Conv, at most 768 B each", "times: a roofline of the device 'h200'"]

    def test_the_reserve_of_a_recurrent_op_is_an_estimate(self, tmp_path: Path) -> None:
        weights = {"w": (1, 64, 8), "r": (1, 64, 16)}
        proto = model([node("LSTM", "x w r", "y", hidden_size=16)], {"x": (3, 4, 8)}, weights=weights)
        groups = explain(load_model(save(proto, tmp_path)))
        reserve = "LSTM: its reserve is that of torch on the CPU"
        assert (groups["estimates"][0], reserve in groups.get("file", ())) == (reserve, False)

    def test_what_lies_outside_the_budget_is_reported(self, load: Load) -> None:
        told = " ".join(explain(load([node("MatMul", "x w", "y")], weights={"w": (8, 8)}))["not_counted"])
        words = ("loss computed outside", "optimizer states", "optimizer.step()", "CUDA context", "cuBLAS")
        assert [word for word in words if word not in told] == []

    def test_integer_outputs_are_said_to_start_no_gradient(self, load: Load) -> None:
        nodes = [node("MatMul", "x w", "y"), node("ArgMax", "y", "i")]
        groups = explain(load(nodes, outputs="y i", weights={"w": (8, 8)}))
        assert "none starts at 1 integer output: i" in groups["gradients"]

    def test_every_group_is_on_the_screen(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = save(model(NORM, {"x": (4, 8)}, weights=NORM_WEIGHTS), tmp_path)
        assert main(["show", str(path), "--frozen", "s"]) == 0
        labels = {line[:13].strip() for line in capsys.readouterr().out.splitlines()}
        assert {"in training", "parameters", "not trained", "frozen", "estimates", "not counted"} - labels == set()


CUT = [node("MatMul", "x big", "h"), node("Round", "h", "r", node_name="rounds"), node("Add", "r w", "y")]
CUT_WEIGHTS = {"big": (8, 8), "w": (8,)}


class TestCutOff:
    def test_an_op_that_passes_zeros_to_a_tenth_of_the_parameters_is_in_the_plan(self, load: Load) -> None:
        told = " ".join(plan(load(CUT, weights=CUT_WEIGHTS), "100%").summary().split())
        share = "8 of 72 elements of the parameters (11.11%) are trained"
        assert f'gradients stop at 1 Round ("rounds"), where at most zeros pass: {share}' in told

    @pytest.mark.parametrize("op_type", ["Floor", "Sign", "Ceil"])
    def test_it_is_refused_on_request(self, op_type: str, tmp_path: Path) -> None:
        nodes = [CUT[0], node(op_type, "h", "r"), CUT[2]]
        path = save(model(nodes, {"x": (4, 8)}, weights=CUT_WEIGHTS), tmp_path)
        with pytest.raises(UnsupportedOpError, match=f"gradients stop at 1 {op_type}"):
            load_model(path, strict=True)

    def test_integers_stop_a_gradient(self, load: Load) -> None:
        nodes = [CUT[0], node("Cast", "h", "i", to=7), node("Cast", "i", "r", to=1), CUT[2]]
        assert load(nodes, weights=CUT_WEIGHTS).training.assumed[0].startswith("gradients stop at 1 Cast")

    def test_a_parameter_that_is_reached_another_way_is_not_cut_off(self, load: Load) -> None:
        nodes = [*CUT[:2], node("Add", "r h", "s"), node("Add", "s w", "y")]
        assert load(nodes, weights=CUT_WEIGHTS).training.assumed == ()

    def test_a_tenth_and_less_is_not_reported(self, load: Load) -> None:
        nodes = [node("Mul", "x g", "m"), node("Round", "m", "r"), node("MatMul", "r big", "y")]
        assert load(nodes, weights={"big": (8, 9), "g": (8,)}).training.assumed == ()

    def test_what_is_frozen_is_not_missed(self, tmp_path: Path) -> None:
        path = save(model(CUT, {"x": (4, 8)}, weights=CUT_WEIGHTS), tmp_path)
        assert load_model(path, frozen=["big"], strict=True).training.assumed == ()

    def test_the_command_line_refuses_it_with_the_code_of_unsupported_ops(self, tmp_path: Path) -> None:
        path = save(model(CUT, {"x": (4, 8)}, weights=CUT_WEIGHTS), tmp_path)
        assert main([str(path), "--budget", "100%", "--strict"]) == 4
