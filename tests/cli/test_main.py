"""The command line: help, exit codes, the default command, and where a plan is written."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from ogc_plan.cli.files import check_target, is_plan
from ogc_plan.cli.main import cli, main
from ogc_plan.cli.terminal import BROKEN_PIPE, INTERRUPTED
from ogc_plan.planner import errors, pipeline
from ogc_plan.planner import model as model_module
from ogc_plan.planner.errors import NoPlanInTimeError, StorageError

from models.light import light_path
from tests.cli.calls import GREEDY, Call, process, raising
from tests.files.onnx_files import RESNET50
from tests.files.onnx_models import model as onnx_model
from tests.files.onnx_models import node, save


class TestStart:
    def test_help_takes_less_than_half_a_second_of_a_processor(self) -> None:
        before = os.times()
        process("--help")
        after = os.times()
        assert (after.children_user + after.children_system) - (before.children_user + before.children_system) < 0.5

    @pytest.mark.parametrize("words", [["--help"], ["-h"], ["model.onnx", "--help"], ["--budget", "3GB", "--help"]])
    def test_help_tells_the_default_command_and_all_others(self, run: Call, words: list[str]) -> None:
        done = run(*words)
        missing = [word for word in ("--budget", "--time-limit", *cli.commands) if word not in done.out]
        assert (done.code, missing) == (0, [])

    @pytest.mark.parametrize("command", [*cli.commands])
    def test_every_command_has_its_help(self, run: Call, command: str) -> None:
        assert f"ogc-plan {command}" in run(command, "--help").out

    def test_help_tells_the_exit_code_of_every_error(self, run: Call) -> None:
        kinds = (kind for kind in vars(errors).values() if isinstance(kind, type))
        codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.OgcPlanError)} | {INTERRUPTED, BROKEN_PIPE}
        told = run("--help").out.partition("Exit codes:")[2]
        assert [code for code in sorted(codes) if not re.search(rf"(^|  ){code} ", told, re.MULTILINE)] == []

    def test_help_fits_80_columns(self) -> None:
        lines = process("--help", env={**os.environ, "COLUMNS": "80"}).stdout.splitlines()
        assert max(map(len, lines)) <= 80

    def test_without_arguments_the_help_goes_to_stderr_with_code_2(self, run: Call) -> None:
        done = run()
        assert (done.code, done.out, "Usage:" in done.err) == (2, "", True)

    def test_version(self, run: Call) -> None:
        assert re.fullmatch(r"ogc-plan \d+\.\d+\.\d+\n", run("--version").out)


class TestExitCodes:
    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ([], "no budget is given"),
            (["--budget", "3XB"], "'XB'"),
            (["--budget", "0"], "zero"),
            (["--frobnicate"], "--frobnicate"),
            (["--budget", "60%", "--batch", "0"], "--batch '0'"),
            (["--budget", "60%", "--seed", "-1"], "--seed '-1'"),
            (["--budget", "60%", "--dim", "batch"], "--dim 'batch'"),
            (["--budget", "60%", "--dim", "batch=1", "--dim", "batch=2"], "'batch' is given as 1 and as 2"),
            (["--budget", "60%", "--input", "x=3", "--input", "x=4"], "'x' is given two shapes"),
            (["--budget", "60%", "--time-limit", "soon"], "--time-limit 'soon'"),
            (["--budget", "60%", "--headroom", "some"], "--headroom 'some'"),
            (["--budget", "60%", "--dim", "batch=4096", "--strategy", "magic"], "'magic'"),
            (["--budget", "60%", "--dim", "batch=4096", "--device", "abacus"], "'abacus'"),
            (["--budget", "60%", "--dim", "batch=4096", "--optimizer", "hope"], "'hope'"),
            (["--budget", "60%", "--dim", "batch=4096", "--frozen", "zzz*"], "'zzz*'"),
            (["--budget", "60%", "--scope", "everything"], "--scope"),
            (["--budget", "60%", "--effort", "high", "--strategy", "greedy"], "strategy 'greedy' has none"),
            (["--budget", "60%", "second.onnx"], "second.onnx"),
            (["--budget", "60%"], "batch"),
        ],
    )
    def test_2_for_usage_with_one_line_that_names_it(self, run: Call, model: Path, words: list[str], says: str) -> None:
        done = run(model, *words)
        assert (done.code, says in done.error, done.out) == (2, True, "")

    @pytest.mark.parametrize(
        ("content", "says"), [(b"", '"model.onnx" is empty'), (b"\x00\xff" * 50, '"model.onnx" is not an ONNX model')]
    )
    def test_3_for_a_file_that_is_no_model(self, run: Call, tmp_path: Path, content: bytes, says: str) -> None:
        (tmp_path / "model.onnx").write_bytes(content)
        done = run(tmp_path / "model.onnx", *GREEDY)
        assert (done.code, says in done.error) == (3, True)

    def test_3_for_a_model_in_gzip_which_the_remedy_unpacks(self, run: Call, model: Path, tmp_path: Path) -> None:
        (tmp_path / "model.onnx.gz").write_bytes(gzip.compress(model.read_bytes()))
        done = run(tmp_path / "model.onnx.gz", *GREEDY)
        assert (done.code, done.err) == (
            3,
            'error: "model.onnx.gz" is compressed with gzip; a model is read uncompressed\n'
            "help: run: gunzip < FILE > model.onnx\n",
        )

    def test_3_for_a_damaged_gzip_file_in_place_of_the_model(self, run: Call, tmp_path: Path) -> None:
        (tmp_path / "model.gz").write_bytes(b"\x1f\x8bdamaged")
        done = run(tmp_path / "model.gz", *GREEDY)
        assert (done.code, done.error.endswith("is a damaged gzip file, not an ONNX model")) == (3, True)

    def test_5_for_a_budget_below_the_floor(self, run: Call, model: Path) -> None:
        done = run(model, "--dim", "batch=4096", "--budget", "1MB")
        assert (done.code, "proven floor" in done.error, "--budget" in done.err.splitlines()[1]) == (5, True, True)

    def test_the_budget_that_an_infeasible_one_names_works(self, run: Call, model: Path) -> None:
        words = [model, "--dim", "batch=4096", "--budget"]
        smallest = re.search(r"--budget (\d+B)", run(*words, "1MB").err)
        assert smallest is not None
        assert run(*words, smallest[1]).code == 0

    @pytest.mark.parametrize(("batch", "smaller"), [("2", "a smaller --batch"), ("1", "a smaller input")])
    def test_no_batch_below_one_is_asked_for(self, run: Call, model: Path, batch: str, smaller: str) -> None:
        assert run(model, "--batch", batch, "--budget", "1B").err.splitlines()[1].endswith(smaller)

    def test_6_when_the_time_ends_without_a_plan(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipeline, "plan", raising(NoPlanInTimeError("no plan in 1 s", remedy="wait")))
        assert run(model, *GREEDY).code == 6

    def test_7_for_something_that_is_no_plan(self, run: Call, model: Path) -> None:
        assert run("verify", model).code == 7

    @pytest.mark.parametrize(
        ("word", "remedy"), [("verfy", "did you mean verify?"), ("zzz", f"the commands are {', '.join(cli.commands)}")]
    )
    def test_2_for_a_word_that_is_no_command_and_no_file(self, run: Call, word: str, remedy: str) -> None:
        done = run(word, "plan.json")
        assert (done.code, done.err) == (2, f"error: '{word}' is no file and no command\nhelp: {remedy}\n")

    @pytest.mark.parametrize(
        ("option", "size", "says"),
        [
            ("--batch", "1000000000000", r'node "n0" \(Conv\) makes "r0" of \d+ bytes'),
            ("--batch", "20000000000", r"the sizes of '.*' add up to \d+ bytes"),
            ("--shape", "data_0=20000000000x3x224x224", r"the sizes of '.*' add up to \d+ bytes"),
        ],
    )
    def test_2_for_a_size_that_no_machine_has(self, run: Call, option: str, size: str, says: str) -> None:
        done = run("show", light_path("squeezenet"), option, size)
        told = re.fullmatch(f"error: the model is too large with {option} {size}: {says}.*", done.error)
        assert (done.code, told is not None) == (2, True)

    def test_3_for_a_file_whose_own_sizes_no_machine_has(self, run: Call, tmp_path: Path) -> None:
        proto = onnx_model([node("MatMul", "x w", "y")], {"x": (2**53, 64)}, weights={"w": (64, 64)})
        assert run("show", save(proto, tmp_path)).code == 3

    @pytest.mark.parametrize("path", ["absent.onnx", "."])
    def test_8_for_a_path_that_is_no_file(self, run: Call, path: str) -> None:
        done = run(path, *GREEDY)
        assert (done.code, f"'{path}'" in done.error) == (8, True)

    def test_8_for_a_named_pipe_which_is_not_opened(self, run: Call, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        done = run(tmp_path / "pipe", *GREEDY)
        assert (done.code, "pipe or a device" in done.err) == (8, True)

    @pytest.mark.parametrize(
        ("error", "code", "says"),
        [
            (RuntimeError("two\nlines"), 1, r"internal RuntimeError: two\nlines"),
            (MemoryError(), 8, "memory ran out"),
            (OSError(errno.EIO, "Input/output error", "disk"), 8, "cannot read or write 'disk': Input/output error"),
        ],
    )
    def test_an_error_of_the_machine_or_of_ours_has_its_code(
        self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, says: str
    ) -> None:
        monkeypatch.setattr(model_module, "load_model", raising(error))
        done = run(model, *GREEDY)
        assert (done.code, done.error) == (code, f"error: {says}")

    def test_130_for_ctrl_c(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipeline, "plan", raising(KeyboardInterrupt()))
        done = run(model, *GREEDY)
        assert (done.code, "interrupted" in done.error) == (130, True)

    def test_debug_shows_the_traceback(self, run: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(model_module, "load_model", raising(RuntimeError("x")))
        assert "Traceback" in run(model, *GREEDY, "--debug").err


class TestFirstWord:
    @pytest.mark.parametrize("split", [0, 2, 4, 6])
    def test_options_come_before_or_after_the_file(self, run: Call, model: Path, split: int) -> None:
        assert run(*GREEDY[:split], model, *GREEDY[split:]).code == 0

    @pytest.mark.parametrize("words", [("./show", *GREEDY), (*GREEDY, "--", "show")], ids=["by its path", "after --"])
    def test_a_file_named_show_can_be_planned(
        self, run: Call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
    ) -> None:
        shutil.copy(model, tmp_path / "show")
        monkeypatch.chdir(tmp_path)
        assert run(*words).code == 0

    def test_a_command_may_follow_its_options(self, run: Call, model: Path) -> None:
        assert "largest storages" in run("--dim", "batch=64", "show", model).out

    def test_the_value_of_an_option_is_no_command(self, run: Call, model: Path, tmp_path: Path) -> None:
        (tmp_path / "compare").mkdir()
        assert "matches no tensor" in run("--keep", "compare", model, *GREEDY).error


class TestTarget:
    def test_a_missing_folder_is_made_for_the_plan(self, run: Call, model: Path, tmp_path: Path) -> None:
        target = tmp_path / "a new" / "folder" / "plan.json"
        assert (run(model, *GREEDY, "-o", target).code, is_plan(str(target))) == (0, True)

    def test_no_folder_is_made_where_there_is_no_plan(self, run: Call, model: Path, tmp_path: Path) -> None:
        assert run(model, "--budget", "1B", "-o", tmp_path / "no" / "plan.json").code != 0
        assert not (tmp_path / "no").exists()

    @pytest.mark.parametrize("words", [("-o", "{}/plan.json"), ("-o", "{}/inner/plan.json")])
    def test_a_file_in_place_of_a_folder_is_no_folder_to_make(
        self, run: Call, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        (tmp_path / "file").touch()
        done = run("absent.onnx", *GREEDY, *(word.format(tmp_path / "file") for word in words))
        assert (done.code, done.error.endswith("file' is not a folder")) == (8, True)

    def test_an_empty_path_is_refused_with_a_path_that_works(self, run: Call) -> None:
        assert run("absent.onnx", *GREEDY, "-o", "").err.endswith("help: write -o plan.json\n")

    def test_a_folder_as_target_is_refused(self, run: Call, model: Path, tmp_path: Path) -> None:
        done = run(model, *GREEDY, "-o", tmp_path)
        assert (done.code, f"{tmp_path}/plan.json" in done.err) == (8, True)

    def test_a_folder_without_write_permission_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
        with pytest.raises(StorageError, match="not writable"):
            check_target(str(tmp_path / "plan.json"))

    @pytest.mark.parametrize("words", [["--budget", "1B"], ["--budget", "3XB"], ["--budget", "70%", "--strategy", "x"]])
    def test_a_failure_leaves_an_old_plan_untouched(
        self, run: Call, model: Path, plan_file: Path, words: list[str]
    ) -> None:
        before = plan_file.read_bytes()
        code = run(model, "--dim", "batch=4096", *words, "-o", plan_file).code
        assert (code != 0, plan_file.read_bytes() == before) == (True, True)

    def test_a_link_is_written_through(self, run: Call, model: Path, tmp_path: Path) -> None:
        (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
        run(model, *GREEDY, "-o", tmp_path / "link.json")
        assert ((tmp_path / "link.json").is_symlink(), is_plan(str(tmp_path / "real.json"))) == (True, True)

    def test_a_pipe_or_device_stays_one(self, run: Call, model: Path, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        done = run(model, *GREEDY, "-q", "-o", tmp_path / "pipe")
        os.close(reader)
        assert (done.code, (tmp_path / "pipe").is_fifo()) == (0, True)

    def test_a_name_that_ends_in_gz_is_packed(self, run: Call, model: Path, plan_file: Path, tmp_path: Path) -> None:
        run(model, *GREEDY, "-o", tmp_path / "plan.json.gz")
        assert gzip.decompress((tmp_path / "plan.json.gz").read_bytes()) == plan_file.read_bytes()


def test_a_plan_never_overwrites_the_model(run: Call, model: Path) -> None:
    assert run(model, *GREEDY, "-o", model).err.startswith(f"error: -o {str(model)!r} would overwrite the model")


class TestStandardInput:
    @pytest.fixture
    def given(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
        """Put these bytes on standard input."""
        return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    @pytest.mark.parametrize("words", [["show", "-"], ["-", "--budget", "90%"], ["frontier", "-", "--budgets", "90%"]])
    def test_reports_call_the_model_standard_input(
        self, run: Call, model: Path, given: Callable[[bytes], None], words: list[str]
    ) -> None:
        given(model.read_bytes())
        assert run(*words, "--dim", "batch=4096").out.startswith("model        standard input")

    @pytest.mark.parametrize("content", [b"garbage", b"{", b"\x1f\x8bgarbage", gzip.compress(b"a model", mtime=0), b""])
    def test_errors_call_it_so_too(self, run: Call, given: Callable[[bytes], None], content: bytes) -> None:
        given(content)
        error = run("show", "-").error
        assert ("standard input" in error, tempfile.gettempdir() in error) == (True, False)

    def test_a_plan_made_from_it_is_that_of_the_file(
        self, run: Call, model: Path, plan_file: Path, given: Callable[[bytes], None], tmp_path: Path
    ) -> None:
        given(model.read_bytes())
        run("-", *GREEDY, "-q", "-o", tmp_path / "p.json")
        text = (tmp_path / "p.json").read_text().replace("standard input", model.name)
        assert text == plan_file.read_text()


class TestResNet50:
    def test_the_main_job(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        words = [RESNET50, "--batch", "64", "--budget", "60%", "-o", tmp_path / "p.json", "--format", "json"]
        code = main([str(word) for word in words])
        data = json.loads(capsys.readouterr().out)
        within = data["peak"]["activation_nbytes"] <= data["budget"]["nbytes"]
        assert (code, within, data["time"]["overhead"] < 0.06) == (0, True, True)
