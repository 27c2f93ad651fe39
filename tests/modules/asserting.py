"""A module with an assertion; pytest would rewrite it in a file of tests."""

from __future__ import annotations

from torch import Tensor, nn


class Checked(nn.Linear):
    """Asserts of its result what eager training asserts: no number is missing, and the largest is small."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        assert not y.isnan().any()
        assert y.max() < 100, "too large"
        return y.square().sum()
