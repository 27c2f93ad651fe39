"""An LSTM that oneDNN runs as one call a layer: the bits, peaks and plans of any other module."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from ogc_plan.adapters.pytorch import plan_of, within_budget
from ogc_plan.adapters.pytorch.binding.bound_module import runner_of
from torch import Tensor, nn

from tests.modules.torch_training import measured, planned, predicted, train

TOKENS = (torch.randint(0, 20, (4, 12), generator=torch.Generator().manual_seed(0)),)
LAYERS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "both directions": {"bidirectional": True},
    "no bias": {"bias": False, "batch_first": True},
    "two layers with dropout": {"num_layers": 2, "dropout": 0.3, "batch_first": True},
}


class Tagger(nn.Module):
    """An embedding, an LSTM and a classifier, with the last cell in the loss: [4, 12] -> []."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.lstm = nn.Embedding(20, 8), nn.LSTM(8, 16, **options)
        self.classes = nn.Linear(16 * (1 + self.lstm.bidirectional), 4)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, (_, cell) = self.lstm(self.embedding(tokens))
        return self.classes(hidden).square().mean() + cell.sum()


@pytest.mark.parametrize("name", LAYERS)
class TestOneDnn:
    def test_training_is_bitwise_equal(self, name: str) -> None:
        module = Tagger(LAYERS[name])
        assert train(planned(module, TOKENS, "1GB", "segments:2"), TOKENS, steps=3) == train(module, TOKENS, steps=3)

    def test_the_measured_peaks_are_the_predicted_ones(self, name: str) -> None:
        trained = planned(Tagger(LAYERS[name]), TOKENS, "1GB", "segments:2")
        assert measured(trained, TOKENS) == predicted(trained)

    def test_each_layer_runs_as_one_call(self, name: str) -> None:
        source = runner_of(planned(Tagger(LAYERS[name]), TOKENS)).executor.program.forward_source
        layers = int(LAYERS[name].get("num_layers", 1)) * (1 + bool(LAYERS[name].get("bidirectional")))
        assert source.count("mkldnn_rnn_layer_default(") + source.count("_rnn_layer_in_training(") == layers


def test_the_workspace_of_an_lstm_can_be_measured() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained = within_budget(Tagger({}), TOKENS, budget="100%")
    assert plan_of(trained).peak.activation_nbytes >= predicted(trained)[1]
