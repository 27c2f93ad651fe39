"""The networks trained within budgets: what they are, how budgets fall, and what the table says of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.fidelity import networks as network_fidelity
from models.fidelity.__main__ import main
from models.fidelity.executor import Measured, Pair, Peaks, Row, examine, run_eager
from models.fidelity.network_cases import NETWORKS, bert_case, lstm_case, t5_case
from models.fidelity.networks import examined, failed, falling_budgets, kernels, peaks_rise
from models.fidelity.tables import NAMES, overview, report
from models.networks.bert import BertConfig
from models.networks.lstm import LSTMConfig
from models.networks.t5 import T5Config
from models.training.cases import Case, Supervised

BERT = bert_case(BertConfig(vocabulary=32, context=16, layers=2, heads=2, width=16, hidden=32), 2)
T5 = t5_case(T5Config(vocabulary=32, layers=1, heads=2, size=8, width=16, hidden=32), 2, 12, 8)
LSTM = lstm_case("lstm", LSTMConfig(vocabulary=32, width=8, units=8), 2, 4, onednn=False)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors here are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The cases


def on_meta(case: Case) -> Supervised:
    with torch.device("meta"):
        return case.build()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_case_is_built_for_training_with_its_loss_inside(name: str) -> None:
    module = on_meta(NETWORKS[name])
    assert (module.training, module(*NETWORKS[name].arguments(0, "meta")).shape) == (True, ())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_seed_gives_the_same_inputs_each_time_and_another_seed_others(name: str) -> None:
    inputs = NETWORKS[name].inputs
    same = [torch.equal(one, other) for one, other in zip(inputs(3), inputs(3), strict=True)]
    differ = [not torch.equal(one, other) for one, other in zip(inputs(3), inputs(4), strict=True)]
    assert (all(same), any(differ)) == (True, True)


def test_there_are_ten_networks_and_two_lstms_and_each_has_a_name_in_the_tables() -> None:
    assert (len(NETWORKS), set(NAMES)) == (12, set(NETWORKS))


def test_one_lstm_alone_is_without_onednn_and_runs_so() -> None:
    assert [name for name, case in NETWORKS.items() if not case.onednn] == ["lstm"]
    with kernels(LSTM):
        assert not torch.backends.mkldnn.enabled


# Budgets that fall


def test_budgets_fall_evenly_from_the_one_peak_to_the_other() -> None:
    assert falling_budgets(1000, 100, 4) == [1000, 700, 400, 100]


def peak(nbytes: int) -> Row:
    pair = Peaks(Pair(nbytes, nbytes), Pair(nbytes, nbytes))
    measured = Measured(pair, pair, pair, pair)
    return replace(Row("bert", f"{nbytes}B", "export", 0.0), measured=measured)


def test_a_peak_above_that_of_a_larger_budget_alone_is_named() -> None:
    assert peaks_rise([peak(9), peak(7), peak(7), peak(3)]) == ()
    assert peaks_rise([peak(9), peak(3), peak(4)]) == ("at 4B the peak is 4 B, above 3 B at 3B",)


# A network examined


@pytest.mark.parametrize("case", [T5, LSTM], ids=["two inputs", "lstm"])
def test_a_planned_network_trains_as_eager_does_within_its_budget(case: Case) -> None:
    with kernels(case):
        eager = run_eager(case, 2, "cpu")
        row = examine(case, "60%", eager, steps=2, rounds=0, device="cpu")
    assert (row.infeasible, row.failures, row.equal["step 2"].everything) == (None, (), True)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """A tiny BERT at two budgets and three falling ones."""
    return examined(BERT, 2, budgets=("60%", "1%"), count=3)


def test_an_examined_network_is_as_it_should_be(found: dict[str, Any]) -> None:
    assert (found["repeats"], failed(found), len(found["falling"])) == (True, False, 3)


def test_a_falling_budget_is_kept_and_trains_as_eager_does(found: dict[str, Any]) -> None:
    rows = found["falling"]
    excess = [row["measured"]["allocator"]["activations"]["measured_nbytes"] - row["budget_nbytes"] for row in rows]
    unequal = [row["equal"]["step 1"] for row in rows if not row["equal"]["step 1"]["gradients"]]
    assert (max(excess) <= 0, unequal) == (True, [])


def test_the_overview_says_of_each_budget_what_was_measured_or_what_is_impossible(found: dict[str, Any]) -> None:
    line = overview({"bert": found}).splitlines()[-1]
    assert ("equal" in line, "impossible, floor" in line, "3, never rises" in line) == (True, True, True)


def test_the_report_names_what_is_not_as_it_should_be(found: dict[str, Any]) -> None:
    wrong = deepcopy(found)
    wrong["rows"][0]["failures"] = ["gradients unequal after step 1"]
    wrong["falling"][0]["equal"]["step 1"]["gradients"] = False
    told = report({"bert": wrong})
    assert ("- BERT style at 60%: gradients unequal after step 1" in told, "UNEQUAL" in told) == (True, True)


def test_the_command_ends_with_1_where_a_peak_rises(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_fidelity, "examined", lambda *_: found | {"rises": ["at 1B ..."]})
    code = main(["networks", "--only", "bert", "-o", str(tmp_path / "x.json"), "--steps", "2"])
    assert (code, (tmp_path / "x.md").exists()) == (1, True)
