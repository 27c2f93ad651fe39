"""What the commands of this folder share: a parser, names to choose from, and where results go."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection

from models.reporting.option_values import output_file

INTERRUPTED = 130
"""The exit code of a command that was interrupted."""


def command_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of ``python -m module``, with the module's docstring as its help."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_names(
    parser: argparse.ArgumentParser, known: Collection[str], default: Collection[str] = (), *, what: str = "network"
) -> None:
    """Names of networks, or of ``what`` else, as positional arguments; without any, ``default`` or all are taken."""
    every = ", ".join(default) or "all"
    parser.add_argument(
        "names",
        nargs="*",
        type=one_of(known, what),
        metavar="NAME",
        help=f"{what}s (default: {every}): {', '.join(known)}",
    )


def one_of(known: Collection[str], what: str) -> Callable[[str], str]:
    """A ``type`` of argparse that takes the known names only."""

    def name(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"no {what} is called {text!r}; choose from {', '.join(known)}")
        return text

    return name


def add_output(parser: argparse.ArgumentParser, also: str = "a .md", *, required: bool = False) -> None:
    """The option that names the JSON file of results."""
    named = f"JSON file to write, with {also} next to it"
    parser.add_argument("-o", "--output", type=output_file, required=required, help=named)
