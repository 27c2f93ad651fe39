"""A recurrent layer that cuDNN would run is refused by name; test_steps.py has those without cuDNN."""

from __future__ import annotations

import pytest
import torch
from ogc_plan.adapters.pytorch import UnsupportedModuleError, within_budget
from torch import Tensor, nn


class Tagger(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = layer, nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x)[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_in_cudnn_is_refused_by_name(kind: type[nn.Module]) -> None:
    module = Tagger(kind(16, 32)).cuda()
    with pytest.raises(UnsupportedModuleError) as refused:
        within_budget(module, (torch.ones(6, 4, 16, device="cuda"),), budget="60%")
    assert str(refused.value) == (
        f"{kind.__name__} 'encoder' of Tagger runs in cuDNN, whose recurrent layers cannot be traced; "
        "plan and train in `with torch.backends.cudnn.flags(enabled=False)`, or plan the modules around it"
    )
