"""Modules of whole files: inference as ONNX Runtime has it, training within a budget, weights written back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from ogc_plan.adapters.pytorch import OnnxModule, from_onnx, plan_of, to_onnx, within_budget
from ogc_plan.planner.errors import InvalidModelError, PlanMismatchError, UnsupportedOpError, UsageError
from onnx import helper, numpy_helper
from torch import Tensor, nn

from models.light import light_path
from models.meters.step_meters import by_allocator, by_storages, clear_gradients
from tests.files.onnx_models import model, node

pytestmark = pytest.mark.values


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


def convolutions(folder: Path, depth: int = 6) -> Path:
    """Convolutions with batch norms, and a head."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], list[onnx.TensorProto](), "x"

    def weight(name: str, array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    for at in range(depth):
        kernel = weight(f"layer{at}.weight", random.normal(size=(8, 8, 3, 3)) * 0.1)
        norm = [weight(f"layer{at}.norm.{k}", np.ones(8)) for k in ("scale", "bias", "mean", "variance")]
        nodes += [
            node("Conv", f"{last} {kernel}", f"c{at}", pads=[1, 1, 1, 1]),
            node("BatchNormalization", " ".join([f"c{at}", *norm]), f"n{at}", momentum=0.75),
            node("Relu", f"n{at}", f"r{at}"),
        ]
        last = f"r{at}"
    nodes += [node("GlobalAveragePool", last, "pooled"), node("Flatten", "pooled", "flat")]
    weight("head", random.normal(size=(8, 4)))
    nodes.append(node("MatMul", "flat head", "y"))
    inputs = [helper.make_tensor_value_info("x", 1, ("N", 8, 16, 16))]
    outputs = [helper.make_tensor_value_info("y", 1, ("N", 4))]
    graph = helper.make_graph(nodes, "net", inputs, outputs, weights)
    return saved(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder)


def in_onnx_runtime(path: Path, **given: Tensor) -> list[np.ndarray]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, {name: value.numpy() for name, value in given.items()}))


def with_weights(path: Path, folder: Path) -> Path:
    """A network of the onnx package, whose weights are all one number, with random ones."""
    proto, random = onnx.load(path), np.random.default_rng(0)
    sizes = {entry.name: numpy_helper.to_array(entry) for entry in proto.graph.initializer}
    made = [entry for entry in proto.graph.node if entry.op_type == "ConstantOfShape"]
    for entry in made:
        shape = tuple(sizes[entry.input[0]])
        spread = (
            random.normal(size=shape) * (2 / np.prod(shape[1:])) ** 0.5
            if len(shape) > 1
            else random.uniform(0.5, 1, shape)
        )
        proto.graph.initializer.append(numpy_helper.from_array(spread.astype(np.float32), entry.output[0]))
        proto.graph.node.remove(entry)
    return saved(proto, folder)


@pytest.mark.parametrize("name", ["squeezenet", "densenet121"])
def test_a_network_gives_what_onnx_runtime_gives(name: str, tmp_path: Path) -> None:
    path = with_weights(light_path(name), tmp_path)
    module = from_onnx(path).eval()
    (entry,), (shape,) = module.input_names, module.input_shapes
    given = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made = module(given)
    np.testing.assert_allclose(made, in_onnx_runtime(path, **{entry: given})[0], rtol=1e-4, atol=1e-5)


def test_a_value_is_freed_after_its_last_use(tmp_path: Path) -> None:
    names = ["x", *"abcdefgh", "y"]
    chain = [node("Neg", *pair) for pair in pairwise(names)]
    proto = model([*chain, node("MatMul", "x w", "z")], {"x": (1000,)}, "y z", weights={"w": (1000,)})
    module, given = from_onnx(saved(proto, tmp_path)), torch.zeros(1000)
    assert by_storages(lambda: module(given), module, (given,)).activation_nbytes < 3 * given.nbytes


def test_parameters_keep_their_names_and_statistics_are_buffers(tmp_path: Path) -> None:
    module = from_onnx(convolutions(tmp_path, 1), batch=2)
    assert (dict(module.named_parameters()).keys(), dict(module.named_buffers()).keys()) == (
        {"layer0.weight", "layer0.norm.scale", "layer0.norm.bias", "head"},
        {"layer0.norm.mean", "layer0.norm.variance"},
    )


