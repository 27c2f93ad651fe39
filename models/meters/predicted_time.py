"""The time of a step that no device runs: every call it makes, by the roofline that the planner has its times from."""

from __future__ import annotations

from typing import Any

from ogc_plan.adapters.pytorch.step.op_work import work_of_call
from ogc_plan.planner.annotations import OpWork
from ogc_plan.planner.costs.devices import Device, device_named
from ogc_plan.planner.costs.roofline import work_costs
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from models.benchmark.network import Network
from models.meters.step_meters import clear_gradients
from models.meters.storage_meter import training_step


class RooflineClock(TorchDispatchMode):
    """Adds up the time on ``device`` of each aten call made while it is active, fake ones included.

    The planner adds up the same calls op by op, where what one call computes hides what another moves; so the sums
    differ, by little.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.time_ns = 0
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the call, then charge it."""
        result = func(*args, **(kwargs or {}))
        work = work_of_call(func, args, kwargs or {}, result)
        (cost,) = work_costs([OpWork(work.flops, work.traffic_nbytes, work.kernels, half=work.half)], self._device)
        self.time_ns += cost.forward_ns
        return result


def predicted_s(network: Network, module: nn.Module) -> float | None:
    """Seconds of the calls of one step of ``module``, the network itself or a variant of it; None on a real device.

    The device is the one whose roofline the network is planned with.
    """
    if not network.place.fake or network.place.roofline is None:
        return None
    with network.active():
        inputs = network.arguments()
        clear_gradients(module, ())
        with RooflineClock(device_named(network.place.roofline)) as clock:
            training_step(module, inputs)
    return clock.time_ns / 1e9
