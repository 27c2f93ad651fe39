"""The generated graphs: published sizes and amounts of arithmetic, valid files, random graphs as documented."""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
from ogc_plan.planner.model import Model, load_model

from models.graphs import FAMILIES, write
from models.graphs.builder import WEIGHTS_FILE
from models.graphs.families import DAG_SEEDS, DAG_SIZES, REPEATED, main
from models.graphs.gpt import scaled, uniform
from models.graphs.layered_dag import layered_dag

PARAMETERS = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnet200": 64_666_280,
    "resnet1001": 10_327_706,
    "densenet121": 7_978_856,
    "densenet169": 14_149_480,
    "densenet201": 20_013_928,
    "inception_v3": 27_161_264,
    "nasnet_mobile": 5_289_978,
    "nasnet_large": 88_753_150,
    "darts_cifar": 3_349_342,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "gpt12": 124_439_808,
    "gpt24": 354_823_168,
    "gpt48": 1_557_611_200,
    "ddpm_cifar": 35_746_307,
    "ddpm_lsun": 113_673_219,
}
"""As the published models have them, to the last one."""

MILLIONS = {"nasnet_cifar": "3.3", "amoebanet_d": "82", "unet": "31.0"}
"""As papers and descriptions round them."""

GIGA_MULTIPLY_ADDS = {
    "resnet50": "4.09",
    "resnet101": "7.80",
    "resnet152": "11.51",
    "densenet121": "2.83",
    "densenet169": "3.36",
    "densenet201": "4.29",
    "nasnet_mobile": "0.564",
    "nasnet_large": "23.8",
    "darts_cifar": "0.528",
    "vgg16": "15.47",
    "vgg19": "19.63",
}
"""Of one image, as the published models list them: right extents and right inputs of every convolution."""

DAGS = [f"dag{nodes}_{seed}" for nodes in DAG_SIZES for seed in DAG_SEEDS]


@cache
def proto(name: str) -> onnx.ModelProto:
    return FAMILIES[name]()


@cache
def read(name: str) -> Model:
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        write(name, path)
        return load_model(path)


def shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    found = {value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in values}
    return found | {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}


def multiply_adds(model: onnx.ModelProto) -> int:
    """Of all convolutions and dense layers."""
    shape, total = shapes(model), 0
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            total += prod(shape[node.output[0]]) * prod(shape[node.input[1]][1:])
    return total


def layers(name: str) -> list[tuple[object, ...]]:
    """For each layer of a transformer the types of its ops with the shapes of what they make."""
    shape = shapes(proto(name))
    found: dict[str, list[object]] = {}
    for node in proto(name).graph.node:
        if node.name.startswith("layer"):
            entry = (node.op_type, tuple(shape[output] for output in node.output))
            found.setdefault(node.name.partition(".")[0], []).append(entry)
    return [tuple(entries) for entries in found.values()]


def rounded(number: float, like: str) -> str:
    return f"{number:.{len(like.partition('.')[2])}f}"


# The published networks


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_network_is_read_with_the_published_number_of_parameters(name: str) -> None:
    assert read(name).training.stationary.parameter_nbytes == 4 * PARAMETERS[name]


@pytest.mark.parametrize("name", MILLIONS)
def test_a_network_has_as_many_million_parameters_as_its_paper_says(name: str) -> None:
    millions = read(name).training.stationary.parameter_nbytes / 4e6
    assert rounded(millions, MILLIONS[name]) == MILLIONS[name]


def test_gpt_3_has_175_billion_parameters() -> None:
    assert rounded(read("gpt96").training.stationary.parameter_nbytes / 4e9, "175") == "175"


@pytest.mark.parametrize("name", GIGA_MULTIPLY_ADDS)
def test_an_image_costs_the_published_number_of_multiply_adds(name: str) -> None:
    giga = multiply_adds(proto(name)) / FAMILIES[name].batch / 1e9
    assert rounded(giga, GIGA_MULTIPLY_ADDS[name]) == GIGA_MULTIPLY_ADDS[name]


