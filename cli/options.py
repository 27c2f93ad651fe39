"""The options of the command line, parsed and checked.

Importing this module takes a few milliseconds: it imports nothing of the planner but its errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..planner.errors import UsageError, shell_word
from .defaults import WITHOUT, assumed
from .files import read_model

if TYPE_CHECKING:
    from ..planner.model import Model

Command = TypeVar("Command", bound=Callable[..., Any])

_DURATION = re.compile(r"(\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})\s*(ms|s|m|min|h|)", re.ASCII)
_SECONDS = {"ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
BATCH = "batch"
EFFORTS = ("fast", "default", "high")
_SHAPE = re.compile(r"[0-9]+(?:[x,][0-9]+)*", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds of ``30s``, ``2m``, ``500ms``, ``1h`` or plain seconds. Raises UsageError."""
    remedy = "write a time such as 30s, 2m or 500ms"
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"--time-limit {text!r} is not a time", remedy=remedy)
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds <= 0:
        raise UsageError(f"--time-limit {text!r} is zero", remedy=remedy)
    return seconds


def names_in(module: str, table: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """What completes the keys of a table of the planner in a shell, which alone imports its module."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        known = getattr(import_module(f"..planner.{module}", __package__), table)
        return [name for name in known if name.startswith(incomplete)]

    return complete


def whole(least: int) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """A click callback for a whole number of at least ``least`` that fits 63 bits. Raises UsageError."""

    def convert(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) >= least):
            raise UsageError(
                f"{param.opts[-1]} {text!r} is not a whole number of {least} or more, of 18 digits at most",
                remedy=f"write for example {param.opts[-1]} 32",
            )
        return int(text)

    return convert


def _split(option: str, text: str, example: str) -> tuple[str, str]:
    name, sign, value = text.rpartition("=")
    if not sign or not name:
        raise UsageError(f"{option} {text!r} is not NAME=VALUE", remedy=f"write for example {option} {example}")
    return name, value.strip()


def _extent(option: str, text: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 18 and int(value) > 0):
        raise UsageError(
            f"{option} {text!r}: {value!r} is not a positive whole number", remedy="dimensions are 1, 2, 3, ..."
        )
    return int(value)


def parse_dims(texts: tuple[str, ...]) -> dict[str, int]:
    """``seq=512`` -> {"seq": 512}. Raises UsageError, also for one name with two values."""
    dims: dict[str, int] = {}
    for text in texts:
        name, value = _split("--dim", text, "seq=512")
        size = _extent("--dim", text, value)
        if dims.setdefault(name, size) != size:
            raise UsageError(f"--dim {name!r} is given as {dims[name]} and as {size}", remedy="give it once")
    return dims


def parse_inputs(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """``data=64x3x224x224`` -> {"data": (64, 3, 224, 224)}, for --shape or --input. Raises UsageError."""
    inputs: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, value = _split("--shape", text, "data=64x3x224x224")
        if not _SHAPE.fullmatch(value):
            raise UsageError(
                f"--shape {text!r}: {value!r} is not a shape", remedy="write for example --shape data=64x3x224x224"
            )
        shape = tuple(_extent("--shape", text, part) for part in re.split("[x,]", value))
        if inputs.setdefault(name, shape) != shape:
            raise UsageError(f"--shape {name!r} is given two shapes", remedy="give it once")
    return inputs


_MODEL_OPTIONS = (
    "dim", "input", "batch", "device", "device_spec", "frozen", "optimizer", "grad_accumulation", "ignore_annotations",
    "charge_unknown", "strict", "profile",
)  # fmt: skip

_TIMES = ("device", "device_spec", "profile")
"""Options that each say where times come from."""


class ModelOptions:
    """The options that define the training step of a model file, as written on the command line.

    They are removed from a command's keyword arguments. Defaults of a file give way to options that exclude them.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._values = {name: options.pop(name, None) for name in _MODEL_OPTIONS}
        self._assumed = assumed()
        if any(self._values[name] is not None and name not in self._assumed for name in _TIMES):
            self._values |= dict.fromkeys(self._assumed.intersection(_TIMES))

    def given(self) -> list[str]:
        """The options that differ from their defaults, as written."""
        changed = [
            name for name, value in self._values.items() if value not in ((), None, False) and name not in self._assumed
        ]
        return ["--" + name.replace("_", "-") for name in changed]

    def words(self) -> list[str]:
        """The options as written on the command line, those with their default left out."""
        written: list[str] = []
        for name, value in self._values.items():
            option = "--" + name.replace("_", "-")
            if value is True:
                written.append(option)
            elif value is not None and value is not False:
                for one in value if isinstance(value, tuple) else (value,):
                    written += [option, shell_word(str(one))]
        return written

    def varied(self) -> str:
        """Take out the ``--dim`` that is a name without a size; "batch" if there is none. Raises UsageError."""
        names = [text for text in self._values["dim"] if "=" not in text]
        if len(names) > 1:
            raise UsageError(f"--dim {names[0]} and --dim {names[1]} both name what varies", remedy="name one of them")
        self._values["dim"] = tuple(text for text in self._values["dim"] if "=" in text)
        name = names[0].strip() if names else BATCH
        if name == BATCH and "batch" in self._assumed:
            self._values["batch"] = None
        fixed = self._values["batch"] is not None if name == BATCH else name in parse_dims(self._values["dim"])
        if fixed:
            given = "--batch" if name == BATCH else f"--dim {name}"
            raise UsageError(f"{given} gives a size to what varies", remedy=f"drop {given}, or name another dimension")
        return name

    def at(self, dimension: str, size: int) -> ModelOptions:
        """These options with a size for a dimension, the batch or a symbolic one."""
        sized = {"batch": size} if dimension == BATCH else {"dim": (*self._values["dim"], f"{dimension}={size}")}
        return ModelOptions({**self._values, **sized})

    def load(self, path: str, name: str, time_limit_s: float | None = None) -> Model:
        """Read the model file with these options; reports and plans call it ``name``."""
        options = dict(self._values)
        dims, inputs = parse_dims(options.pop("dim")), parse_inputs(options.pop("input"))
        device_spec = options.pop("device_spec")
        if device_spec is not None:
            if options["device"] is not None:
                raise UsageError("--device and --device-spec both name a device", remedy="pass one of them")
            from ..planner.costs.devices import read_device

            options["device"] = read_device(device_spec)
        if options["profile"] is not None:
            if options["device"] is not None:
                raise UsageError("--profile and a device both give times", remedy="pass one of them")
            from ..planner.costs.profile import read_profile

            options["profile"] = read_profile(options["profile"])
        return replace(read_model(path, time_limit_s, dims=dims, inputs=inputs, **options), path=name)


def _stacked(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def model_options(*, varies: bool = False, times: bool = True) -> Callable[[Command], Command]:
    """The options in `_MODEL_OPTIONS`; without a profile, which is of one size, where the size ``varies``.

    Without ``times`` there are no options that say where times come from.
    """
    dim, batch = "Value of a symbolic dimension, e.g. seq=512.", "Size of the batch dimension."
    if varies:
        dim, batch = (
            "Size of a symbolic dimension, seq=512; seq alone varies it.",
            "Size of a batch that does not vary.",
        )
    timed = [
        click.option(
            "--device",
            metavar="NAME",
            shell_complete=names_in("costs.devices", "DEVICES"),
            help="Device to estimate times for; by default h200, or what was measured. See: ogc-plan devices.",
        ),
        click.option("--device-spec", metavar="FILE", help="A device of your own: JSON, see ogc-plan devices."),
        click.option("--profile", metavar="FILE", help="Measured times and workspace: see ogc-plan profile."),
    ]
    return _stacked(
        click.option("--dim", multiple=True, metavar="NAME[=N]" if varies else "NAME=N", help=dim),
        click.option(
            "--shape",
            "--input",
            "input",
            multiple=True,
            metavar="NAME=SHAPE",
            help="Shape of an input, data=64x3x224x224, or of a tensor whose shape depends on data.",
        ),
        click.option("--batch", callback=whole(1), metavar="N", help=batch),
        *(timed[:2] if varies else timed if times else ()),
        click.option(
            "--frozen", multiple=True, metavar="GLOB", help="Parameters that get no gradient; after ! those that do."
        ),
        click.option(
            "--optimizer",
            metavar="NAME",
            shell_complete=names_in("autodiff.derive", "OPTIMIZER_STATES"),
            help="Count its states: adamw, adam, momentum, sgd, none or NAME:SIZE.",
        ),
        click.option(
            "--grad-accumulation",
            is_flag=True,
            help="The step adds to existing gradients: count a second full set. New ones are freed where "
            "annotations end them, in a bare file at the end of the step.",
        ),
        click.option("--ignore-annotations", is_flag=True, help="Plan the bare ONNX graph of an annotated file."),
        click.option(
            "--charge-unknown", is_flag=True, help="Plan unknown ops too, with all inputs and outputs charged."
        ),
        click.option("--strict", is_flag=True, help="Refuse where over a tenth of the parameters get no gradient."),
    )


def search_options(scope_help: str) -> Callable[[Command], Command]:
    """Options of the commands that search for plans."""
    return _stacked(
        click.option("--scope", type=click.Choice(["total", "activations"]), help=scope_help),
        click.option(
            "--effort",
            type=click.Choice(EFFORTS),
            default="default",
            help="How hard optimal tries: work, not time, so that runs repeat.",
        ),
        click.option("--time-limit", metavar="TIME", help="Longest reading and search: 30s, 2m; Ctrl-C ends one too."),
        click.option("--seed", callback=whole(0), default="0", metavar="N", help="Seed of the search."),
    )


def report_option() -> Callable[[Command], Command]:
    """The option that writes the report as a page."""
    return click.option("--report", metavar="FILE", help="Write charts and tables there, as one HTML page.")


def output_options() -> Callable[[Command], Command]:
    """Options of every command."""
    return _stacked(
        click.option(
            "--format", type=click.Choice(["table", "json"]), default="table", help="For people or for programs."
        ),
        click.option("-q", "--quiet", is_flag=True, help="No progress, no report."),
        click.option("-v", "--verbose", is_flag=True, help="Report all there is: every name, every source."),
        click.option(WITHOUT, is_flag=True, expose_value=False, help="Leave out the defaults of pyproject.toml."),
        click.option("--debug", is_flag=True, help="Show the traceback of an error."),
        click.help_option("-h", "--help"),
    )
