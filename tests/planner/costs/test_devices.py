"""The devices that are built in, and the file that describes another one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.planner import Device, load_model, plan, read_device, verify
from ogc_plan.planner.costs.devices import DEVICES, SPEC_EXAMPLE, device_named
from ogc_plan.planner.errors import OgcPlanError, StorageError, UsageError

from tests.files.onnx_files import write_perceptron

SPEC = json.loads(SPEC_EXAMPLE)


def written(folder: Path, **changes: Any) -> Path:
    """A specification with some of its keys changed; ``...`` takes a key away."""
    data = {key: value for key, value in {**SPEC, **changes}.items() if value is not ...}
    path = folder / "device.json"
    path.write_text(json.dumps(data))
    return path


def test_every_device_names_the_document_with_its_figures() -> None:
    assert [name for name, device in DEVICES.items() if not device.source] == []


def test_16_bit_products_are_never_slower_than_32_bit_ones() -> None:
    assert [name for name, device in DEVICES.items() if device.float16_tflops < device.float32_tflops] == []


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        device_named("abacus")
    assert [name for name in DEVICES if name not in caught.value.remedy] == []


def test_a_specification_is_read(tmp_path: Path) -> None:
    assert read_device(written(tmp_path)) == Device("mine", 30.3, 121.0, 300.0, 3000)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"colour": "red"}, 'unknown key "colour"'),
        ({"float32_tflops": ...}, 'lacks "float32_tflops"'),
        ({"float32_tflops": -1}, '"float32_tflops" is -1'),
        ({"float16_tflops": 0}, '"float16_tflops" is 0'),
        ({"bandwidth_gbps": float("nan")}, '"bandwidth_gbps" is nan'),
        ({"bandwidth_gbps": 1e300}, '"bandwidth_gbps" is 1e+300'),
        ({"bandwidth_gbps": 10**400}, '"bandwidth_gbps" is a number of 1329 bits'),
        ({"bandwidth_gbps": "300"}, '"bandwidth_gbps" is text'),
        ({"launch_ns": True}, '"launch_ns" is a truth value'),
        ({"launch_ns": 0.5}, "in whole ns"),
        ({"name": 5}, '"name" is a number'),
        ({"name": "a\nb"}, "cannot name a device"),
        ({"name": "x" * 61}, "cannot name a device"),
        ({"name": "measured"}, "cannot name a device"),
        ({"name": "h200"}, "built-in device 'h200' other figures"),
    ],
)
def test_what_is_no_device_is_refused_with_the_key_and_the_value(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_device(written(tmp_path, **changes))
    assert (says in str(caught.value), "\n" in str(caught.value), bool(caught.value.remedy)) == (True, False, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ("[1]", "holds a list"),
        ('{"name": "a", "name": "b"}', '"name" is given twice'),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "device.json").write_text(text)
    with pytest.raises(UsageError, match=says):
        read_device(tmp_path / "device.json")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "device.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_device(tmp_path / "device.json")


@given(st.binary(max_size=60) | st.recursive(st.none() | st.floats() | st.text(max_size=9), st.lists).map(
    lambda value: json.dumps(value).encode()
))  # fmt: skip
def test_any_file_is_a_device_or_one_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "device.json"
    path.write_bytes(content)
    with pytest.raises(OgcPlanError):
        read_device(path)


@pytest.mark.parametrize("name", ["absent.json", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_a_storage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="device file"):
        read_device(f"{tmp_path}/{name}")


def test_a_model_is_timed_for_a_device_of_ones_own(tmp_path: Path) -> None:
    path = write_perceptron(tmp_path / "model.onnx")
    slow = replace(DEVICES["t4"], name="slow", launch_ns=10**6)
    times = [load_model(path, dims={"batch": 64}, device=device).store_all().time_ns for device in ("t4", slow)]
    assert times[1] > 10 * times[0]


def test_a_plan_for_a_device_of_ones_own_names_it_and_replays(tmp_path: Path) -> None:
    path = write_perceptron(tmp_path / "model.onnx")
    made = plan(load_model(path, dims={"batch": 64}, device=read_device(written(tmp_path))), "100%", strategy="greedy")
    assert (made.time.source, made.budget.device, bool(verify(made))) == ("roofline:mine", "mine", True)
