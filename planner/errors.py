"""The errors that a user can cause. A message names what is wrong, where, and the value; `remedy` says what to do.

This module imports nothing of the program, so that every stage can use it.
"""

from __future__ import annotations

import re

_COMMAND = r"ogc-plan [A-Za-z].*"
_WORD = r"""(?:[^\s'"]|'[^']*'|"[^"]*")+"""
_SIZES = re.compile(rf"{_COMMAND}|(?:--(?:dim|shape) {_WORD} ?)+")
_OPTION = re.compile(
    rf"(?P<command>{_COMMAND})"
    r"|--(?P<text>budget|headroom|scope|strategy) "
    r"(?P<value>\.?\d[\w.%]*|min\b|total\b|activations\b|(?<=--strategy )[\w:-]+)"
    r"|--batch (?P<batch>\d+)"
    r"|(?P<described>--device-spec FILE)|(?P<device>--device NAME)"
    r"|--(?P<name>[a-z][a-z-]*)"
)
_ARGUMENTS = {
    "dim": "dims",
    "shape": "inputs",
    "input": "inputs",
    "time-limit": "time_limit_s",
    "device-spec": "device file",
    "ignore-annotations": "ignore_annotations=True",
    "charge-unknown": "charge_unknown=True",
}
"""The arguments of the Python functions whose name is not that of the option."""


def shell_word(text: str) -> str:
    """The text as a word of a shell's command, on one line: ``$'a\\nb'`` where it has characters that do not print."""
    import shlex

    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_in_shell, text)) + "'"


def _in_shell(letter: str) -> str:
    if letter in "'\\":
        return "\\" + letter
    code = ord(letter)
    if letter.isprintable():
        return letter
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no text
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\U{code:08x}"


def in_python(text: str) -> str:
    """A message or remedy with the options of the command line as arguments of the Python functions.

    ``pass --budget 3GB`` becomes ``pass budget="3GB"``. Whole commands, from ``ogc-plan`` on, stay.
    """
    return _OPTION.sub(_argument, _SIZES.sub(_mapping, text))


def _argument(option: re.Match[str]) -> str:
    if option["command"]:
        return option[0]
    if option["text"]:
        return f'{option["text"]}="{option["value"]}"'
    if option["batch"]:
        return f"batch={option['batch']}"
    if option["described"]:
        return "device=read_device(FILE)"
    if option["device"]:
        return 'device="NAME"'
    return _ARGUMENTS.get(option["name"], option["name"].replace("-", "_"))


def _mapping(options: re.Match[str]) -> str:
    """A run of ``--dim NAME=N`` and ``--shape NAME=AxB`` as dicts; unchanged where it gives no sizes."""
    import shlex

    if not options[0].startswith("--"):
        return options[0]
    words = shlex.split(options[0])
    sizes: dict[str, dict[str, int | tuple[int, ...]]] = {}
    for option, word in zip(words[::2], words[1::2], strict=True):
        name, _, size = word.rpartition("=")
        if not re.fullmatch(r"\d+(x\d+)*", size):
            return options[0]
        whole = tuple(map(int, size.split("x")))
        sizes.setdefault(_ARGUMENTS[option[2:]], {})[name] = whole[0] if option == "--dim" else whole
    return ", ".join(f"{argument}={given}" for argument, given in sizes.items()) + " " * options[0].endswith(" ")


class OgcPlanError(Exception):
    """Base of all errors of ogc-plan.

    ``message`` says what is wrong, ``remedy`` what to do next, both in the words of the command line. The text of the
    error is both in the words of Python: ``--keep`` is ``keep``. ``exit_code`` is the exit code of the command line for
    this kind of error.
    """

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.remedy = message, remedy

    def __reduce__(self) -> tuple[object, ...]:
        return _copied, (type(self), *self.args), self.__dict__

    def __str__(self) -> str:
        return "; ".join(in_python(text) for text in (self.message, self.remedy) if text)


def _copied(kind: type[OgcPlanError], *args: object) -> OgcPlanError:
    """An error that another process has raised; its constructor may need more than ``args``."""
    return kind.__new__(kind, *args)


class UsageError(OgcPlanError):
    """An option or argument cannot be used as given."""

    exit_code = 2


