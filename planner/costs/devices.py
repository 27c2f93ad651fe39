"""The devices whose rooflines give times: datasheet figures by name, and those of a user's own device.

Peak rates are the vendors' dense ones, without structured sparsity. 32-bit products run at the plain float32 rate:
torch disables TF32 for matrix products by default. 16-bit products run on the matrix units with 32-bit accumulation.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from json import dumps as quoted
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..json_input import read_json

MEASURED = "measured"
"""Names the device of an annotation whose times were measured."""

PROFILED = "profile"
"""Names the device of a profile, which gives times and workspace."""

_GB = 10**9


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates: TFLOP/s for 32-bit and 16-bit floats, bandwidth in GB/s, launch overhead in ns per kernel.

    ``memory_nbytes`` is the vendor's figure, 0 if it is not known; ``source`` is the title of the public document with
    the figures.
    """

    name: str
    float32_tflops: float
    float16_tflops: float
    bandwidth_gbps: float
    launch_ns: int
    memory_nbytes: int = 0
    source: str = ""

    @property
    def is_cpu(self) -> bool:
        """Whether torch runs its CPU kernels, some of which save more than a GPU's."""
        return self.name == "cpu"


DEVICES = {
    device.name: device
    for device in (
        Device("h200", 67.0, 989.0, 4800.0, 3000, 141 * _GB, "NVIDIA H200 Tensor Core GPU Datasheet (SXM)"),
        Device("h100", 67.0, 989.0, 3350.0, 3000, 80 * _GB, "NVIDIA H100 Tensor Core GPU Datasheet (SXM)"),
        Device("h100-pcie", 51.0, 756.0, 2000.0, 3000, 80 * _GB, "NVIDIA H100 Tensor Core GPU Datasheet (PCIe)"),
        Device("b200", 80.0, 2250.0, 8000.0, 3000, 192 * _GB, "NVIDIA Blackwell Architecture Technical Brief (HGX)"),
        Device("a100", 19.5, 312.0, 2039.0, 3000, 80 * _GB, "NVIDIA A100 Tensor Core GPU Datasheet (80 GB SXM)"),
        Device("a100-80", 19.5, 312.0, 2039.0, 3000, 80 * _GB, "NVIDIA A100 Tensor Core GPU Datasheet (80 GB SXM)"),
        Device("a100-40", 19.5, 312.0, 1555.0, 3000, 40 * _GB, "NVIDIA A100 Tensor Core GPU Datasheet (40 GB)"),
        Device("a10", 31.2, 125.0, 600.0, 3000, 24 * _GB, "NVIDIA A10 Tensor Core GPU Datasheet"),
        Device("l40s", 91.6, 362.0, 864.0, 3000, 48 * _GB, "NVIDIA L40S Datasheet"),
        Device("l4", 30.3, 121.0, 300.0, 3000, 24 * _GB, "NVIDIA L4 Tensor Core GPU Datasheet"),
        Device("v100", 15.7, 125.0, 900.0, 4000, 32 * _GB, "NVIDIA V100 Tensor Core GPU Datasheet (SXM2)"),
        Device("t4", 8.1, 65.0, 320.0, 4000, 16 * _GB, "NVIDIA T4 Tensor Core GPU Datasheet"),
        Device("rtx4090", 82.6, 165.2, 1008.0, 3000, 24 * _GB, "NVIDIA Ada GPU Architecture Whitepaper"),
        Device("rtx3090", 35.6, 71.0, 936.0, 3000, 24 * _GB, "NVIDIA Ampere GA102 GPU Architecture Whitepaper"),
        Device("rtx2080ti", 13.4, 53.8, 616.0, 4000, 11 * _GB, "NVIDIA Turing GPU Architecture Whitepaper"),
        Device("mi300x", 163.4, 1307.4, 5300.0, 3000, 192 * _GB, "AMD Instinct MI300X Accelerator Data Sheet"),
        Device("cpu", 0.5, 0.5, 40.0, 1500, 0, "no document: the order of magnitude of a few desktop cores"),
    )
}

_RANGES = {
    "float32_tflops": (1e-6, 1e6),
    "float16_tflops": (1e-6, 1e6),
    "bandwidth_gbps": (1e-3, 1e6),
    "launch_ns": (0, 10**9),
}
"""The least and the greatest value of each figure: no device lies outside, and no time overflows."""

SPEC_EXAMPLE = (
    '{"name": "mine", "float32_tflops": 30.3, "float16_tflops": 121, "bandwidth_gbps": 300, "launch_ns": 3000}'
)
SPEC_REMEDY = f"write {SPEC_EXAMPLE}"
_MAX_SPEC_NBYTES = 2**20


def device_named(name: str) -> Device:
    """The device of that name. Raises UsageError for an unknown one."""
    if name not in DEVICES:
        raise UsageError(
            f"device {name!r} is unknown",
            remedy=f"choose one of {', '.join(DEVICES)}, or describe yours in a file: --device-spec FILE",
        )
    return DEVICES[name]


def read_device(path: str | os.PathLike[str]) -> Device:
    """A device from a JSON file: an object with the key name and those of the four figures of `Device`.

    Raises StorageError for a file that cannot be read, and UsageError for one that is not valid or gives a built-in
    device other figures.
    """
    where = f"--device-spec {quoted(str(path))}"
    data = read_json(Path(path), where, kind="device", most_nbytes=_MAX_SPEC_NBYTES, remedy=SPEC_REMEDY)
    if not isinstance(data, dict):
        raise UsageError(f"{where} holds {_kind(data)}, not an object", remedy=SPEC_REMEDY)
    wanted = {"name", *_RANGES}
    unknown, missing = sorted(data.keys() - wanted), sorted(wanted - data.keys())
    if unknown:
        raise UsageError(f"{where} has the unknown key {quoted(unknown[0][:80])}", remedy=SPEC_REMEDY)
    if missing:
        raise UsageError(f"{where} lacks {', '.join(map(quoted, missing))}", remedy=SPEC_REMEDY)
    name = _name(data["name"], where)
    figures: dict[str, Any] = {key: _figure(data[key], key, where) for key in _RANGES}
    device = Device(name, **figures)
    builtin = DEVICES.get(device.name)
    if builtin is not None and any(getattr(device, key) != getattr(builtin, key) for key in _RANGES):
        raise UsageError(
            f"{where} gives the built-in device {device.name!r} other figures",
            remedy="choose another name, so that a plan tells the two apart",
        )
    return builtin or device


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _name(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f'{where}: "name" is {_kind(value)}, not text', remedy=SPEC_REMEDY)
    if not 0 < len(value) <= 60 or not value.isprintable() or value != value.strip() or value in (MEASURED, PROFILED):
        raise UsageError(
            f'{where}: "name" {quoted(value[:80])} cannot name a device',
            remedy=f"write 1 to 60 printable characters, other than {MEASURED!r} and {PROFILED!r}",
        )
    return value


def _figure(value: object, key: str, where: str) -> float:
    least, greatest = _RANGES[key]
    whole = key == "launch_ns"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{where}: {quoted(key)} is {_kind(value)}, not a number", remedy=SPEC_REMEDY)
    fits = not isinstance(value, float) or math.isfinite(value)
    if not fits or not least <= value <= greatest or (whole and value != int(value)):
        shown = (
            str(value) if isinstance(value, float) or abs(value) < 10**20 else f"a number of {value.bit_length()} bits"
        )
        raise UsageError(
            f"{where}: {quoted(key)} is {shown}, outside {least:g} to {greatest:g}" + (" in whole ns" if whole else ""),
            remedy=SPEC_REMEDY,
        )
    return int(value) if whole else float(value)