def test_resnet_1001_has_a_thousand_and_one_weighted_layers() -> None:
    types = Counter(node.op_type for node in proto("resnet1001").graph.node)
    shortcuts = 3
    assert types["Conv"] - shortcuts + types["Gemm"] == 1001


def test_the_transformers_of_ten_thousand_ops_have_them() -> None:
    counts = [len(read(name).training.ops) for name in ("transformer_repeated", "transformer_varied")]
    assert counts == [pytest.approx(10_000, rel=0.01)] * 2


@pytest.mark.parametrize(("name", "kinds"), [("transformer_repeated", 1), ("transformer_varied", REPEATED)])
def test_the_layers_of_a_transformer_are_all_equal_or_all_different(name: str, kinds: int) -> None:
    assert len(set(layers(name))) == kinds


def test_layers_that_would_be_equal_are_refused() -> None:
    with pytest.raises(ValueError, match="9 layers do not fit"):
        scaled(64, 9, heads=(1, 2), hidden=(64, 120))


def test_a_uniform_transformer_shares_its_width_among_the_heads() -> None:
    assert {layer.heads * layer.head_width for layer in uniform(96, 3, 2)} == {96}


# Their files


@pytest.mark.parametrize("name", FAMILIES)
def test_the_official_checker_infers_the_declared_shapes(name: str, tmp_path: Path) -> None:
    (tmp_path / WEIGHTS_FILE).touch()
    write(name, tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)


def test_no_file_is_larger_than_four_megabytes() -> None:
    assert [name for name in FAMILIES if proto(name).ByteSize() > 4_000_000] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_every_op_is_known_to_the_planner(name: str) -> None:
    exported = " BatchNormalization in inference form are charged as in training"
    assert [note for note in read(name).training.assumed if not note.endswith(exported)] == []


def test_a_name_writes_its_graph(tmp_path: Path) -> None:
    main(["unet", "-o", str(tmp_path / "unet.onnx")])
    assert (tmp_path / "unet.onnx").read_bytes() == proto("unet").SerializeToString()


def test_the_list_names_every_graph(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--list"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*FAMILIES]


# Random layered graphs


def operands(model: onnx.ModelProto) -> list[list[str]]:
    """What each node reads but weights and constants."""
    leaves = {tensor.name for tensor in model.graph.initializer}
    return [[name for name in node.input if name not in leaves] for node in model.graph.node]


@pytest.mark.parametrize("name", DAGS)
def test_a_random_graph_has_the_ops_it_is_named_for(name: str) -> None:
    assert len(read(name).training.ops) == int(name.removeprefix("dag").partition("_")[0])


@pytest.mark.parametrize("name", DAGS)
def test_everything_in_a_random_graph_is_read_until_one_output(name: str) -> None:
    graph = proto(name).graph
    consumed = {value for values in operands(proto(name)) for value in values}
    assert [node.output[0] for node in graph.node if node.output[0] not in consumed] == [graph.output[0].name]


@pytest.mark.parametrize("name", DAGS)
def test_an_op_of_a_random_graph_has_one_to_three_operands_before_the_merge(name: str) -> None:
    assert {len(values) for values in operands(proto(name))[:-4]} == {1, 2, 3}


def test_a_seed_gives_the_same_graph_again_and_another_seed_another() -> None:
    assert layered_dag(100, 7, 4).SerializeToString() == layered_dag(100, 7, 4).SerializeToString()
    assert operands(layered_dag(100, 7, 4)) != operands(layered_dag(100, 8, 4))


@pytest.mark.parametrize("what", ["bytes", "time"])
def test_sizes_and_times_of_a_random_graph_spread_over_a_factor_of_five(what: str) -> None:
    model = read("dag500_0")
    sizes = [storage.nbytes for storage in model.training.storages if storage.nbytes > 1_000_000]
    times = [cost.forward_ns for cost in model.costs if cost.forward_ns]
    low, high = np.quantile(sizes if what == "bytes" else times, (0.1, 0.9))
    assert high >= 5 * low
