"""`ogc-plan devices`: the devices that have a roofline, and the file that describes another one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...planner.costs.devices import DEVICES, SPEC_EXAMPLE
from ...planner.display.layout import field, plain_table
from ...planner.model import DEFAULT_DEVICE
from ...planner.units import format_nbytes

if TYPE_CHECKING:
    from rich.console import Console


def describe() -> list[dict[str, Any]]:
    """The devices as JSON data: TFLOP/s, GB/s, ns and bytes; memory is null if it is not known."""
    return [{**asdict(device), "memory_nbytes": device.memory_nbytes or None} for device in DEVICES.values()]


def print_devices(out: Console, *, verbose: bool) -> None:
    """The devices as a table, with ``verbose`` also the sources of their figures."""
    table = plain_table("device", "float32", "16-bit", "bandwidth", "launch", "memory")
    for device in DEVICES.values():
        table.add_row(
            Text(device.name + (" *" if device.name == DEFAULT_DEVICE else "")),
            f"{device.float32_tflops:g}",
            f"{device.float16_tflops:g}",
            f"{device.bandwidth_gbps:g}",
            f"{device.launch_ns}",
            format_nbytes(device.memory_nbytes).replace(".00", "") if device.memory_nbytes else "",
        )
    out.print(table)
    out.print()
    for device in DEVICES.values() if verbose else ():
        field(out, device.name, device.source)
    field(out, "units", "TFLOP/s, dense (no sparsity, no TF32); bandwidth in GB/s; launch in ns per kernel")
    field(out, "*", "where neither --device nor --device-spec is given and no times were measured")
    field(out, "your own", f"--device-spec FILE, a file with: {SPEC_EXAMPLE}")
