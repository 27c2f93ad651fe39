"""The windows of convolutions and pooling: kernel, steps, and the pads before and after each dimension."""

from __future__ import annotations

from collections.abc import Sequence

from .call_view import CallView


class Window:
    """The windows of an op whose first input has the dimensions ``size`` and whose first output has ``out``."""

    def __init__(self, at: CallView, kernel: Sequence[int]) -> None:
        count = len(kernel)
        self.kernel = tuple(kernel)
        self.size, self.out = at.shape[2:], at.out[2:]
        self.strides = tuple(at.attr("strides", (1,) * count))
        self.dilations = tuple(at.attr("dilations", (1,) * count))
        given = at.attr("pads", (0,) * (2 * count))
        self.before, self.after = list(given[:count]), list(given[count:])
        self.kind = str(at.attr("auto_pad", "NOTSET"))
        if self.kind == "VALID":
            self.before, self.after = [0] * count, [0] * count
        elif self.kind.startswith("SAME") and at.call.op_type != "ConvTranspose":
            for axis, size in enumerate(self.size):
                reach = (self.out[axis] - 1) * self.strides[axis] + self.span(axis)
                self.split(axis, max(reach - size, 0))

    def span(self, axis: int) -> int:
        """The elements from the first of a window to its last."""
        reach: int = (self.kernel[axis] - 1) * self.dilations[axis]
        return reach + 1

    def split(self, axis: int, total: int) -> None:
        """Distribute the pads of a dimension."""
        small = total // 2
        self.before[axis] = small if self.kind != "SAME_LOWER" else total - small
        self.after[axis] = total - self.before[axis]

    @property
    def pads(self) -> tuple[int, ...]:
        """The attribute of that name."""
        return (*self.before, *self.after)
