"""Real runs of the command line and of an example, as the blocks of Markdown that show them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from models.light import light_path

RESNET = "ogc-plan light_resnet50.onnx --batch 64 --budget 60% -o plan.json"
FIRST = r"^activation peak|^step time|^proof"
FIT = r"samples/s|^without|^the |^beyond"
STORY = {
    f"ogc-plan fit light_squeezenet.onnx --memory 250MB --optimizer adamw --multiple-of 4 | grep -E '{FIT}'": FIT,
    "ogc-plan frontier light_squeezenet.onnx --batch 20 --optimizer adamw --budgets 300MB,250MB,min"
    " | grep -E '^budget|%'": "^budget|%",
    "ogc-plan light_squeezenet.onnx --batch 20 --budget 250MB --optimizer adamw -o plan.json --report plan.html"
    " | grep -E '^total|^proof'": "^total|^proof",
    "ogc-plan verify plan.json light_squeezenet.onnx --run onnx | sed -n '/^trained/,$p'": "",
}
"""From a file and a memory to a verified step: each command, and what behind it keeps of its lines."""


def _printed(folder: Path, command: list[str]) -> list[str]:
    """The lines of both streams of a command that runs in ``folder``."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run([sys.executable, *command], **streams, text=True, cwd=folder, env=environment)
    return done.stdout.rstrip().splitlines()


def console(folder: Path, *shown: str, only: str = "", start: str = "") -> str:
    """A console block: each command line with what ogc-plan really prints for it in ``folder``.

    What stands behind a pipe is done here: ``only`` keeps the lines that match it, ``start`` those from the first that
    begins with it.
    """
    parts = []
    for line in shown:
        lines = _printed(folder, ["-m", "ogc_plan.cli.main", *shlex.split(line.partition(" | ")[0])[1:]])
        first = next(number for number, text in enumerate(lines) if text.startswith(start))
        parts += [f"$ {line}", *(text for text in lines[first:] if re.search(only, text))]
    return "\n".join(["```console", *parts, "```"])


def story(folder: Path) -> str:
    """The four commands of the tutorial in one block, which is no wider than the page."""
    told = [
        console(folder, line, only=only, start="trained" if " verify " in line else "") for line, only in STORY.items()
    ]
    lines = [part.removeprefix("```console\n").removesuffix("\n```") for part in told]
    return "\n".join(["```console", "\n\n".join(lines), "```"])


def output(folder: Path, program: str) -> str:
    """A block of what a Python program prints."""
    return "\n".join(["```text", *_printed(folder, ["-c", program]), "```"])


def unsearched(folder: Path) -> dict[str, Callable[[], str]]:
    """The blocks whose output depends on no search, so that a test holds every letter of them."""
    for name in ("resnet50", "squeezenet", "vgg19"):
        shutil.copy(light_path(name), folder)
    run = partial(partial, console, folder)
    show = "ogc-plan show light_resnet50.onnx --batch 64 --frozen 'gpu_0/conv1*' | sed -n '/^in training/,$p'"
    return {
        "help": run("ogc-plan --help"),
        "shown": run(show, start="in training"),
        "devices": run("ogc-plan devices"),
        "infeasible": run("ogc-plan light_vgg19.onnx --batch 32 --budget 40%"),
    }


def searched(folder: Path) -> dict[str, Callable[[], str]]:
    """The blocks that show plans; that of the first stays in ``folder``, and that of the arena reads it."""
    run = partial(partial, console, folder)
    return {
        "first": run(f"{RESNET} | grep -E '{FIRST}'", only=FIRST),
        "run": run(RESNET, "ogc-plan verify plan.json light_resnet50.onnx"),
        "arena": run("ogc-plan arena plan.json --no-escaping -o arena.json"),
        "story": partial(story, folder),
        "frontier": run("ogc-plan frontier light_resnet50.onnx --batch 64 --budgets 80%,60%,40%,20%"),
        "fit": run(
            "ogc-plan fit light_squeezenet.onnx --memory 4GB --optimizer adamw --device rtx4090 --multiple-of 8"
        ),
        "compare": run("ogc-plan compare light_resnet50.onnx --batch 64 --budget 60%"),
    }
