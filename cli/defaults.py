"""Defaults of options from ``[tool.ogc-plan]`` of a pyproject.toml, found upward from the working directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..planner.errors import StorageError, UsageError

FILE, TABLE = "pyproject.toml", "ogc-plan"
WITHOUT = "--no-config"
_NOT_READ = (WITHOUT, "-h", "--help", "--version")
_NO_DEFAULTS = ("output", "report", "plot", "snapshot", "run", "debug", "help", "no_config")
"""What is written or run is named where the command is called: a file that lies about must not do that."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values by command and by parameter, as click takes them, and the file that they come from."""

    path: str
    values: Mapping[str, Mapping[str, Any]]

    def blamed(self, message: str) -> str:
        """The message of an error, with the file where it shows one of its values."""
        texts = {repr(one) for table in self.values.values() for value in table.values() for one in _each(value)}
        return f"{message} ([tool.{TABLE}] of {self.path})" if any(text in message for text in texts) else message


def read_defaults(words: list[str], commands: Mapping[str, click.Command]) -> Defaults | None:
    """The defaults for a call with these words, None where no file has some or the words do without.

    Raises UsageError for a file that is no TOML, an unknown key and a value of another kind.
    """
    if any(word in words for word in _NOT_READ):
        return None
    for folder in (Path.cwd(), *Path.cwd().parents):
        path = folder / FILE
        table = _table(path) if path.is_file() else None
        if table is not None:
            shown = os.path.relpath(path)
            return Defaults(shown, _by_command(table, commands, f"[tool.{TABLE}] of {shown}"))
    return None


def assumed() -> set[str]:
    """The parameters of the running command whose values are defaults of a file."""
    context = click.get_current_context(silent=True)
    names = () if context is None else context.params
    return {name for name in names if context and context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP}


def _table(path: Path) -> dict[str, Any] | None:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {str(path)!r}: {error.strerror}", remedy=f"or pass {WITHOUT}") from error
    if TABLE.encode() not in content:  # another tool's file need not even be TOML
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tool = tomllib.loads(content.decode()).get("tool", {})
    except ValueError as error:  # no UTF-8 is one, too
        raise UsageError(f"{os.path.relpath(path)} is no TOML: {error}", remedy=f"or pass {WITHOUT}") from error
    table = tool.get(TABLE) if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{os.path.relpath(path)}: tool.{TABLE} is no table", remedy=f"write [tool.{TABLE}]")
    return table


def _by_command(
    table: Mapping[str, Any], commands: Mapping[str, click.Command], where: str
) -> dict[str, dict[str, Any]]:
    """Keys of the table are for every command that has the option, those of a table in it for the command it names."""
    options = {name: dict(_options(command)) for name, command in commands.items()}
    found: dict[str, dict[str, Any]] = {name: {} for name in commands}
    anywhere = {key for known in options.values() for key in known}
    for key, value in table.items():
        if isinstance(value, dict) and key in commands:
            continue
        if key in commands and key not in anywhere:
            raise UsageError(f"{key} in {where} is {value!r}", remedy=f"write a table [tool.{TABLE}.{key}]")
        _check_key(key, {*anywhere, *commands}, where)
        for name, known in options.items():
            if key in known:
                found[name][str(known[key].name)] = _converted(known[key], value, f"{key} in {where}")
    for name in commands:
        inner = f"[tool.{TABLE}.{name}]{where[where.index(' of') :]}"
        own = table.get(name)
        for key, value in own.items() if isinstance(own, dict) else ():
            _check_key(key, {*options[name]}, inner)
            option = options[name][key]
            found[name][str(option.name)] = _converted(option, value, f"{key} in {inner}")
    return found


def _options(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """The options that may have a default, by their long names without dashes."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in _NO_DEFAULTS:
            yield from ((name[2:], parameter) for name in parameter.opts if name.startswith("--"))


def _check_key(key: str, known: set[str], where: str) -> None:
    if key in known:
        return
    near = get_close_matches(key, known, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(sorted(known))}"
    raise UsageError(f"{key!r} in {where} is no option that may have a default", remedy=remedy)


def _converted(option: click.Option, value: Any, where: str) -> Any:
    """The value as click takes it: a flag, a text, or a list of texts for an option that may be given again."""
    many = isinstance(value, list) and option.multiple
    if option.is_flag:
        right, kind = isinstance(value, bool), "true or false"
    else:
        right = all(isinstance(one, (str, int, float)) and not isinstance(one, bool) for one in _each(value, many=many))
        kind = "a text or a list of texts" if option.multiple else "a text or a number"
    if not right:
        raise UsageError(f"{where} is {value!r}", remedy=f"write {kind}")
    if option.is_flag:
        return value
    return [str(one) for one in _each(value, many=many)] if option.multiple else str(value)


def _each(value: Any, *, many: bool = True) -> list[Any]:
    return value if many and isinstance(value, list) else [value]