class ModelError(OgcPlanError):
    """The model file cannot be planned."""

    exit_code = 3


class InvalidModelError(ModelError):
    """The file is not a valid ONNX model, or contradicts itself."""


class OversizeError(InvalidModelError):
    """The sizes of the tensors are more than any machine has."""


class UnboundDimensionError(ModelError):
    """A dimension of an input is symbolic and no value was given for it."""

    exit_code = 2


class UnsupportedOpError(ModelError):
    """A valid model has something that cannot be planned; the message names node, op and reason."""

    exit_code = 4


class BudgetError(OgcPlanError):
    """The budget cannot be used."""

    exit_code = 2


class BudgetSyntaxError(BudgetError):
    """The text of a budget is not a size, a percentage or ``min``."""


class InfeasibleBudgetError(BudgetError):
    """No plan within the budget was found.

    ``smallest_known_nbytes`` is the smallest peak of any plan found, with what it takes of a device beyond that where
    the budget holds both; None if none was found. ``enough_nbytes`` is a budget that is enough for it.
    ``lower_bound_nbytes`` is a proven lower bound on the peak of every plan of the stated class. ``proven`` says
    whether the budget is below it.
    """

    exit_code = 5

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        smallest_known_nbytes: int | None = None,
        enough_nbytes: int | None = None,
        lower_bound_nbytes: int = 0,
        proven: bool = False,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.smallest_known_nbytes = smallest_known_nbytes
        self.enough_nbytes = enough_nbytes or smallest_known_nbytes
        self.lower_bound_nbytes = lower_bound_nbytes
        self.proven = proven


class SolverError(OgcPlanError):
    """A solver failed, or its answer did not pass an independent check."""


class NoPlanInTimeError(SolverError):
    """The time limit ended the search before any plan was found."""

    exit_code = 6


class SearchStoppedError(SolverError):
    """The user ended the search before any plan was found."""

    exit_code = 130


class ScheduleMismatchError(SolverError):
    """The replay of a schedule disagrees with what the strategy claimed. A defect of this program."""


class BoundMismatchError(SolverError):
    """A plan costs less than a bound that is claimed to be proven. A defect of this program."""


class PlacementMismatchError(SolverError):
    """Two live items overlap in an arena, or one is outside of it. A defect of this program, or a changed placement."""


class PlanError(OgcPlanError):
    """A plan file cannot be used."""

    exit_code = 7


class PlanFormatError(PlanError):
    """The file is not a well-formed plan."""


class PlanVersionError(PlanError):
    """The plan's version is not known to this program."""


class PlanMismatchError(PlanError):
    """The plan belongs to another model, or its schedule breaks a rule on this one."""


class StorageError(OgcPlanError):
    """A file cannot be read or written, or memory ran out."""

    exit_code = 8


class MissingPackageError(OgcPlanError, ImportError):
    """A package that ogc-plan needs is not installed, or cannot be imported."""

    exit_code = 8


class AdapterError(OgcPlanError):
    """A framework adapter cannot run a plan."""


_INSTALLED_WITH = {
    "torch": "'ogc-plan[pytorch]'", "onnxscript": "'ogc-plan[pytorch]'", "matplotlib": "'ogc-plan[plots]'",
}  # fmt: skip


class needed:
    """Import a package inside. Raises MissingPackageError where that fails."""

    def __init__(self, package: str) -> None:
        self.package = package

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, ImportError):
            raise _failed(self.package, error) from error


class packages_needed:
    """Import modules of this program inside. Raises MissingPackageError where a package that they import is missing."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, ModuleNotFoundError) and (found := missing(error)) is not None:
            raise found from error


def missing(error: ImportError) -> MissingPackageError | None:
    """The error for a module that was not found; None for one of this program, which is a defect."""
    if isinstance(error, MissingPackageError):
        return error
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package in ("", "ogc_plan"):
        return None
    return _failed(package, error)


def _failed(package: str, error: ImportError) -> MissingPackageError:
    told = str(error).strip().partition(chr(10))[0]
    return MissingPackageError(
        f"{package} cannot be imported: {told}", remedy=f"pip install {_INSTALLED_WITH.get(package, package)}"
    )
