"""The reports on plans and models."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogc_plan.planner.annotations import Source
from ogc_plan.planner.display.html.page import report
from ogc_plan.planner.display.plan_report import trained_by
from ogc_plan.planner.display.timeline import BLOCKS, axis, bars, binned, phase_widths
from ogc_plan.planner.plan_file.reader import read_plan

from tests.cli.calls import GREEDY, Call
from tests.files.onnx_models import model as onnx_model
from tests.files.onnx_models import node, save


class TestReport:
    @pytest.mark.parametrize(
        ("words", "echo"),
        [
            (("3MB",), "3MB = 3.00 MB (2.86 MiB), bounds the total peak"),
            (("3MiB",), "3MiB = 3.15 MB (3.00 MiB), bounds the total peak"),
            (("70%",), "bounds the activation peak"),
            (("70%", "--scope", "total"), "bounds the total peak"),
            (("70%", "--headroom", "5%"), "kept free as headroom"),
            (("min",), "min = "),
        ],
    )
    def test_the_budget_is_echoed_once_with_what_it_bounds(
        self, run: Call, model: Path, words: tuple[str, ...], echo: str
    ) -> None:
        out = " ".join(run(model, "--dim", "batch=1024", "--budget", *words).out.split())
        assert (out.count(f"{words[0]} = "), echo in out) == (1, True)

    @pytest.mark.parametrize("columns", [60, 250])
    def test_no_line_is_wider_than_the_terminal_or_100_columns(
        self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch, columns: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, run(model, *GREEDY).out.splitlines())) <= min(columns, 100)

    @pytest.mark.parametrize(
        "words",
        [
            (*GREEDY, "MODEL"),
            ("show", "MODEL", "--dim", "batch=64"),
            ("show", "PLAN"),
            ("compare", "MODEL", "--dim", "batch=64", "--budget", "90%"),
            ("frontier", "MODEL", "--dim", "batch=64", "--budgets", "90%"),
            ("verify", "PLAN", "MODEL"),
            ("devices",),
        ],
    )
    def test_quiet_prints_no_report(self, run: Call, model: Path, plan_file: Path, words: tuple[str, ...]) -> None:
        paths = {"MODEL": model, "PLAN": plan_file}
        done = run(*(paths.get(word, word) for word in words), "-q")
        assert (done.code, done.out, done.err) == (0, "", "")

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("{}", "--budget", "100%"), r"model\.onnx, 1 op$"),
            (("{}", "--budget", "100%"), r"of 1 activation storage kept, 0 of 1 op recomputed$"),
            (("show", "{}"), r"^parameters +1 tensor, 1 element: 1 floating constant"),
        ],
    )
    def test_one_thing_has_no_plural(self, run: Call, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
        path = save(onnx_model([node("MatMul", "x w", "y")], {"x": (1, 1)}, weights={"w": (1, 1)}), tmp_path)
        assert re.search(says, run(*(word.format(path) for word in words)).out, re.MULTILINE)

    def test_the_parts_at_the_total_peak_add_up(self, run: Call, model: Path) -> None:
        data = json.loads(run(model, *GREEDY, "--optimizer", "adamw", "--format", "json").out)
        assert sum(data["at_total_peak_nbytes"].values()) == data["peak"]["total_nbytes"]

    def test_figures_at_the_peak_say_so(self, run: Call, model: Path) -> None:
        parts = re.findall(r"^  (\w+.*?)   ", run(model, *GREEDY).out, re.MULTILINE)
        assert [part for part in parts if part.endswith(" at the peak")] == [
            "parameter gradients at the peak",
            "activations at the peak",
        ]

    def test_what_is_not_covered_is_said(self, run: Call, model: Path) -> None:
        out = " ".join(run(model, *GREEDY).out.split())
        assert "a loss computed outside the model; optimizer states, " in out

    @pytest.mark.parametrize("words", ["show {}", "frontier {} --budgets 80%", "fit {} --memory 1MB --multiple-of 64"])
    def test_times_of_a_device_that_nobody_named_say_whose_they_are(self, run: Call, model: Path, words: str) -> None:
        sized = () if words.startswith("fit") else ("--dim", "batch=64")
        out = " ".join(run(*words.format(model).split(), *sized).out.split())
        assert "roofline:h200, estimated for an H200; --device NAME for another one" in out

    def test_times_of_a_named_device_need_no_advice(self, run: Call, model: Path) -> None:
        assert "timed by     roofline:a100, estimated\n" in run(model, *GREEDY, "--device", "a100").out

    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            ({}, "ogc-plan emit PLAN MODEL --to onnx, for ONNX Runtime; in PyTorch bind(from_onnx"),
            ({"assumed": ("Own: no rule, its backward is charged",)}, "nothing here: it has ops without a gradient"),
            ({"annotations": Source("torch 2", "cpu")}, ""),
        ],
    )
    def test_a_plan_of_a_bare_file_says_what_trains_it(
        self, plan_file: Path, changed: dict[str, Any], expected: str
    ) -> None:
        made = read_plan(plan_file)
        told = trained_by(replace(made, model=replace(made.model, **changed)))
        assert (told.startswith(expected), bool(told)) == (True, bool(expected))

    def test_its_report_and_its_page_say_so(self, run: Call, plan_file: Path) -> None:
        made, told = read_plan(plan_file), "in PyTorch bind(from_onnx(MODEL), PLAN, args)"
        assert (told in " ".join(run("show", plan_file).out.split()), told in report(made)) == (True, True)

    def test_verbose_names_what_is_recomputed(self, run: Call, model: Path) -> None:
        assert re.search(r"^recomputed .*(gemm|act|drop)\d", run(model, *GREEDY, "-v").out, re.MULTILINE)

    def test_the_timeline_shows_both_phases_of_both_schedules(self, run: Call, model: Path) -> None:
        lines = run(model, *GREEDY).out.splitlines()
        rows = [line for line in lines if any(block in line for block in BLOCKS[1:])]
        marker = next(line for line in lines if "┴" in line)
        assert (len(rows), "forward" in marker, "backward" in marker) == (2, True, True)

    def test_the_summary_has_no_step_lists(self, run: Call, model: Path) -> None:
        data = json.loads(run(model, *GREEDY, "--format", "json").out)
        assert not {"schedule", "timeline", "storages", "ops"} & set(data) or isinstance(data["ops"], int)


class TestEffort:
    WORDS = ("--dim", "batch=4096", "--budget", "70%")

    @pytest.mark.parametrize("effort", ["fast", "default"])
    def test_the_summary_names_it(self, run: Call, model: Path, effort: str) -> None:
        data = json.loads(run(model, *self.WORDS, "--effort", effort, "--format", "json").out)
        assert data["effort"] == effort

    @pytest.mark.parametrize(("effort", "told"), [("fast", True), ("default", False)])
    def test_the_report_tells_one_that_was_asked_for(self, run: Call, model: Path, effort: str, told: bool) -> None:
        assert ("optimal, effort fast, seed 0" in run(model, *self.WORDS, "--effort", effort).out) is told

    def test_a_search_that_the_time_limit_ended_says_so(self, run: Call, model: Path) -> None:
        out = " ".join(run(model, *self.WORDS, "--time-limit", "1ms").out.split())
        assert ("search stopped by the time limit" in out, "the time limit ended it early" in out) == (True, True)


class TestTimeline:
    @given(st.lists(st.integers(0, 2**50), min_size=1, max_size=300), st.integers(1, 120))
    def test_binning_keeps_the_peak(self, values: list[int], width: int) -> None:
        found = binned(values, width)
        assert (len(found), max(found)) == (width, max(values))

    def test_an_empty_phase_is_blank(self) -> None:
        assert bars(binned([], 5), 10) == "     "

    def test_bars_round_up_so_that_something_is_seen(self) -> None:
        assert bars([0, 1, 500, 1000], 1000) == " ▁▄█"

    @given(st.integers(0, 5000), st.integers(0, 5000), st.integers(20, 120))
    def test_the_marker_line_is_as_wide_as_the_bars(self, forward: int, backward: int, width: int) -> None:
        widths = phase_widths(forward + backward, forward, width)
        assert (sum(widths), len(axis(widths)), min(widths) > 1) == (width, width, True)


class TestShow:
    def test_a_model_is_described(self, run: Call, model: Path) -> None:
        out = run("show", model, "--dim", "batch=64").out
        words = ("Dropout 6", "parameters", "optimizer", "floor set by", "largest storages", "store-all peak")
        assert [word for word in words if word not in out] == []

    def test_verbose_lists_every_tensor(self, run: Call, model: Path) -> None:
        out = run("show", model, "--dim", "batch=64", "-v").out
        assert [name for i in range(6) for name in (f"w{i}", f"g{i}", f"r{i}") if f"  {name}  " not in out] == []

    def test_json_is_bytes(self, run: Call, model: Path) -> None:
        data = json.loads(run("show", model, "--dim", "batch=64", "--format", "json").out)
        assert (data["memory_nbytes"]["parameters"], data["memory_nbytes"]["inputs"]) == (6 * 32 * 32 * 4, 64 * 32 * 4)

    def test_the_peaks_are_those_of_the_plan(self, run: Call, model: Path, plan_file: Path) -> None:
        data = json.loads(run("show", model, "--dim", "batch=4096", "--format", "json").out)
        peak = json.loads(plan_file.read_text())["peak"]
        shown = (data["store_all"]["total_peak_nbytes"], data["floor"]["activations"]["nbytes"])
        assert shown == (peak["store_all_total_nbytes"], peak["floor_activation_nbytes"])

    @pytest.mark.parametrize("name", ["plan.json", "plan.onnx", "plan.json.gz"])
    def test_a_plan_is_known_by_its_content(self, run: Call, plan_file: Path, tmp_path: Path, name: str) -> None:
        content = plan_file.read_bytes()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        assert "bounds the activation peak" in run("show", tmp_path / name).out

    def test_a_plan_that_is_not_true_is_not_shown(self, run: Call, plan_file: Path) -> None:
        data = json.loads(plan_file.read_text())
        data["peak"]["total_nbytes"] -= 1
        plan_file.write_text(json.dumps(data))
        assert run("show", plan_file).code == 7

    def test_model_options_do_not_apply_to_a_plan(self, run: Call, plan_file: Path) -> None:
        done = run("show", plan_file, "--batch", "4")
        assert (done.code, "--batch" in done.error) == (2, True)
