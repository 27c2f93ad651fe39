"""What a shell completes: commands, options of the command that is written, names, and files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ogc_plan.cli.main import main


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ogc-plan fi", {"fit"}),
        ("ogc-plan --bud", {"--budget"}),
        ("ogc-plan --vers", {"--version"}),
        ("ogc-plan model.onnx --bud", {"--budget"}),
        ("ogc-plan nosuch --bud", {"--budget"}),
        ("ogc-plan show --de", {"--device", "--device-spec", "--debug"}),
        ("ogc-plan emit plan.json model.onnx --to torch-", {"torch-modules", "torch-sac"}),
        ("ogc-plan fit model.onnx --effort ", {"fast", "default", "high"}),
        ("ogc-plan model.onnx --device rtx4", {"rtx4090"}),
        ("ogc-plan model.onnx --strategy ro", {"rotor"}),
        ("ogc-plan model.onnx --optimizer adam", {"adam", "adamw"}),
    ],
)
def test_what_is_begun_is_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, expected: set[str]
) -> None:
    assert {text for kind, text in completed(line, capsys, monkeypatch) if kind == "plain"} == expected


@pytest.mark.parametrize(
    "line",
    ["ogc-plan mod", "ogc-plan show mod", "ogc-plan verify mod", "ogc-plan m --report mod", "ogc-plan arena p -o mod"],
)
def test_a_file_is_left_to_the_shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    assert ("file", "mod") in completed(line, capsys, monkeypatch)


def completed(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Kind and text of each completion of the last word."""
    monkeypatch.setenv("_OGC_PLAN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    with pytest.raises(SystemExit):
        main([])
    return [(kind, text) for kind, _, text in (found.partition(",") for found in capsys.readouterr().out.splitlines())]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_line_of_the_page_works_in_bash(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "cli" / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if "bash_source" in line]
    command = tmp_path / "ogc-plan"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ogc_plan.cli.main "$@"\n')
    command.chmod(0o755)
    ask = 'COMP_WORDS=(ogc-plan m --hea); COMP_CWORD=2; _ogc_plan_completion ogc-plan; echo "${COMPREPLY[@]}"'
    script = f'PATH="{tmp_path}:$PATH"\n{line.partition("  #")[0]}\n{ask}'
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.strip() == "--headroom"