def bits(module: nn.Module, given: Tensor) -> list[Tensor]:
    """The loss, the gradients and the buffers after one step."""
    loss = module(given).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None), *module.buffers()]


def test_a_step_within_a_budget_has_the_bits_of_a_step_without(tmp_path: Path) -> None:
    given = torch.randn(4, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    plain = from_onnx(convolutions(tmp_path), batch=4)
    bound = within_budget(copy.deepcopy(plain), (given,), budget="60%", device="a100")
    for mine, theirs in zip(bits(bound, given), bits(plain, given), strict=True):
        assert torch.equal(mine, theirs)


def test_a_step_within_a_budget_holds_fewer_bytes(tmp_path: Path) -> None:
    given = torch.randn(4, 8, 16, 16)
    plain = from_onnx(convolutions(tmp_path), batch=4)
    bound = within_budget(copy.deepcopy(plain), (given,), budget="60%", device="a100")

    def peak(module: nn.Module) -> int:
        clear_gradients(module, (given,))
        return by_allocator(lambda: module(given).square().sum().backward(), module, (given,)).activation_nbytes

    assert peak(bound) <= plan_of(bound).peak.activation_nbytes < peak(plain)


def test_statistics_move_once_by_the_momentum_of_the_file(tmp_path: Path) -> None:
    given = torch.randn(4, 8, 16, 16)
    module = from_onnx(convolutions(tmp_path, 1), batch=4)
    made = nn.functional.conv2d(given, module.get_parameter("layer0.weight"), padding=1)
    bound = within_budget(module, (given,), budget="100%", device="a100")
    bound(given).sum().backward()
    expected = 0.75 + 0.25 * made.mean((0, 2, 3))
    torch.testing.assert_close(module.get_buffer("layer0.norm.mean"), expected)


def test_a_weight_that_two_nodes_read_is_one_parameter(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("MatMul", "r w", "y")], {"x": (2, 4)},
                  weights={"w": (4, 4)})  # fmt: skip
    module = from_onnx(saved(proto, tmp_path))
    assert [name for name, _ in module.named_parameters()] == ["w"]


def test_trained_weights_go_back_into_the_file_and_nothing_else_changes(tmp_path: Path) -> None:
    path = convolutions(tmp_path, 2)
    module = from_onnx(path, batch=2)
    with torch.no_grad():
        module.get_parameter("layer1.weight").add_(1)
    to_onnx(module, tmp_path / "trained.onnx")
    before, after = onnx.load(path), onnx.load(tmp_path / "trained.onnx")
    stored = next(entry for entry in before.graph.initializer if entry.name == "layer1.weight")
    stored.raw_data = module.get_parameter("layer1.weight").detach().numpy().tobytes()
    assert after.SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)


def test_onnx_runtime_runs_the_weights_that_were_written(tmp_path: Path) -> None:
    module = from_onnx(convolutions(tmp_path, 2), batch=2)
    given = torch.randn(2, 8, 16, 16)
    module(given).sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    to_onnx(module, tmp_path / "trained.onnx")
    with torch.no_grad():
        made = module.eval()(given)
    np.testing.assert_allclose(made, in_onnx_runtime(tmp_path / "trained.onnx", x=given)[0], rtol=1e-4, atol=1e-5)


def test_a_file_that_changed_since_it_was_read_takes_no_weights(tmp_path: Path) -> None:
    module = from_onnx(convolutions(tmp_path, 1), batch=2)
    convolutions(tmp_path, 2)
    with pytest.raises(PlanMismatchError, match="has changed since it was read"):
        to_onnx(module, tmp_path / "trained.onnx")


class TestWeightsBesideTheFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        inside = convolutions(tmp_path, 2)
        onnx.save(onnx.load(inside), inside, save_as_external_data=True, size_threshold=0, location="weights")
        return inside

    @pytest.fixture
    def trained(self, path: Path) -> OnnxModule:
        module = from_onnx(path, batch=2)
        with torch.no_grad():
            for name in ("head", "layer1.weight"):
                module.get_parameter(name).add_(1)
        return module

    def test_they_are_read(self, path: Path) -> None:
        head = next(entry for entry in onnx.load(path).graph.initializer if entry.name == "head")
        module = from_onnx(path, batch=2)
        np.testing.assert_array_equal(module.get_parameter("head").detach(), numpy_helper.to_array(head))

    @pytest.mark.parametrize("target", ["trained.onnx", "elsewhere/trained.onnx", "model.onnx"])
    def test_they_are_written_with_all_else_as_it_was(
        self, path: Path, trained: OnnxModule, tmp_path: Path, target: str
    ) -> None:
        wanted = onnx.load(path)
        for entry in wanted.graph.initializer:
            if entry.name in ("head", "layer1.weight"):
                entry.raw_data = trained.get_parameter(entry.name).detach().numpy().tobytes()
        (tmp_path / target).parent.mkdir(exist_ok=True)
        to_onnx(trained, tmp_path / target)
        written = onnx.load(tmp_path / target)
        assert written.SerializeToString(deterministic=True) == wanted.SerializeToString(deterministic=True)

    def test_another_target_leaves_the_first_file_as_it_was(
        self, path: Path, trained: OnnxModule, tmp_path: Path
    ) -> None:
        before = path.read_bytes(), (tmp_path / "weights").read_bytes()
        to_onnx(trained, tmp_path / "trained.onnx")
        assert (path.read_bytes(), (tmp_path / "weights").read_bytes()) == before

    def test_weights_that_another_file_of_the_folder_reads_stay(self, path: Path, tmp_path: Path) -> None:
        moved = tmp_path / "moved.onnx"
        onnx.save(onnx.load(path), path, save_as_external_data=True, size_threshold=0, location="model.onnx.data")
        path.rename(moved)
        module, before = from_onnx(moved, batch=2), (tmp_path / "model.onnx.data").read_bytes()
        with torch.no_grad():
            module.get_parameter("head").add_(1)
        to_onnx(module, path)
        assert (tmp_path / "model.onnx.data").read_bytes() == before

    @pytest.mark.parametrize("location", ["../secret", "/etc/hostname", ""])
    def test_a_file_outside_of_the_folder_is_not_copied(self, tmp_path: Path, location: str) -> None:
        """A weight that nothing reads is not looked at before."""
        proto = onnx.load(convolutions(tmp_path, 1))
        unread = proto.graph.initializer.add(name="unread", data_type=1, dims=[1], data_location=1)
        unread.external_data.add(key="location", value=location)
        (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
        module = from_onnx(tmp_path / "model.onnx", batch=2)
        with pytest.raises(InvalidModelError, match="no file in its folder"):
            to_onnx(module, tmp_path / "trained.onnx")

    def test_the_file_of_the_weights_is_no_target(self, trained: OnnxModule, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"holds weights of 'model\.onnx'"):
            to_onnx(trained, tmp_path / "weights")

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_a_module_that_was_cast_is_written_in_the_type_of_the_file(
        self, path: Path, tmp_path: Path, dtype: torch.dtype
    ) -> None:
        module = from_onnx(path, batch=2)
        wanted = module.get_parameter("head").detach().to(dtype).float()
        to_onnx(module.to(dtype), tmp_path / "cast.onnx")
        head = next(entry for entry in onnx.load(tmp_path / "cast.onnx").graph.initializer if entry.name == "head")
        np.testing.assert_array_equal(numpy_helper.to_array(head), wanted)

    def test_a_target_elsewhere_has_its_weights_beside_it(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        to_onnx(from_onnx(path, batch=2), tmp_path / "elsewhere" / "same.onnx")
        assert (tmp_path / "elsewhere" / "same.onnx.data").read_bytes() == (tmp_path / "weights").read_bytes()


def test_an_op_that_torch_does_not_run_is_refused_by_its_node(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "h"), node("Unique", "h", "y")], {"x": (2, 4)}, weights={"w": (4, 4)})
    proto.graph.node[1].name = "the last"
    with pytest.raises(UnsupportedOpError, match=r'node "the last" \(Unique\) cannot be run by torch') as refusal:
        from_onnx(saved(proto, tmp_path), inputs={"y": (8,)})
    assert refusal.value.exit_code == 4


@pytest.mark.parametrize("rows", [np.ones((2, 4)), np.arange(8).reshape(2, 4)], ids=["equal", "different"])
def test_a_constant_with_the_batch_follows_another_one_only_if_its_rows_are_equal(
    rows: np.ndarray, tmp_path: Path
) -> None:
    proto = model([node("MatMul", "x w", "h"), node("Concat", "h c", "y", axis=1)], {"x": (2, 4)},
                  weights={"w": (4, 4)}, constants={"c": rows.astype(np.float32)})  # fmt: skip
    path = saved(proto, tmp_path)
    if (rows == rows[0]).all():
        assert from_onnx(path, batch=3)(torch.zeros(3, 4)).shape == (3, 8)
        return
    with pytest.raises(UnsupportedOpError, match='constant "c" has 2 different entries along dimension 0'):
        from_onnx(path, batch=3)


def test_arguments_of_other_shapes_are_refused(tmp_path: Path) -> None:
    module = from_onnx(convolutions(tmp_path, 1), batch=2)
    with pytest.raises(UsageError, match=r"takes x \(2, 8, 16, 16\), not \(3, 8, 16, 16\)"):
        module(torch.zeros(3, 8, 16, 16))


def of_torch(
    make: Callable[[], nn.Module], given: Tensor, folder: Path, **options: Any
) -> tuple[nn.Module, OnnxModule]:
    torch.manual_seed(0)
    module = make().eval()
    torch.onnx.export(module, (given,), folder / "model.onnx", verbose=False, **options)
    return module, from_onnx(folder / "model.onnx").eval()


class _Block(nn.Module):
    """Attention, layer norms, GELU: what the reader reads as fused calls."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.first, self.second = nn.LayerNorm(16, eps=1e-3), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x)), approximate="tanh"))


@pytest.mark.parametrize("options", [{"dynamo": False}, {"dynamo": True, "optimize": False}], ids=["old", "new"])
def test_a_transformer_block_of_torch_comes_back(options: dict[str, Any], tmp_path: Path) -> None:
    tokens = torch.randint(0, 11, (2, 6))
    block, module = of_torch(_Block, tokens, tmp_path, opset_version=18, **options)
    torch.testing.assert_close(module(tokens), block(tokens), rtol=1e-4, atol=1e-5)


def test_a_loss_of_class_probabilities_is_that_of_torch(tmp_path: Path) -> None:
    loss = model([node("SoftmaxCrossEntropyLoss", "x p", "y")], {"x": [4, 3, 5], "p": [4, 3, 5]})
    x, likely = torch.randn(4, 3, 5), torch.rand(4, 3, 5)
    assert torch.equal(from_onnx(saved(loss, tmp_path))(x, likely), nn.functional.cross_entropy(x, likely))


class TestPickled:
    @pytest.fixture
    def module(self, tmp_path: Path) -> OnnxModule:
        module = from_onnx(convolutions(tmp_path, 2), batch=2)
        with torch.no_grad():
            module.get_parameter("head").add_(1)
        return module

    def test_a_module_has_its_weights_and_computes_the_same(self, module: OnnxModule) -> None:
        given = torch.randn(2, 8, 16, 16)
        again = pickle.loads(pickle.dumps(module))
        assert torch.equal(again(given), module(given))

    def test_a_planned_module_trains_on(self, module: OnnxModule) -> None:
        given = torch.randn(2, 8, 16, 16)
        planned = within_budget(copy.deepcopy(module), (given,), budget="90%", device="a100")
        pairs = zip(bits(pickle.loads(pickle.dumps(planned)), given), bits(module, given), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)

    def test_a_file_that_changed_is_told(self, module: OnnxModule) -> None:
        pickled = pickle.dumps(module)
        convolutions(module.onnx_file.parent, 3)
        with pytest.raises(PlanMismatchError, match="has changed since the module was pickled"):
            pickle.loads(pickled)

    def test_another_working_directory_finds_the_file(
        self, module: OnnxModule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(module.onnx_file.parent)
        pickled = pickle.dumps(from_onnx(module.onnx_file.name, batch=2))
        monkeypatch.chdir("/")
        assert pickle.loads(pickled).onnx_sha256 == module.onnx_sha256
